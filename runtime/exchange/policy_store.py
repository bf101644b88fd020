"""Policy store of a learner: the newest weights, encoded once for each form in which peers request them.

Weights are pulled: a peer sends the version that it has, and a version that no peer requests is never sent.
Versions only increase within a run, even after a restart of the learner. Large policies are also available as
bfloat16, which has half the bytes and 8 of the 24 bits of precision. Peers on the learner's own host can read them
in shared memory, where one copy serves all. A form is made once per version: at publication if it was requested
recently, otherwise at the first request.
"""

from __future__ import annotations

import hmac
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.protocol.framing import Buffer
from runtime.exchange.protocol.messages import Current, Get, Message, RefusalCode, Refused, SharedWeights, Weights
from runtime.exchange.transport import shared_memory
from runtime.exchange.transport.shared_memory import SHARED_WEIGHTS_BYTES, SharedMemoryError, SharedWeightsWriter

F4: Final = "f4"
BF2: Final = "bf2"
LARGE_BYTES: Final = 1024 * 1024
"""Smallest policy that is offered as bfloat16; below it the conversion costs more than the bytes."""
_SHARED: Final = "shared"
_CHUNK: Final = 65_536
"""Number of values converted together, so that they stay in the processor's cache (256 KiB of float32)."""

Answer = tuple[Message, Buffer | None]


@dataclass(slots=True)
class _Policy:
    """One version, and its encoded forms."""

    version: int
    arena: NDArray[np.float32]
    forms: dict[str, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class PolicyStore:
    """Newest policy of a learner. One thread publishes, any thread may answer requests."""

    epoch: int
    token: str = field(repr=False)
    version: int = 0
    _newest: _Policy | None = None
    _requested: set[str] = field(default_factory=set)
    """Forms that were requested since the previous version was published."""
    _permanent: frozenset[str] = frozenset()
    """Forms that are made for every version."""
    _shared: SharedWeightsWriter | None = None
    _can_share: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a form is made; existing forms are read without it."""

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Make `arena` the policy of `version`. It is flat float32 and must not be written afterwards.

        Raises ValueError if the version does not increase.
        """
        if version <= self.version:
            raise ValueError(f"policy version {version} does not follow {self.version}")
        policy = _Policy(version, arena)
        with self._lock:
            requested, self._requested = self._requested, set()
            for form in requested | self._permanent:
                self._encode(policy, form)
        # Assigned only now: requests are answered with the previous version until these forms are complete.
        self._newest = policy
        self.version = version

    def share(self, floats: int) -> SharedWeights:
        """Write every version of `floats` values to shared memory from now on, and return its address for readers.

        Raises SharedMemoryError if shared memory is not available.
        """
        with self._lock:
            if self._shared is None:
                self._shared = SharedWeightsWriter(floats)
            self._permanent = frozenset({_SHARED})
            return self._shared.message(self.epoch, self.version)

    def answer_get(self, get: Get) -> Answer:
        """Return the weights if they are newer than the peer's, otherwise a message without weights.

        A version of another epoch is never newer than the current one: it comes from a previous learner.
        """
        if not hmac.compare_digest(get.token.encode(), self.token.encode()):
            return Refused(PROTOCOL_VERSION, RefusalCode.TOKEN.value, "its token is not this run's"), None
        policy = self._newest
        if policy is None or (get.epoch == self.epoch and get.have >= policy.version):
            return Current(self.epoch, self.version), None
        form, is_worth_sharing = F4, self._can_share and policy.arena.nbytes >= SHARED_WEIGHTS_BYTES
        if is_worth_sharing and get.place and get.place == shared_memory.host_identity():
            form = _SHARED
        elif get.codec == BF2 and policy.arena.nbytes >= LARGE_BYTES:
            form = BF2
        self._requested.add(form)
        if form not in policy.forms:
            with self._lock:
                self._encode(policy, form)
        # The form is missing if shared memory is not available: then the same request is answered without it.
        return policy.forms.get(form) or self.answer_get(replace(get, place=""))

    def _encode(self, policy: _Policy, form: str) -> None:
        """Make a form of a policy if it is missing and possible. The caller holds the lock."""
        if form in policy.forms:
            return
        if form == _SHARED:
            self._share(policy)
        else:
            raw = (to_bf2(policy.arena) if form == BF2 else policy.arena).data.cast("B")
            weights = Weights(self.epoch, policy.version, form, policy.arena.size, checksum(raw))
            policy.forms[form] = weights, raw

    def _share(self, policy: _Policy) -> None:
        if self._shared is None and self._can_share:
            try:
                self._shared = SharedWeightsWriter(policy.arena.size)
            except SharedMemoryError:
                self._can_share = False
        if self._shared is not None:
            self._shared.put(policy.version, policy.arena)
            policy.forms[_SHARED] = self._shared.message(self.epoch, policy.version), None

    def close(self) -> None:
        """Unmap the shared memory; requests may no longer be answered afterwards."""
        if self._shared is not None:
            self._shared.close()
            self._shared, self._can_share = None, False


def checksum(raw: memoryview) -> str:
    """Return the sum of the little-endian 64-bit words, the last padded with zeros, as 16 hexadecimal digits."""
    aligned = raw.nbytes // 8 * 8
    total = int(np.add.reduce(np.frombuffer(raw[:aligned], dtype="<u8")))  # wraps modulo 2**64
    total += int.from_bytes(raw[aligned:], "little")
    return f"{total % 2**64:016x}"


def to_bf2(arena: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 to bfloat16, its upper 16 bits: to nearest, ties to even (as IEEE 754)."""
    bits = arena.view(np.uint32)
    upper = np.empty(arena.size, dtype=np.uint16)
    for start in range(0, arena.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        # Adding 0x7FFF and the lowest remaining bit carries into the upper half exactly when it must round up.
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        upper[start : start + _CHUNK] = rounded.view(np.uint16)[1 if sys.byteorder == "little" else 0 :: 2]
    return upper


def load(codec: str, raw: memoryview, into: NDArray[np.float32]) -> None:
    """Decode weights into `into`, float32.

    Raises ValueError, and leaves `into` unchanged, if the size or the codec is wrong or a value is not finite.
    """
    if raw.nbytes != into.size * {F4: 4, BF2: 2}.get(codec, 0) or not into.size:
        raise ValueError(f"{raw.nbytes} bytes are not {into.size} values of {codec!r}")
    kind, exponent = (np.uint32, 0x7F80_0000) if codec == F4 else (np.uint16, 0x7F80)
    encoded: NDArray[Any] = np.frombuffer(raw, dtype=kind)
    bits = into.view(np.uint32)
    # Checked in a separate pass before anything is written: a policy must never mix two versions.
    for start in range(0, into.size, _CHUNK):
        if (encoded[start : start + _CHUNK] & exponent).max() == exponent:  # infinite or NaN in IEEE 754
            raise ValueError("they hold values that are not finite")
    for start in range(0, into.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        part[:] = encoded[start : start + _CHUNK]
        if codec == BF2:
            part <<= 16
