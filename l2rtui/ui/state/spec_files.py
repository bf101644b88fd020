"""Specs to choose from: templates, and files in ``manifests/`` of the current folder and next to the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import l2rtui

if TYPE_CHECKING:
    from l2rtui.config import Settings
    from l2rtui.services.spec.spec_file import LaunchRequest

_FIRST = "racing-sac.yaml"
"""First in the list, so that two keys launch it: it needs no cluster, no GPU and no simulator."""


def load_spec(path: str, settings: Settings, name: str = "") -> LaunchRequest:
    """Read a spec file or template named by the user.

    Args:
        settings: Give limits and binding if the file does not, as for `launch`.
        name: Replaces the file's.
    """
    # Imported here: PyYAML and msgspec would delay the first frame.
    from l2rtui.services.spec import spec_file
    from l2rtui.services.spec.templates import template_named

    file = template_named(path) or Path(path).expanduser()
    return spec_file.load(str(file), name=name, binding=settings.binding, limits=settings.default_limits)


def launch_options(path: str) -> list[str]:
    """Return the options of ``launch`` that name the spec file or template of :func:`load_spec`."""
    from l2rtui.services.spec.templates import template_named

    return ["-t" if template_named(path) else "-f", path]


def example_specs() -> list[tuple[str, str]]:
    """Return the name of each template and the path of each spec file, with the first comment in it."""
    from l2rtui.services.spec.templates import about_of, head_of, is_spec, templates

    examples: dict[Path, tuple[str, str]] = {}
    package = Path(l2rtui.__file__).parent
    for folder in (Path("manifests"), package.parent / "manifests", package / "manifests"):
        try:
            paths = sorted(folder.glob("*.yaml"), key=lambda path: (path.name != _FIRST, path.name))
        except OSError:
            continue  # a folder that cannot be read has no examples; a path can still be typed
        for path in paths:
            text = head_of(path)
            if is_spec(text):
                examples.setdefault(path.resolve(), (str(path), about_of(text)))
    own = [(template.name, f"template{' · ' * bool(template.about)}{template.about}") for template in templates()]
    return [*own, *examples.values()]
