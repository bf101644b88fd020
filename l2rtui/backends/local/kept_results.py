"""Results on this machine: kept results of destroyed runs, and data of existing runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from l2rtui.backends.local import run_folders, state_files
from l2rtui.backends.local.paths import REMOVED, STAGED, RunFolder, StateFolder
from l2rtui.backends.local.records import RunRecord
from l2rtui.domain.volume import KeptResult
from l2rtui.errors import BackendError, NotFoundError, RefusedError

Runs = Sequence[tuple[RunFolder, RunRecord | None]]


class LocalResults:
    """The results in the state folder (``backends.base.ResultStore``)."""

    def __init__(self, root: StateFolder) -> None:
        self._root = root

    async def list(self) -> tuple[KeptResult, ...]:
        """Return kept results, newest first, and the data that existing runs have written so far."""
        return await asyncio.to_thread(self._list)

    async def remove(self, ids: Sequence[str]) -> int:
        """Delete kept results; return their size in bytes.

        Raises:
            NotFoundError: No results have this id. RefusedError: A run uses them. BackendError: Something could not
                be deleted.
        """
        return await asyncio.to_thread(self._remove, ids)

    def _list(self) -> tuple[KeptResult, ...]:
        runs = self._runs()
        results = [self._kept(path, runs) for path in self._folders(self._root.results)]
        results += [_of_run(folder) for folder, _ in runs if folder.data.is_dir()]
        return tuple(sorted(results, key=lambda result: -result.changed))

    def _runs(self) -> Runs:
        """Return the existing runs, including runs of other nodes that share the folder."""
        folders = map(RunFolder, self._folders(self._root.runs))
        return [(folder, state_files.read_valid(folder.record, RunRecord)) for folder in folders]

    def _folders(self, parent: Path) -> Iterator[Path]:
        try:
            entries = list(parent.iterdir())
        except FileNotFoundError:  # nothing was launched or kept yet
            return
        except OSError as error:
            raise BackendError(f"{parent} cannot be read: {error.strerror}.") from error
        yield from (path for path in entries if path.is_dir() and not path.name.startswith((REMOVED, STAGED)))

    def _kept(self, path: Path, runs: Runs) -> KeptResult:
        size, changed = _measured(path)
        return KeptResult(path.name, path.name.rpartition("-")[0], size, changed, str(path), _users(path, runs))

    def _remove(self, ids: Sequence[str]) -> int:
        freed = 0
        for name in ids:
            path = self._root.results / name
            if Path(name).name != name or not path.is_dir():
                raise NotFoundError(f"There are no kept results {name}.", "See `l2rtui results ls`.")
            # Checked again for each: a run may have started from them since the confirmation.
            if users := _users(path, self._runs()):
                raise RefusedError(f"{name} is used by {', '.join(users)}.", "Destroy the run first.")
            size, _ = _measured(path)
            gone = self._root.results / f"{REMOVED}{name}-{os.getpid()}"
            try:
                path.rename(gone)  # one step, so that no reader sees a partly deleted folder
            except OSError as error:
                raise BackendError(f"{path} cannot be removed: {error.strerror}.") from error
            if problem := run_folders.remove(gone):
                raise BackendError(f"{name} is half removed: {problem}.", f"Remove {gone} by hand.")
            freed += size
        return freed


def _of_run(folder: RunFolder) -> KeptResult:
    size, changed = _measured(folder.data)
    return KeptResult(folder.name, folder.name, size, changed, str(folder.data), (folder.name,))


def _users(path: Path, runs: Runs) -> tuple[str, ...]:
    """Return the existing runs whose specs name the folder, such as in ``train.resume_from``."""
    texts = ((folder.name, record.spec) for folder, record in runs if record is not None)
    return tuple(name for name, spec in texts if path.name in f"{spec.train} {spec.sets} {spec.env}")


def _measured(path: Path) -> tuple[int, float]:
    """Return the bytes on disk below a folder, and the time of its last change; files removed meanwhile are
    skipped.
    """
    size, changed = 0, 0.0
    for folder, _, files in os.walk(path):
        for name in ("", *files):
            try:
                status = os.lstat(os.path.join(folder, name))  # noqa: PTH118  (ten thousand files of checkpoints)
            except OSError:
                continue
            size += status.st_blocks * 512
            changed = max(changed, status.st_mtime)
    return size, changed
