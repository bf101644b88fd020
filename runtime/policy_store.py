"""The newest policy of a learner as one arena, given to whoever has an older one.

Weights are pulled and not pushed: a peer asks with the version that it has, and a version that is never asked for
is never sent. Versions only rise within a run, also over restarts of the learner. Large policies are also kept as
bfloat16: half the bytes for whoever asks for that, and 8 of the 24 bits of precision.
"""

from __future__ import annotations

import hmac
import sys
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.contract import PROTOCOL_VERSION
from runtime.framing import Buffer
from runtime.messages import Current, Get, Message, Refusal, Refused, Weights

F4: Final = "f4"
BF2: Final = "bf2"
LARGE_BYTES: Final = 1024 * 1024
"""From this size on a policy is also given as bfloat16."""


@dataclass(slots=True)
class PolicyStore:
    """One writer publishes, any thread may answer: what is shared is replaced as a whole, never changed."""

    epoch: int
    token: str = field(repr=False)
    version: int = 0
    _newest: dict[str, tuple[Weights, Buffer]] = field(default_factory=dict)
    """By codec; replaced as a whole."""

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Make `arena`, flat float32 that nobody writes any more, the policy of `version`.

        Raises ValueError if the version does not rise.
        """
        if version <= self.version:
            raise ValueError(f"policy version {version} does not follow {self.version}")
        newest = {F4: self._packed(version, F4, arena.size, arena.data.cast("B"))}
        if arena.nbytes >= LARGE_BYTES:
            newest[BF2] = self._packed(version, BF2, arena.size, to_bf2(arena).data.cast("B"))
        self._newest = newest
        self.version = version

    def _packed(self, version: int, codec: str, floats: int, raw: memoryview) -> tuple[Weights, Buffer]:
        return Weights(self.epoch, version, codec, floats, checksum(raw)), raw

    def answer(self, get: Get) -> tuple[Message, Buffer | None]:
        """Return the weights if they are newer than what the peer has, and otherwise that they are not.

        What a peer has of another epoch is never newer: it comes from a learner that is gone.
        """
        if not hmac.compare_digest(get.token.encode(), self.token.encode()):
            return Refused(PROTOCOL_VERSION, Refusal.TOKEN.value, "its token is not this run's"), None
        newest = self._newest
        if not newest or (get.epoch == self.epoch and get.have >= newest[F4][0].policy_version):
            return Current(self.epoch, self.version), None
        return newest.get(get.codec, newest[F4])


def checksum(raw: memoryview) -> str:
    """Return the sum of the little-endian 64-bit words, the last filled up with zeros, as 16 hexadecimal digits."""
    whole = raw.nbytes // 8 * 8
    total = int(np.add.reduce(np.frombuffer(raw[:whole], dtype="<u8")))
    total += int.from_bytes(raw[whole:], "little")
    return f"{total % 2**64:016x}"


def to_bf2(arena: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16, to the nearest and to even between two: the upper half of the float32's bits."""
    bits = arena.view(np.uint32)
    rounded = bits + 0x7FFF
    rounded += (bits >> 16) & 1
    upper: NDArray[np.uint16] = rounded.view(np.uint16)[1 if sys.byteorder == "little" else 0 :: 2].copy()
    return upper


def from_codec(codec: str, raw: memoryview, floats: int) -> NDArray[np.float32]:
    """Return the values as float32 of their own. ValueError if there are not so many, or the codec is unknown."""
    if raw.nbytes != floats * {F4: 4, BF2: 2}.get(codec, 0) or not floats:
        raise ValueError(f"{raw.nbytes} bytes are not {floats} values of {codec!r}")
    if codec == F4:
        return np.frombuffer(raw, dtype=np.float32).copy()
    values = np.frombuffer(raw, dtype=np.uint16).astype(np.uint32)
    values <<= 16
    return values.view(np.float32)
