"""The newest policy of a learner as one arena, given to whoever has an older one.

Weights are pulled and not pushed: a peer asks with the version that it has, and a version that is never asked for
is never sent. Versions only rise within a run, also over restarts of the learner. Large policies are also given as
bfloat16, half the bytes for whoever asks for that and 8 of the 24 bits of precision; and to peers on the learner's
own host through memory, where one copy serves them all. A form is made once a version: for the forms that were
asked for lately when the policy is published, for others by the first who asks.
"""

from __future__ import annotations

import hmac
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime import memory
from runtime.contract import PROTOCOL_VERSION
from runtime.framing import Buffer
from runtime.memory import SharedMemoryError
from runtime.messages import Current, Get, Message, Refusal, Refused, Weights
from runtime.shelf import SHELF_BYTES, Shelf

F4: Final = "f4"
BF2: Final = "bf2"
LARGE_BYTES: Final = 1024 * 1024
"""From this size on a policy is also given as bfloat16."""
_SHELF: Final = "shelf"
_CHUNK: Final = 65_536
"""Values that are converted at once: they stay in the processor's cache."""

Answer = tuple[Message, Buffer | None]


@dataclass(slots=True)
class _Policy:
    """One version, and the forms in which it has been asked for."""

    version: int
    arena: NDArray[np.float32]
    forms: dict[str, Answer] = field(default_factory=dict)


@dataclass(slots=True)
class PolicyStore:
    """One writer publishes, any thread may answer."""

    epoch: int
    token: str = field(repr=False)
    version: int = 0
    _newest: _Policy | None = None
    _asked: set[str] = field(default_factory=set)
    """Forms that were asked for since the version before was published."""
    _shelf: Shelf | None = None
    _has_shelf: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """For making a form; those of the newest policy are given without it."""

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Make `arena`, flat float32 that nobody writes any more, the policy of `version`.

        Raises ValueError if the version does not rise.
        """
        if version <= self.version:
            raise ValueError(f"policy version {version} does not follow {self.version}")
        policy = _Policy(version, arena)
        with self._lock:
            asked, self._asked = self._asked, set()
            for form in asked:
                self._make(policy, form)
        self._newest = policy
        self.version = version

    def answer(self, get: Get) -> Answer:
        """Return the weights if they are newer than what the peer has, and otherwise that they are not.

        What a peer has of another epoch is never newer: it comes from a learner that is gone.
        """
        if not hmac.compare_digest(get.token.encode(), self.token.encode()):
            return Refused(PROTOCOL_VERSION, Refusal.TOKEN.value, "its token is not this run's"), None
        policy = self._newest
        if policy is None or (get.epoch == self.epoch and get.have >= policy.version):
            return Current(self.epoch, self.version), None
        form = F4
        if get.place and self._has_shelf and policy.arena.nbytes >= SHELF_BYTES and get.place == memory.place():
            form = _SHELF
        elif get.codec == BF2 and policy.arena.nbytes >= LARGE_BYTES:
            form = BF2
        self._asked.add(form)
        if form not in policy.forms:
            with self._lock:
                self._make(policy, form)
        return policy.forms.get(form) or self.answer(replace(get, place=""))

    def _make(self, policy: _Policy, form: str) -> None:
        """Make a form of a policy, unless it is there already or there is no shared memory for it."""
        if form in policy.forms:
            return
        if form == _SHELF:
            self._put_on_shelf(policy)
        else:
            raw = (to_bf2(policy.arena) if form == BF2 else policy.arena).data.cast("B")
            weights = Weights(self.epoch, policy.version, form, policy.arena.size, checksum(raw))
            policy.forms[form] = weights, raw

    def _put_on_shelf(self, policy: _Policy) -> None:
        if self._shelf is None and self._has_shelf:
            try:
                self._shelf = Shelf(policy.arena.size)
            except SharedMemoryError:
                self._has_shelf = False
        if self._shelf is not None:
            self._shelf.put(policy.version, policy.arena)
            policy.forms[_SHELF] = self._shelf.message(self.epoch, policy.version), None

    def close(self) -> None:
        """Let go of the shared memory; nobody may ask any more."""
        if self._shelf is not None:
            self._shelf.close()
            self._shelf, self._has_shelf = None, False


def checksum(raw: memoryview) -> str:
    """Return the sum of the little-endian 64-bit words, the last filled up with zeros, as 16 hexadecimal digits."""
    whole = raw.nbytes // 8 * 8
    total = int(np.add.reduce(np.frombuffer(raw[:whole], dtype="<u8")))
    total += int.from_bytes(raw[whole:], "little")
    return f"{total % 2**64:016x}"


def to_bf2(arena: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to bfloat16, to the nearest and to even between two: the upper half of the float32's bits."""
    bits = arena.view(np.uint32)
    upper = np.empty(arena.size, dtype=np.uint16)
    for start in range(0, arena.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        rounded = part >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += part
        upper[start : start + _CHUNK] = rounded.view(np.uint16)[1 if sys.byteorder == "little" else 0 :: 2]
    return upper


def load(codec: str, raw: memoryview, into: NDArray[np.float32]) -> None:
    """Write the values, as float32, over those of `into`.

    ValueError, with the old ones kept, if there are not as many, not all are finite, or the codec is unknown.
    """
    if raw.nbytes != into.size * {F4: 4, BF2: 2}.get(codec, 0) or not into.size:
        raise ValueError(f"{raw.nbytes} bytes are not {into.size} values of {codec!r}")
    kind, exponent = (np.uint32, 0x7F80_0000) if codec == F4 else (np.uint16, 0x7F80)
    given: NDArray[Any] = np.frombuffer(raw, dtype=kind)
    bits = into.view(np.uint32)
    for start in range(0, into.size, _CHUNK):
        if (given[start : start + _CHUNK] & exponent).max() == exponent:  # infinite, or not a number
            raise ValueError("they hold values that are not finite")
    for start in range(0, into.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        part[:] = given[start : start + _CHUNK]
        if codec == BF2:
            part <<= 16
