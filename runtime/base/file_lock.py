"""Locks on files and folders between processes (flock(2)); the kernel releases them when their process ends."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.1


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder exclusively until the descriptor is closed; return whether that worked.

    Raises OSError if the file system does not support locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def lock_folder(
    folder: Path, timeout_seconds: float, is_cancelled: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Lock a folder against other processes that do the same, using its file ``.lock``.

    Waits up to `timeout_seconds`, since a process that is being replaced may need time to end. The block runs
    without the lock once `is_cancelled` is true, and on file systems without locks.

    Raises BlockingIOError if another process holds the lock for longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_seconds
    # The file stays when the lock is released: otherwise a process could lock a file that another one removes.
    with (folder / ".lock").open("w") as file:
        while not is_cancelled():
            try:
                if try_lock(file.fileno()):
                    break
            except OSError:
                break  # no locks here: only the launcher keeps two learners apart
            if time.monotonic() > deadline:
                raise BlockingIOError(f"the folder {folder} is in use by another process; end that one first")
            time.sleep(POLL_SECONDS)
        yield
