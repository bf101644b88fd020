"""The spec files that a person may want to launch, found beside the package and in this folder."""

from __future__ import annotations

from pathlib import Path

import l2rtui

_FIRST = "racing-sac.yaml"
"""What a newcomer launches with two keys: it needs no cluster, no GPU and no simulator."""


def example_specs() -> list[tuple[Path, str]]:
    """Spec files of ``manifests/`` here and beside the package, each with the first words of its first comment."""
    found: dict[Path, tuple[Path, str]] = {}
    for folder in (Path("manifests"), Path(l2rtui.__file__).parent.parent / "manifests"):
        try:
            for path in sorted(folder.glob("*.yaml"), key=lambda path: (path.name != _FIRST, path.name)):
                with path.open(encoding="utf-8", errors="replace") as file:
                    text = file.read(4096)
                if "kind:" in text and "apiVersion:" not in text:  # those are for kubectl
                    first = text.lstrip().partition("\n")[0]
                    found.setdefault(path.resolve(), (path, first.lstrip("# ") if first.startswith("#") else ""))
        except OSError:
            continue  # a folder that cannot be read has no examples; a path can still be typed
    return list(found.values())
