"""Segments of a worker on the learner's own host: through memory that both map, and not through a socket.

The slot of segment n is `n % slots`. The learner never lets a worker send more than `slots` beyond what it has
taken, so a slot is free when its turn comes and no lock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from runtime import memory
from runtime.arenas import stretches
from runtime.framing import Arena
from runtime.memory import Offered, Opened
from runtime.messages import Ring


class RingWriter:
    """A worker's end. Raises SharedMemoryError where the system has no sealed memory files."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self._memory = Offered(slots * slot_bytes)
        self._view = self._memory.content

    def message(self) -> Ring:
        """Return what the learner has to know."""
        return Ring(
            epoch=0,
            place=memory.place(),
            pid=os.getpid(),
            descriptor=self._memory.descriptor,
            slots=self.slots,
            slot_bytes=self.slot_bytes,
            nonce=self._memory.nonce,
        )

    def put(self, seq: int, arenas: Sequence[Arena]) -> None:
        """Copy the arenas of the segments from number `seq` on into their slots."""
        at = seq % self.slots * self.slot_bytes
        for piece in stretches(arenas):
            self._view[at : at + piece.nbytes] = piece
            at += piece.nbytes

    def close(self) -> None:
        """Let go of the memory; the learner's mapping stays whole until it lets go too."""
        self._memory.close()


class RingReader:
    """A learner's end of the ring that a worker told of. Raises SharedMemoryError if it is not what was told."""

    def __init__(self, ring: Ring) -> None:
        self._slots, self._slot_bytes = ring.slots, ring.slot_bytes
        size = ring.slots * ring.slot_bytes
        self._memory = Opened(ring.place, ring.pid, ring.descriptor, ring.nonce, size)
        self._view = self._memory.content

    def arena(self, seq: int, size: int) -> memoryview:
        """Return `size` bytes from the slot of segment `seq` on; empty if the ring ends before."""
        at = seq % self._slots * self._slot_bytes
        if at + size > self._slots * self._slot_bytes:
            return self._view[:0]
        return self._view[at : at + size]

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
