"""Markers of steps: files on the run's shared volume, `NAME.done` and `NAME.failed`.

They are polled: on a network volume no event reports a change by another machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Final

from runtime.base import bounded_json
from runtime.base.atomic_files import write_atomic
from runtime.base.errors import SetupError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked_name(name: str) -> str:
    """Return the name of a step. Raises SetupError if it is not a valid file name."""
    if not _NAME.fullmatch(name):
        raise SetupError(f"the step's name {name!r} must be 1 to 63 letters, digits, '.', '_' and '-'")
    return name


class StepMarkers:
    """Markers of one run. A failure counts only in the launch that wrote it, a success in every later launch."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id
        folder.mkdir(parents=True, exist_ok=True)

    def is_done(self, name: str) -> bool:
        """Return True if a step is done."""
        return self._path(name, "done").exists()

    def is_part_done(self, name: str, part: int) -> bool:
        """Return True if one part of a step is done."""
        return (self._folder / name / f"{part}.done").exists()

    def has_failed(self, name: str) -> bool:
        """Return True if a step failed in this launch of the run."""
        try:
            return bool(bounded_json.loads(self._path(name, "failed").read_bytes())["run_id"] == self._run_id)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def begin(self, name: str) -> None:
        """Remove the failure marker of a step that runs again."""
        self._path(name, "failed").unlink(missing_ok=True)

    def done(self, name: str, part: int, parts: int, seconds: float) -> bool:
        """Mark a step, or a part of it, as done. Return True if all its parts are done."""
        if parts > 1:
            (self._folder / name).mkdir(exist_ok=True)
            self._write(self._folder / name / f"{part}.done", 0, seconds)
            # Each part checks for the others after writing its own marker, so the last one always sees all.
            if not all(self.is_part_done(name, index) for index in range(parts)):
                return False
        self._write(self._path(name, "done"), 0, seconds)
        with contextlib.suppress(OSError):
            self._path(name, "failed").unlink(missing_ok=True)
        return True

    def failed(self, name: str, code: int, seconds: float) -> None:
        """Mark a step as failed in this launch, unless it is done."""
        if not self.is_done(name):
            self._write(self._path(name, "failed"), code, seconds)

    def _path(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{kind}"

    def _write(self, path: Path, code: int, seconds: float) -> None:
        """Write a marker; several processes may write the same one, each atomically."""
        times = {"seconds": round(seconds, 3), "time": round(time.time(), 3)}
        facts = {"run_id": self._run_id, "exit_code": code, **times}
        write_atomic(path, json.dumps(facts).encode(), is_shared=True)
