"""Files that are whole or not there, and folders that one process holds alone (stdlib only)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def write_whole(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    With `durable` it is on the disk when this returns; without, it survives the end of the process but perhaps
    not the loss of power. Raises OSError and leaves the old file.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def held(
    folder: Path, what: str, patience_seconds: float, give_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold `folder` against other processes that hold it; the hold ends with the process, however it ends.

    Raises BlockingIOError with a sentence about `what` if another has it for longer than `patience_seconds`: a
    replaced process may need a moment to go. `give_up` ends the waiting, and then nothing is held.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_seconds
    with (folder / ".lock").open("w") as file:
        while not give_up():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BlockingIOError(
                        f"{what} {folder} is in use by another process; end that one first"
                    ) from None
            except OSError:
                break  # a file system without locks: the launcher alone keeps two learners apart
            time.sleep(0.1)
        yield
