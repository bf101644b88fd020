"""Folders outside and around a run's own: where its sockets are, and how all of it is removed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from l2rtui.backends.local.layout import REMOVED, STAGED, RunFolder

_PREFIX = "l2r-"
_LINK = "run"
_SOCKET_PATH_BYTES = 103
"""Longest path of a Unix socket that every system takes: 104 on macOS and 108 on Linux, less the end mark."""


def make_socket_dir(folder: RunFolder, uid: str, inner: str = "") -> Path:
    """Choose the folder of the run's sockets: the run's own, or a short one of ours alone where paths are long.

    Args:
        inner: Longest name of a folder within it that holds sockets.

    Raises:
        OSError: the short one cannot be made, or exists: whoever made it could read and replace the sockets.
    """
    if len(os.fsencode(folder.sockets / inner / "model.sock")) <= _SOCKET_PATH_BYTES:
        return folder.sockets
    path = Path(tempfile.gettempdir()) / f"{_PREFIX}{uid[:12]}"
    path.mkdir(mode=0o700)
    (path / _LINK).symlink_to(folder.path)
    return path


def short_socket_dirs() -> dict[Path, Path]:
    """All short socket folders of this user, each with the run's folder that it serves."""
    found = {}
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            found[path] = (path / _LINK).readlink()
        except OSError:  # removed meanwhile, or another program's
            continue
    return found


def socket_dirs(folder: RunFolder) -> list[Path]:
    """The folders of a run's sockets that exist."""
    short = [path for path, run in short_socket_dirs().items() if run == folder.path]
    return [*short, folder.sockets] if folder.sockets.exists() else short


def sweep(runs: Path) -> None:
    """Delete what broken launches and destroys have left; with the lock held, under which alone they are made."""
    for path in (*runs.glob(f"{STAGED}*"), *runs.glob(f"{REMOVED}*")):
        remove(path)
    for path, target in short_socket_dirs().items():
        if target.parent == runs and not target.exists():
            remove(path)


def remove(*paths: Path) -> str:
    """Delete folders and all they hold; why one of them stays, or nothing."""
    problem = ""
    for path in paths:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass  # somebody else was faster
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror or error}"
    return problem
