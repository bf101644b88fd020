"""Shared memory of two processes on one host: sealed anonymous files, opened by process id and descriptor.

The owner creates a file with memfd_create(2); the reader opens it as `/proc/PID/fd/N`, which the kernel only
permits to the same user in the same PID namespace. So the file has no name in any folder, and `kill -9` leaves
nothing behind. The seals matter: reading beyond the end of a file that its owner truncated would kill the reader
with SIGBUS.

Shared-memory ring for segments of a worker on the learner's own host, instead of the socket.

The slot of segment n is `n % slots`. A slot has room for the longest segment, and its pages cost memory only where
they are written. The learner's credit never exceeds its stored segments by more than `slots`, so a slot is free
when its turn comes and no lock is needed.

Shared-memory weights: written once by the learner, read in place by all peers on its host.

The memory has three slots, and version v is in slot `v % 3`. The page before them has 64-bit words: the version in
each slot (0 while it is written) and the newest complete version. A reader checks the slot's word again after using
the weights, for a copy or for a step. If it has changed, the result may mix two versions and is recomputed from the
newest. This is a sequence lock (seqlock, as in the Linux kernel): the writer never waits, and a reader gets the
newest version, which may be newer than the announced one. Weights that are used in place occupy the processor's
shared cache once for all workers of a host.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import secrets
import stat
import struct
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import RingOffer, SharedWeights
from runtime.exchange.segments import contiguous_pieces

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


class RingWriter:
    """Worker's end of a ring. Raises SharedMemoryError if the system has no sealed memory files."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self._memory = SharedMemoryOwner(slots * slot_bytes)
        self._view = self._memory.content

    def message(self) -> RingOffer:
        """Return the offer to the learner; the session fills in the epoch."""
        return RingOffer(
            epoch=0,
            place=host_identity(),
            pid=os.getpid(),
            descriptor=self._memory.descriptor,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
            nonce=self._memory.nonce,
        )

    def put(self, seq: int, arenas: Sequence[SegmentArena]) -> None:
        """Copy the arenas of the segments into their slots, starting with segment number `seq`."""
        start = seq % self.slots * self.slot_bytes
        if all(arena.nbytes == self.slot_bytes for arena in arenas):
            # They fill their slots, so arenas that are adjacent in memory are adjacent in the ring as well.
            for piece in contiguous_pieces(arenas):
                self._view[start : start + piece.nbytes] = piece
                start += piece.nbytes
            return
        for arena in arenas:
            self._view[start : start + arena.nbytes] = arena.view
            start += self.slot_bytes

    def close(self) -> None:
        """Unmap the memory; the learner's mapping stays valid until it is closed too."""
        self._memory.close()


class RingReader:
    """Learner's end of a ring. Raises SharedMemoryError if it cannot be mapped or is not as described."""

    def __init__(self, ring: RingOffer) -> None:
        self._slots, self.slot_bytes = ring.slots, ring.slot_bytes
        size = ring.slots * ring.slot_bytes
        self._memory = SharedMemoryView(ring.place, ring.pid, ring.descriptor, ring.nonce, size)
        self._view = self._memory.content

    def arena(self, seq: int, segments: int) -> memoryview:
        """Return the slots of the segments from `seq` on; empty if they would exceed the ring."""
        start = seq % self._slots
        if start + segments > self._slots:
            return self._view[:0]  # its size is then wrong, and the membership machine counts a misfit
        return self._view[start * self.slot_bytes : (start + segments) * self.slot_bytes]

    def close(self) -> None:
        """Unmap the memory."""
        self._memory.close()


SLOTS: Final = 3
"""One is being written, one is being read, and the newest stays complete."""
SHARED_WEIGHTS_BYTES: Final = 64 * 1024
"""Smallest weights for which shared memory is used; below it the answer itself is as fast."""
_WORD: Final = struct.Struct("<Q")
_NEWEST: Final = NONCE_BYTES + SLOTS * _WORD.size
_ATTEMPTS: Final = 100


class SharedWeightsWriter:
    """Learner's end, for weights of one size. Raises SharedMemoryError if shared memory is not available."""

    def __init__(self, floats: int) -> None:
        self._memory = SharedMemoryOwner(SLOTS * 4 * floats)
        self._slots = np.frombuffer(self._memory.content, dtype="<f4").reshape(SLOTS, floats)

    def put(self, version: int, weights: NDArray[np.float32]) -> None:
        """Write the weights of a version, which must be higher than all earlier ones."""
        slot = version % SLOTS
        # The order of these writes is the protocol. x86 makes stores visible in their order; a weakly ordered
        # processor (ARM) would need barriers here, which Python does not offer.
        self._mark(NONCE_BYTES + slot * _WORD.size, 0)
        self._slots[slot] = weights
        self._mark(NONCE_BYTES + slot * _WORD.size, version)
        self._mark(_NEWEST, version)

    def _mark(self, offset: int, version: int) -> None:
        _WORD.pack_into(self._memory.head, offset, version)

    def message(self, epoch: int, version: int) -> SharedWeights:
        """Return the answer with which a peer finds the memory."""
        return SharedWeights(
            epoch=epoch,
            policy_version=version,
            floats=self._slots.shape[1],
            pid=os.getpid(),
            descriptor=self._memory.descriptor,
            nonce=self._memory.nonce,
        )

    def close(self) -> None:
        """Unmap the memory."""
        del self._slots  # a view of the mapping, which could not be closed while it exists
        self._memory.close()


class SharedWeightsReader:
    """Peer's end. Raises SharedMemoryError if the memory cannot be mapped or is not as described."""

    def __init__(self, shared: SharedWeights, floats: int) -> None:
        if shared.floats != floats:
            raise SharedMemoryError(f"weights of {shared.floats} values for a policy of {floats}")
        self.nonce = shared.nonce
        size = SLOTS * 4 * shared.floats
        host = host_identity()
        self._memory = SharedMemoryView(host, shared.pid, shared.descriptor, shared.nonce, size)
        self._slots = np.frombuffer(self._memory.content, dtype="<f4").reshape(SLOTS, shared.floats)

    def version(self) -> int:
        """Return the newest complete version; 0 before the first."""
        return self._word(_NEWEST)

    def newest(self) -> tuple[int, NDArray[np.float32]]:
        """Return the newest version and a view of its weights, valid as long as `holds(version)`.

        Raises SharedMemoryError if the writer repeatedly overtakes the reader.
        """
        for _ in range(_ATTEMPTS):
            version = self._word(_NEWEST)
            if version and self.holds(version):
                return version, self._slots[version % SLOTS]
        raise SharedMemoryError("the learner writes faster than this process reads")

    def holds(self, version: int) -> bool:
        """Return true until the learner starts overwriting the weights of a version."""
        return self._word(NONCE_BYTES + version % SLOTS * _WORD.size) == version

    def read(self, into: NDArray[np.float32]) -> int:
        """Copy the newest weights and return their version.

        Raises SharedMemoryError if the writer repeatedly overtakes the reader; `into` is then undefined.
        """
        for _ in range(_ATTEMPTS):
            version, weights = self.newest()
            np.copyto(into, weights)
            if self.holds(version):
                return version
        raise SharedMemoryError("the learner writes faster than this process reads")

    def _word(self, offset: int) -> int:
        return int(_WORD.unpack_from(self._memory.head, offset)[0])

    def close(self) -> None:
        """Unmap the memory."""
        del self._slots  # a view of the mapping, which could not be closed while it exists
        self._memory.close()
