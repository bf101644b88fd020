"""Files shared between processes: written atomically (rename(2)), and locked (flock(2)) until the holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from runtime.base.descriptors import PATIENCE_SECONDS, with_reserve

TEMPORARY_PREFIX: Final = ".tmp-"
"""Prefix of unfinished files; the only writer of a folder may delete them."""
CHUNK_BYTES: Final = 8 * 1024 * 1024

ByteProgress = Callable[[int], None]
"""Called with the number of bytes moved since its last call; from any thread."""


@contextlib.contextmanager
def replacement(path: Path, *, is_shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is renamed to `path` if the block ends without an error.

    Args:
        is_shared: Several processes may write the same file concurrently, so each needs its own temporary name.
            Otherwise the name is fixed, and the next process overwrites the remains of a killed one.
    """
    suffix = f".{os.urandom(6).hex()}" if is_shared else ""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}{suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_atomic(
    path: Path, data: bytes, *, is_durable: bool = True, is_shared: bool = False, mode: int | None = None
) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Args:
        is_durable: The file is on disk when this returns. Otherwise it survives the end of the process, but perhaps
            not a power failure.
        is_shared: As in `replacement`.
        mode: Permissions, set before the first byte is written; None for the umask's default.

    Raises:
        OSError: The file could not be written; the old one is unchanged.
    """
    with replacement(path, is_shared=is_shared) as temporary:
        # O_EXCL with a random name: in a folder that others may write to, a link under that name is refused.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_shared else os.O_TRUNC)
        permissions = 0o666 if mode is None else 0o600
        with os.fdopen(_opened(temporary, flags, permissions), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
    if is_durable:
        sync_folder(path.parent)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its user may read (mode 0600), creating its folder; a symbolic link stays a link.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    path = path.expanduser().resolve()  # dotfiles are often links into a repository
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, text.encode(), is_shared=True, mode=0o600)


def copy_atomic(source: Path, target: Path, progress: ByteProgress = lambda _: None) -> None:
    """Copy a file so that `target` is either complete and on disk, or unchanged. Raises OSError."""
    with replacement(target) as temporary:
        with source.open("rb") as reader, temporary.open("wb") as writer:
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
                progress(len(chunk))
            writer.flush()
            os.fsync(writer.fileno())
        with contextlib.suppress(OSError):  # network file systems may refuse a change of mode
            # Not shutil.copymode: that module loads compressors, and small supervisors import this one.
            temporary.chmod(stat.S_IMODE(source.stat().st_mode))


def _opened(path: Path, flags: int, permissions: int = 0o777) -> int:
    """Open a file for what must not be lost: it waits until connections have left it a descriptor."""
    return with_reserve(lambda: os.open(path, flags, permissions), patience_seconds=PATIENCE_SECONDS)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder: only then does a rename survive a power failure (fsync(2))."""
    descriptor = _opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
