"""The specs of runs that were destroyed, so that one of them can be launched again with one word."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from l2rtui.config import state_dir
from l2rtui.domain.workload import RunSpec, name_problem
from l2rtui.errors import NotFoundError

KEPT = 100
"""How many are kept; the oldest go first."""


def keep(spec: RunSpec) -> None:
    """Remember a spec under its run's name. Where that cannot be written, the run is destroyed all the same."""
    if name_problem(spec.name):
        return  # a name becomes a file
    folder = _folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = folder / f".{spec.name}.{os.getpid()}"
        staged.write_bytes(msgspec.json.encode(spec))
        staged.replace(folder / f"{spec.name}.json")
        for path in _newest_first()[KEPT:]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def find(target: str = "") -> tuple[RunSpec, ...]:
    """Specs of a run, or of all runs of an experiment; without a name the one that was destroyed last.

    Raises:
        NotFoundError: there is none; names those that are kept.
    """
    found = [spec for path in _newest_first() if (spec := _read(path)) is not None]
    if not target and found:
        return (found[0],)
    chosen = [spec for spec in found if spec.name == target] or [
        spec for spec in found if spec.experiment == target
    ]
    if not chosen:
        names = ", ".join(spec.name for spec in found[:12])
        kept = f"Those that are kept: {names}." if found else "None has been destroyed from here yet."
        what = f"No destroyed run is named {target}." if target else "There is no destroyed run."
        raise NotFoundError(what, kept)
    return tuple(sorted(chosen, key=lambda spec: (spec.seed, spec.name)))


def _folder() -> Path:
    return state_dir() / "last-runs"


def _newest_first() -> list[Path]:
    try:
        paths = [(path.stat().st_mtime, path.name, path) for path in _folder().glob("*.json")]
    except OSError:
        return []
    return [path for _, _, path in sorted(paths, reverse=True)]


def _read(path: Path) -> RunSpec | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunSpec)
    except (OSError, msgspec.MsgspecError):  # of another version: it cannot be launched by this one
        return None
