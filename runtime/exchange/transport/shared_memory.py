"""Shared memory of two processes on one host: sealed anonymous files, opened by process id and descriptor.

The owner creates a file with memfd_create(2); the reader opens it as `/proc/PID/fd/N`, which the kernel only
permits to the same user in the same PID namespace. So the file has no name in any folder, and `kill -9` leaves
nothing behind. The seals matter: reading beyond the end of a file that its owner truncated would kill the reader
with SIGBUS.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import stat
import sys
from typing import Final

HEAD_BYTES: Final = mmap.PAGESIZE
"""Page before the content; it starts with the nonce by which a reader recognises the file."""
LARGEST_BYTES: Final = 2 * 1024**3
"""Largest content that is mapped."""
NONCE_BYTES: Final = 32


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in malloc.h."""
_KEPT_BYTES: Final = 32 * 1024 * 1024


def keep_freed() -> None:
    """Let glibc retain some freed megabytes for the next allocation.

    By default it returns large blocks to the kernel immediately: each message of half a megabyte then causes a
    hundred page faults, which cost as much as copying it. Has no effect with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


class SharedMemoryError(ValueError):
    """The memory cannot be shared here; all data goes through the sockets."""


def host_identity() -> str:
    """Return the kernel's boot id and the PID namespace: equal in two processes that see each other in `/proc`.

    Empty if that file system is missing. The messages carry it as `place`.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _file_bytes(content_bytes: int) -> int:
    """Return the size of the file for `content_bytes`. Raises SharedMemoryError if it is out of bounds."""
    if sys.platform != "linux":
        raise SharedMemoryError("this system has no sealed memory files")
    if not 0 < content_bytes <= LARGEST_BYTES:
        raise SharedMemoryError(f"memory of {content_bytes} bytes is beyond the bounds")
    return HEAD_BYTES + content_bytes


class SharedMemoryOwner:
    """Memory that this process writes and others read. Raises SharedMemoryError if it is not available."""

    def __init__(self, content_bytes: int) -> None:
        size = _file_bytes(content_bytes)
        self.nonce = secrets.token_hex(NONCE_BYTES // 2)
        try:
            self.descriptor = os.memfd_create("l2r", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SharedMemoryError(str(error)) from error
        try:
            os.ftruncate(self.descriptor, size)
            # Sealed against further seals too: otherwise another process could add F_SEAL_WRITE and stop the owner.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
            self._map = mmap.mmap(self.descriptor, size)
        except OSError as error:
            os.close(self.descriptor)
            raise SharedMemoryError(str(error)) from error
        self.head = memoryview(self._map)[:HEAD_BYTES]
        self.content = memoryview(self._map)[HEAD_BYTES:]
        self.head[:NONCE_BYTES] = self.nonce.encode()

    def close(self) -> None:
        """Unmap the memory; a reader's mapping stays valid until it is closed too."""
        with contextlib.suppress(BufferError):  # a NumPy view still exists: the memory is freed with it
            self.head.release()
            self.content.release()
            self._map.close()
        os.close(self.descriptor)


class SharedMemoryView:
    """Read-only mapping of another process's memory. Raises SharedMemoryError if it is not as described."""

    def __init__(self, host: str, pid: int, descriptor: int, nonce: str, content_bytes: int) -> None:
        if not host or host != host_identity():
            raise SharedMemoryError("the other process runs on another host")
        size = _file_bytes(content_bytes)
        path = f"/proc/{pid}/fd/{descriptor}"
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            # `pid` and `descriptor` come from a peer and may name anything that this user can open. Opening a pipe
            # or a device could block or have side effects, so the type is checked first.
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
                raise SharedMemoryError("it is not a memory file")
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SharedMemoryError(str(error)) from error
        try:
            if os.fstat(file).st_size != size or fcntl.fcntl(file, fcntl.F_GET_SEALS) & needed != needed:
                raise SharedMemoryError("it is not sealed, or of another size")
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise SharedMemoryError(str(error)) from error
        finally:
            os.close(file)  # the mapping outlives the descriptor
        self.nonce = nonce
        self.head = memoryview(self._map)[:HEAD_BYTES]
        self.content = memoryview(self._map)[HEAD_BYTES:]
        if not secrets.compare_digest(bytes(self.head[:NONCE_BYTES]), nonce.encode()):
            self.close()
            raise SharedMemoryError("it is another process's memory")

    def close(self) -> None:
        """Unmap the memory."""
        with contextlib.suppress(BufferError):  # a NumPy view still exists: the memory is freed with it
            self.head.release()
            self.content.release()
            self._map.close()
