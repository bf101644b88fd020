"""Shared-memory ring for segments of a worker on the learner's own host, instead of the socket.

The slot of segment n is `n % slots`. A slot has room for the longest segment, and its pages cost memory only where
they are written. The learner's credit never exceeds its stored segments by more than `slots`, so a slot is free
when its turn comes and no lock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import RingOffer
from runtime.exchange.segments import contiguous_pieces
from runtime.exchange.transport import shared_memory
from runtime.exchange.transport.shared_memory import SharedMemoryOwner, SharedMemoryView


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
            place=shared_memory.host_identity(),
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
