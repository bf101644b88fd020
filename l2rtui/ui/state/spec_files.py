"""Example spec files: those in ``manifests/`` of the current folder and next to the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import l2rtui

if TYPE_CHECKING:
    from l2rtui.services.spec.spec_file import LaunchRequest

_FIRST = "racing-sac.yaml"
"""First in the list, so that two keys launch it: it needs no cluster, no GPU and no simulator."""


def load_spec(path: str, name: str = "") -> LaunchRequest:
    """Read a spec file that a person named; a name replaces the file's."""
    # Imported here: PyYAML and msgspec would delay the first frame.
    from l2rtui.services.spec import spec_file

    return spec_file.load(str(Path(path).expanduser()), name=name)


def example_specs() -> list[tuple[Path, str]]:
    """Return the path of each spec file and its first comment, which describes it."""
    examples: dict[Path, tuple[Path, str]] = {}
    for folder in (Path("manifests"), Path(l2rtui.__file__).parent.parent / "manifests"):
        try:
            for path in sorted(folder.glob("*.yaml"), key=lambda path: (path.name != _FIRST, path.name)):
                with path.open(encoding="utf-8", errors="replace") as file:
                    text = file.read(4096)
                if "kind:" in text and "apiVersion:" not in text:  # not Kubernetes' own objects
                    first = text.lstrip().partition("\n")[0]
                    examples.setdefault(path.resolve(), (path, first.lstrip("# ") if first.startswith("#") else ""))
        except OSError:
            continue  # a folder that cannot be read has no examples; a path can still be typed
    return list(examples.values())
