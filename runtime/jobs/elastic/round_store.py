"""torch store for the agents of one round, in the shared values.

Agents exchange their numbers of processes through it, and wait for each other at the end. With torch's store both
would wait for minutes for a lost node; here a wait ends with the round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from torch.distributed import DistStoreError, Store  # type: ignore[attr-defined]

from runtime.jobs.elastic.rendezvous_session import RendezvousSession

_POLL_SECONDS: Final = 0.1
_GET_SECONDS: Final = 15.0
"""How long to wait for another node's value; after that the node counts as lost."""


class RoundStore(Store):
    """Store of one round."""

    def __init__(self, session: RendezvousSession, prefix: str) -> None:
        super().__init__()
        self._session, self._values, self._prefix = session, session.values, prefix

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        while not self._values.replace(self._prefix + key, before := self._values.read(self._prefix + key), text):
            if before == text:
                return

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return its new value."""
        while True:
            before = self._values.read(self._prefix + key)
            after = int(before or 0) + amount
            if self._values.replace(self._prefix + key, before, str(after)):
                return after

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys are set."""
        return all(self._values.read(self._prefix + key) for key in keys)

    def get(self, key: str) -> bytes:
        """Return a value once it is set. Raises DistStoreError if its node is gone or does not respond."""
        deadline = time.monotonic() + _GET_SECONDS
        while not (text := self._values.read(self._prefix + key)):
            if self._session.is_round_over() or time.monotonic() > deadline:
                raise DistStoreError("a node of the round is gone")
            time.sleep(_POLL_SECONDS)
        return text.encode("latin-1")

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set, or the round has ended: then no node is left to set them."""
        deadline = time.monotonic() + (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        while not self.check(keys) and not self._session.is_round_over():
            if time.monotonic() > deadline:
                raise DistStoreError("the other nodes do not end")
            time.sleep(_POLL_SECONDS)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Set several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)
