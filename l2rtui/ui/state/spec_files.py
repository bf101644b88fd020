"""Specs to choose from: templates, and files in ``manifests/`` of the current folder and next to the package."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

import l2rtui
from l2rtui.domain.quantity import counted
from runtime.base import bounded_json

if TYPE_CHECKING:
    from l2rtui.config import Settings
    from l2rtui.services.spec.spec_file import LaunchRequest

_FIRST = "racing-sac.yaml"
"""First in the list, so that two keys launch it: it needs no cluster, no GPU and no simulator."""


class SpecFacts(Struct, frozen=True):
    """Facts of a spec for a list of them.

    Attributes:
        method, environment: Empty if it does not train by l2rtui's learner.
        pods: Of all its runs. gpus: whole GPUs, or slots, of all its runs; empty if it needs none.
        seeds: As in ``--seeds``; of a sweep the number of its runs.
        policy: Its placement policy.
    """

    name: str
    method: str
    environment: str
    pods: int
    gpus: str
    seeds: str
    policy: str


def facts_of(paths: Sequence[str], settings: Settings) -> dict[str, SpecFacts]:
    """Return the facts of the specs at these paths; a spec with a mistake has none until it is planned."""
    from l2rtui.errors import L2RError

    facts: dict[str, SpecFacts] = {}
    for path in paths:
        with contextlib.suppress(L2RError):
            facts[path] = _facts(load_spec(path, settings))
    return facts


def _facts(request: LaunchRequest) -> SpecFacts:
    runs = request.runs()
    train = bounded_json.decode(request.spec.train)
    environment = train.get("environment", "") if isinstance(train, dict) else ""
    sets = [part for run in runs for part in run.sets]
    gpus = sum(part.gpus * part.num_pods for part in sets)
    slots = sum(part.slots * part.num_pods for part in sets if not part.gpus)
    seeds = (
        counted(len(runs), "run") if request.trials else ",".join(map(str, request.seeds)) or str(request.spec.seed)
    )
    return SpecFacts(
        request.spec.name,
        str(train.get("algorithm", "")) or ("sac" if environment else ""),
        str(environment),
        sum(part.num_pods for part in sets),
        counted(gpus, "GPU") if gpus else counted(slots, "slot") if slots else "",
        seeds,
        str(request.policy),
    )


def preview_of(path: str) -> Sequence[str]:
    """Return the beginning of a spec file as lines, without those for editors."""
    from l2rtui.services.spec.templates import head_of, template_named

    text = head_of(template_named(path) or Path(path).expanduser())
    return [line for line in text.splitlines() if not line.startswith("# yaml-language-server")]


def load_spec(path: str, settings: Settings, name: str = "", changes: Sequence[str] = ()) -> LaunchRequest:
    """Read a spec file or template named by the user.

    Args:
        settings: Give limits and binding if the file does not, as for `launch`.
        name: Replaces the file's.
        changes: Settings that replace the file's, as in ``--set``.
    """
    # Imported here: PyYAML and msgspec would delay the first frame.
    from l2rtui.services.spec import spec_file
    from l2rtui.services.spec.templates import template_named

    file = template_named(path) or Path(path).expanduser()
    return spec_file.load(str(file), changes, name=name, binding=settings.binding, limits=settings.default_limits)


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
