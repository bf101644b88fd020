"""Folders of runs: sockets, results (also those kept after a destroy), and their removal."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from l2rtui.backends.local import state_files
from l2rtui.backends.local.paths import REMOVED, STAGED, RunFolder, StateFolder
from l2rtui.backends.local.state_files import RunRecord
from l2rtui.domain.volume import KeptResult
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_PREFIX = "l2r-"
_LINK = "run"
_SOCKET_PATH_BYTES = 103
"""Longest path of a Unix socket on every system: 104 bytes on macOS and 108 on Linux, minus the final NUL."""


def make_socket_dir(folder: RunFolder, uid: str, inner: str = "") -> Path:
    """Choose the folder of the run's sockets: the run's own, or a short one with mode 0700 if paths are long.

    Args:
        inner: Longest name of a folder within it that contains sockets.

    Raises:
        OSError: The short one cannot be created, or exists: another user who created it could replace the sockets.
    """
    if len(os.fsencode(folder.sockets / inner / "model.sock")) <= _SOCKET_PATH_BYTES:
        return folder.sockets
    # mkdir without exist_ok: in a folder that all users share, an existing one may be a trap.
    path = Path(tempfile.gettempdir()) / f"{_PREFIX}{uid[:12]}"
    path.mkdir(mode=0o700)
    (path / _LINK).symlink_to(folder.path)
    return path


def short_socket_dirs() -> dict[Path, Path]:
    """Return all short socket folders of this user, each with the folder of its run."""
    folders = {}
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            # Foreign folders are neither read nor removed; /tmp is shared by all users.
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            folders[path] = (path / _LINK).readlink()
        except OSError:  # removed meanwhile, or another program's
            continue
    return folders


def orphaned_socket_dirs(runs: Path) -> dict[Path, Path]:
    """Return short socket folders of runs that were in this folder and no longer exist, each with its run's
    folder.
    """
    return {path: run for path, run in short_socket_dirs().items() if run.parent == runs and not run.exists()}


def socket_dirs(folder: RunFolder) -> list[Path]:
    """Return the folders of a run's sockets that exist."""
    short = [path for path, run in short_socket_dirs().items() if run == folder.path]
    return [*short, folder.sockets] if folder.sockets.exists() else short


def sweep(runs: Path) -> None:
    """Delete folders of failed launches and destroys; call it with the lock held, which their creation needs
    too.
    """
    for path in (*runs.glob(f"{STAGED}*"), *runs.glob(f"{REMOVED}*")):
        remove(path)
    for path in orphaned_socket_dirs(runs):
        remove(path)


def remove(*paths: Path) -> str:
    """Delete folders with their contents; return why one of them remains, otherwise an empty string."""
    problem = ""
    for path in paths:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror or error}"
    return problem


def results_of(root: StateFolder, run: str) -> Path | None:
    """Return the folder with a run's checkpoints: its data, or the newest kept results of that name."""
    folder = root.run(run)
    if record := state_files.read_valid(folder.record, RunRecord):
        return Path(record.volume) if record.volume else folder.data
    # Named by `destroy`: the name of the run and the start of its uid.
    left = [path for path in root.results.glob(f"{run}-*") if path.name.rpartition("-")[0] == run]
    return max(left, key=lambda path: path.stat().st_mtime, default=None)


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
            if problem := remove(gone):
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
