"""Traffic of a learner's exchange: messages and bytes in and out, counted by its network thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runtime.base.metrics import Rate
from runtime.exchange.protocol.framing import Buffer

_COUNTERS: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")


class Traffic:
    """Counters that one thread increments and any thread may read; the rates are for one reader.

    Counted are the bytes of the frames without ZeroMQ's own, and of segments in shared memory. Weights that peers
    read from the learner's shared memory are not counted.
    """

    def __init__(self, now: float) -> None:
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._rates = {name: Rate(now, 0) for name in _COUNTERS}

    def received(self, num_bytes: int) -> None:
        """Count a message that came."""
        self._counts["messages_in"] += 1
        self._counts["bytes_in"] += num_bytes

    def received_in_memory(self, num_bytes: int) -> None:
        """Count bytes that a message left in shared memory."""
        self._counts["bytes_in"] += num_bytes

    def sent(self, num_bytes: int) -> None:
        """Count a message that was handed to a connection."""
        self._counts["messages_out"] += 1
        self._counts["bytes_out"] += num_bytes

    def totals(self) -> dict[str, int]:
        """Return the counters since the start of the process."""
        return dict(self._counts)

    def rates(self, now: float) -> dict[str, float]:
        """Return `messages_in_per_second` and so on, since the last call; `now` in seconds of `time.monotonic`."""
        return {f"{name}_per_second": self._rates[name].update(now, count) for name, count in self.totals().items()}


def size_of(frames: Sequence[Buffer]) -> int:
    """Return the bytes of a message."""
    return sum(memoryview(frame).nbytes for frame in frames)
