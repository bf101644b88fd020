"""Memory that two processes of one host share: sealed files without a name, found by process and descriptor.

Whoever makes one (memfd) tells the other where it is; the other opens it through `/proc/PID/fd/N`, which the kernel
allows to the same user in the same process namespace and to nobody else. So nothing lies in a folder, nothing is
left behind by `kill -9`, and where the two do not share a kernel there is just none. The seals matter: a file that
could be cut short would end its reader with SIGBUS.
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
"""Before the content: the nonce that shows the reader that it has opened the right file."""
LARGEST_BYTES: Final = 2 * 1024**3
"""Nobody maps more than this."""
NONCE_BYTES: Final = 32


_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""Of glibc's mallopt."""
_KEPT_BYTES: Final = 32 * 1024 * 1024


def keep_freed() -> None:
    """Let glibc keep what was freed, some megabytes, for what is needed next.

    It gives large pieces back to the system at once and asks for them again: for each message of half a megabyte
    that is a hundred page faults, which cost as much as to copy it. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


class SharedMemoryError(ValueError):
    """There is no such memory here; everything goes through the sockets."""


def place() -> str:
    """Return what two processes have in common exactly if they see each other's files: kernel and namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _whole(content_bytes: int) -> int:
    """Return the size of a file with so much content."""
    if sys.platform != "linux":
        raise SharedMemoryError("this system has no sealed memory files")
    if not 0 < content_bytes <= LARGEST_BYTES:
        raise SharedMemoryError(f"memory of {content_bytes} bytes is beyond the bounds")
    return HEAD_BYTES + content_bytes


class Offered:
    """Memory that this process writes and tells others of. Raises SharedMemoryError where there is none."""

    def __init__(self, content_bytes: int) -> None:
        size = _whole(content_bytes)
        self.nonce = secrets.token_hex(NONCE_BYTES // 2)
        try:
            self.descriptor = os.memfd_create("l2r", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise SharedMemoryError(str(error)) from error
        try:
            os.ftruncate(self.descriptor, size)
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
        """Let go of the memory; another's mapping stays whole until it lets go too."""
        with contextlib.suppress(BufferError):  # a view is still out: the memory goes with it
            self.head.release()
            self.content.release()
            self._map.close()
        os.close(self.descriptor)


class Opened:
    """Memory that another process told of, to be read. Raises SharedMemoryError if it is not what was told."""

    def __init__(self, place_: str, pid: int, descriptor: int, nonce: str, content_bytes: int) -> None:
        if not place_ or place_ != place():
            raise SharedMemoryError("the other process runs on another host")
        size = _whole(content_bytes)
        path = f"/proc/{pid}/fd/{descriptor}"
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  (never open a pipe or a device)
                raise SharedMemoryError("it is no memory file")
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
            os.close(file)
        self.nonce = nonce
        self.head = memoryview(self._map)[:HEAD_BYTES]
        self.content = memoryview(self._map)[HEAD_BYTES:]
        if not secrets.compare_digest(bytes(self.head[:NONCE_BYTES]), nonce.encode()):
            self.close()
            raise SharedMemoryError("it is another process's memory")

    def close(self) -> None:
        """Let go of the memory."""
        with contextlib.suppress(BufferError):  # a view is still out: the memory goes with it
            self.head.release()
            self.content.release()
            self._map.close()
