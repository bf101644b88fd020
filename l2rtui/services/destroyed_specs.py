"""Exact specs of destroyed runs, to launch one again with one command; the history hides their secrets."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from l2rtui.backends.common import stored_spec
from l2rtui.config import state_dir
from l2rtui.domain.selection.filter_language import EXPERIMENT_WORDS
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import NotFoundError
from runtime.base.atomic_files import write_atomic

MAX_SPECS = 100
"""Maximum number of specs; the oldest are removed first."""


def keep(spec: RunSpec) -> None:
    """Save a spec under its run's name; a failed write is ignored, since the destroy continues anyway."""
    if name_problem(spec.name):
        return  # the name becomes a file name
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{spec.name}.json"
        write_atomic(path, msgspec.json.encode(spec), is_durable=False, is_shared=True)
        # The modification time is the order: a run that is destroyed again moves to the front.
        for _, path in _newest_first()[MAX_SPECS:]:
            path.unlink(missing_ok=True)
    except OSError:
        return


class DestroyedRun(Struct, frozen=True):
    """A destroyed run: its spec, and the time of its destroy, in seconds since the epoch."""

    spec: RunSpec
    destroyed_at: float


def destroyed_runs() -> tuple[DestroyedRun, ...]:
    """Return the runs that can be launched again, the most recently destroyed first."""
    specs = ((_read(path), destroyed_at) for destroyed_at, path in _newest_first())
    return tuple(DestroyedRun(spec, destroyed_at) for spec, destroyed_at in specs if spec is not None)


def names() -> tuple[str, ...]:
    """Return their names without reading them, for completion."""
    return tuple(path.stem for _, path in _newest_first())


def find(target: str = "") -> tuple[RunSpec, ...]:
    """Return the spec of a run, or those of ``experiment/NAME``; without a name, the most recently destroyed one.

    Raises:
        NotFoundError: no match; names the available ones.
    """
    matches = [run.spec for run in destroyed_runs()]
    if not target and matches:
        return (matches[0],)
    # A run has precedence over an experiment of the same name.
    head, _, rest = target.partition("/")
    experiment = rest if head in EXPERIMENT_WORDS else target
    chosen = [spec for spec in matches if spec.name == target]
    chosen = chosen or [spec for spec in matches if spec.experiment == experiment]
    if not chosen:
        names = ", ".join(spec.name for spec in matches[:12])
        available = f"Those that are kept: {names}." if matches else "None has been destroyed from here yet."
        what = f"No destroyed run is named {target}." if target else "There is no destroyed run."
        like = f" `l2rtui launch --like {target} --name NEW` repeats any run of the history." if target else ""
        raise NotFoundError(what, available + like)
    return tuple(sorted(chosen, key=_launch_order))


def _launch_order(spec: RunSpec) -> tuple[int, int, str]:
    return spec.trial.number if spec.trial is not None else 0, spec.seed, spec.name


def _folder() -> Path:
    return state_dir() / "last-runs"


def _newest_first() -> list[tuple[float, Path]]:
    try:
        return sorted(((path.stat().st_mtime, path) for path in _folder().glob("*.json")), reverse=True)
    except OSError:
        return []


def _read(path: Path) -> RunSpec | None:
    try:
        return stored_spec.decode(path.read_bytes())
    except (OSError, ValueError):  # written by another version, so it cannot be launched by this one
        return None
