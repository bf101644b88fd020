"""The newest policy of a learner as one arena, given to whoever has an older one.

Weights are pulled and not pushed: a peer asks with the version that it has, and a version that is never asked for
is never sent. Versions only rise within a run, also over restarts of the learner.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from runtime.contract import PROTOCOL_VERSION
from runtime.framing import Buffer, digest
from runtime.messages import Current, Get, Message, Refusal, Refused, Weights


@dataclass(slots=True)
class PolicyStore:
    """One writer publishes, any thread may answer: what is shared is replaced as a whole, never changed."""

    epoch: int
    token: str = field(repr=False)
    version: int = 0
    _newest: tuple[Weights, Buffer] | None = None

    def publish(self, version: int, arena: NDArray[np.float32]) -> None:
        """Make `arena`, flat float32 that nobody writes any more, the policy of `version`.

        Raises ValueError if the version does not rise.
        """
        if version <= self.version:
            raise ValueError(f"policy version {version} does not follow {self.version}")
        raw = arena.data.cast("B")
        self._newest = Weights(self.epoch, version, arena.size, digest(raw)), raw
        self.version = version

    def answer(self, get: Get) -> tuple[Message, Buffer | None]:
        """Return the weights if they are newer than what the peer has, and otherwise that they are not.

        What a peer has of another epoch is never newer: it comes from a learner that is gone.
        """
        if not hmac.compare_digest(get.token.encode(), self.token.encode()):
            return Refused(PROTOCOL_VERSION, Refusal.TOKEN.value, "its token is not this run's"), None
        newest = self._newest
        if newest is None or (get.epoch == self.epoch and get.have >= newest[0].policy_version):
            return Current(self.epoch, self.version), None
        return newest
