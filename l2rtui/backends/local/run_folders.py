"""Socket folders of runs, their results, and the removal of all folders of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from l2rtui.backends.local import state_files
from l2rtui.backends.local.paths import REMOVED, STAGED, RunFolder, StateFolder
from l2rtui.backends.local.records import RunRecord

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
