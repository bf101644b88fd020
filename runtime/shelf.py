"""Weights for peers on the learner's own host: written once into memory that all of them map.

There are three places, and version v lies in place `v % 3`. In front of them stand, as 64-bit words, the version in
each place (0 while it is written) and the newest that is whole. A reader looks at the word again when it has used
what is there, for a copy or for a step: if it has changed, what came of it is of two versions and is made anew from
the newest. So nobody waits for anybody, and a reader gets the newest there is, be it newer than the one that it was
told of. Weights that are used where they lie are in the processor's cache once for all workers of a host.
"""

from __future__ import annotations

import os
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime import memory
from runtime.memory import NONCE_BYTES, Offered, Opened, SharedMemoryError
from runtime.messages import Shared

PLACES: Final = 3
"""While one is written and one is read, the newest stays whole."""
SHELF_BYTES: Final = 64 * 1024
"""From this size on weights go over a shelf; smaller ones are as quick in the answer itself."""
_WORD: Final = struct.Struct("<Q")
_NEWEST: Final = NONCE_BYTES + PLACES * _WORD.size
_ATTEMPTS: Final = 100


class Shelf:
    """The learner's end, for weights of one size. Raises SharedMemoryError where there is no such memory."""

    def __init__(self, floats: int) -> None:
        self._memory = Offered(PLACES * 4 * floats)
        self._places = np.frombuffer(self._memory.content, dtype="<f4").reshape(PLACES, floats)

    def put(self, version: int, weights: NDArray[np.float32]) -> None:
        """Write the weights of a version above all before."""
        place = version % PLACES
        self._mark(NONCE_BYTES + place * _WORD.size, 0)
        self._places[place] = weights
        self._mark(NONCE_BYTES + place * _WORD.size, version)
        self._mark(_NEWEST, version)

    def _mark(self, at: int, version: int) -> None:
        _WORD.pack_into(self._memory.head, at, version)

    def message(self, epoch: int, version: int) -> Shared:
        """Return what a peer has to know."""
        return Shared(
            epoch=epoch,
            policy_version=version,
            floats=self._places.shape[1],
            pid=os.getpid(),
            descriptor=self._memory.descriptor,
            nonce=self._memory.nonce,
        )

    def close(self) -> None:
        """Let go of the memory."""
        del self._places
        self._memory.close()


class ShelfReader:
    """A peer's end of the shelf that the learner told of. Raises SharedMemoryError if it is not what was told."""

    def __init__(self, shared: Shared, floats: int) -> None:
        if shared.floats != floats:
            raise SharedMemoryError(f"weights of {shared.floats} values for a policy of {floats}")
        self.nonce = shared.nonce
        size = PLACES * 4 * shared.floats
        self._memory = Opened(memory.place(), shared.pid, shared.descriptor, shared.nonce, size)
        self._places = np.frombuffer(self._memory.content, dtype="<f4").reshape(PLACES, shared.floats)

    def newest(self) -> tuple[int, NDArray[np.float32]]:
        """Return the newest version and its weights where they lie: of use as long as it `holds`.

        SharedMemoryError if the writer overtakes the reader again and again.
        """
        for _ in range(_ATTEMPTS):
            version = self._word(_NEWEST)
            if version and self.holds(version):
                return version, self._places[version % PLACES]
        raise SharedMemoryError("the learner writes faster than this process reads")

    def holds(self, version: int) -> bool:
        """Say whether nobody has begun to write over the weights of a version."""
        return self._word(NONCE_BYTES + version % PLACES * _WORD.size) == version

    def read(self, into: NDArray[np.float32]) -> int:
        """Copy the newest weights and return their version.

        SharedMemoryError if the writer overtakes the reader again and again; `into` is spoiled then.
        """
        for _ in range(_ATTEMPTS):
            version, weights = self.newest()
            np.copyto(into, weights)
            if self.holds(version):
                return version
        raise SharedMemoryError("the learner writes faster than this process reads")

    def _word(self, at: int) -> int:
        return int(_WORD.unpack_from(self._memory.head, at)[0])

    def close(self) -> None:
        """Let go of the memory."""
        del self._places
        self._memory.close()
