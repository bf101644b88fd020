"""Segments of a worker on the learner's own host: through memory that both map, and not through a socket.

The worker makes a memory file without a name (memfd), seals its size, and tells the learner where it is; the
learner opens it through `/proc/PID/fd/N`, which the kernel allows to the same user in the same process namespace
and to nobody else. So nothing lies in a folder, nothing is left behind by `kill -9`, and where the two do not
share a kernel the learner just says no. The seals matter: a file that could be cut short would end the learner
with SIGBUS when it reads.

The slot of segment n is `n % slots`. The learner never lets a worker send more than `slots` beyond what it has
taken, so a slot is free when its turn comes and no lock is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from typing import Final

from runtime.arenas import stretches
from runtime.framing import Arena
from runtime.messages import Ring

HEAD_BYTES: Final = mmap.PAGESIZE
"""Before the first slot: the nonce that shows the learner that it has opened the right file."""
LARGEST_BYTES: Final = 2 * 1024**3
"""A learner maps no ring above this."""
_NONCE_BYTES: Final = 32


class RingError(ValueError):
    """There is no such ring here; the segments go through the socket."""


def place() -> str:
    """Return what two processes have in common exactly if they see each other's files: kernel and namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


class RingWriter:
    """A worker's end. Raises RingError where the system has no sealed memory files."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self.nonce = secrets.token_hex(_NONCE_BYTES // 2)
        if sys.platform != "linux":
            raise RingError("this system has no sealed memory files")
        size = HEAD_BYTES + slots * slot_bytes
        if not 0 < slots * slot_bytes <= LARGEST_BYTES:
            raise RingError(f"a ring of {size} bytes is beyond the bounds")
        try:
            self._file = os.memfd_create("l2r-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise RingError(str(error)) from error
        try:
            os.ftruncate(self._file, size)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            os.close(self._file)
            raise RingError(str(error)) from error
        self._map[:_NONCE_BYTES] = self.nonce.encode()
        self._view = memoryview(self._map)

    def message(self) -> Ring:
        """Return what the learner has to know."""
        return Ring(
            epoch=0,
            place=place(),
            pid=os.getpid(),
            descriptor=self._file,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
            nonce=self.nonce,
        )

    def put(self, seq: int, arenas: Sequence[Arena]) -> None:
        """Copy the arenas of the segments from number `seq` on into their slots."""
        at = HEAD_BYTES + seq % self.slots * self.slot_bytes
        for piece in stretches(arenas):
            self._view[at : at + piece.nbytes] = piece
            at += piece.nbytes

    def close(self) -> None:
        """Let go of the memory; the learner's mapping stays whole until it lets go too."""
        self._view.release()
        self._map.close()
        os.close(self._file)


class RingReader:
    """A learner's end of the ring that a worker told of. Raises RingError if it is not what was told."""

    def __init__(self, ring: Ring) -> None:
        if sys.platform != "linux" or not ring.place or ring.place != place():
            raise RingError("the worker runs on another host")
        size = HEAD_BYTES + ring.slots * ring.slot_bytes
        if not 0 < ring.slots * ring.slot_bytes <= LARGEST_BYTES:
            raise RingError(f"a ring of {size} bytes is beyond the bounds")
        path = f"/proc/{ring.pid}/fd/{ring.descriptor}"
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  (never open a pipe or a device)
                raise RingError("it is no memory file")
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RingError(str(error)) from error
        try:
            if os.fstat(file).st_size != size or fcntl.fcntl(file, fcntl.F_GET_SEALS) & needed != needed:
                raise RingError("it is not sealed, or of another size")
            self._map = mmap.mmap(file, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise RingError(str(error)) from error
        finally:
            os.close(file)
        self._slots, self._slot_bytes = ring.slots, ring.slot_bytes
        self._view = memoryview(self._map)
        if not secrets.compare_digest(bytes(self._view[:_NONCE_BYTES]), ring.nonce.encode()):
            self.close()
            raise RingError("it is another process's memory")

    def arena(self, seq: int, size: int) -> memoryview:
        """Return `size` bytes from the slot of segment `seq` on; empty if the ring ends before."""
        at = seq % self._slots * self._slot_bytes
        if at + size > self._slots * self._slot_bytes:
            return self._view[:0]
        return self._view[HEAD_BYTES + at : HEAD_BYTES + at + size]

    def close(self) -> None:
        """Let go of the memory."""
        with contextlib.suppress(BufferError):  # a view is still out: the memory goes with it
            self._view.release()
            self._map.close()
