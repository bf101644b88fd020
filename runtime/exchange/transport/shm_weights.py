"""Shared-memory weights: written once by the learner, read in place by all peers on its host.

The memory has three slots, and version v is in slot `v % 3`. The page before them has 64-bit words: the version in
each slot (0 while it is written) and the newest complete version. A reader checks the slot's word again after using
the weights, for a copy or for a step. If it has changed, the result may mix two versions and is recomputed from the
newest. This is a sequence lock (seqlock, as in the Linux kernel): the writer never waits, and a reader gets the
newest version, which may be newer than the announced one. Weights that are used in place occupy the processor's
shared cache once for all workers of a host.
"""

from __future__ import annotations

import os
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.messages import SharedWeights
from runtime.exchange.transport import shared_memory
from runtime.exchange.transport.shared_memory import SharedMemoryError, SharedMemoryOwner, SharedMemoryView

SLOTS: Final = 3
"""One is being written, one is being read, and the newest stays complete."""
SHARED_WEIGHTS_BYTES: Final = 64 * 1024
"""Smallest weights for which shared memory is used; below it the answer itself is as fast."""
_WORD: Final = struct.Struct("<Q")
_NEWEST: Final = shared_memory.NONCE_BYTES + SLOTS * _WORD.size
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
        self._mark(shared_memory.NONCE_BYTES + slot * _WORD.size, 0)
        self._slots[slot] = weights
        self._mark(shared_memory.NONCE_BYTES + slot * _WORD.size, version)
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
        host = shared_memory.host_identity()
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
        return self._word(shared_memory.NONCE_BYTES + version % SLOTS * _WORD.size) == version

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
