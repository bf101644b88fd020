"""Rate limiter between collection and learning, as plain arithmetic.

After Reverb's rate limiter (Cassirer et al. 2021, section 3.4): a fixed ratio of samples to inserts, with a band in
which either side may run ahead. Here learning never runs ahead of its data, and collection runs ahead by at most
`band_steps`. So on a small machine the workers leave the learner its core, and the ratio of updates to env steps is
a setting and not an accident of the machine. It watches the limit between collecting and learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def warmup_after_resume(warmup_steps: int, capacity: int, transitions: int) -> int:
    """Return how many transitions a replay lacks before it can be learned from.

    It holds `transitions` of `capacity`. Without a warm-up one is enough to draw from.
    """
    return max(0, min(max(1, warmup_steps), capacity) - transitions)


def delay_after_resume(
    missing: int, env_steps: int, updates: int, warmup_steps: int, updates_per_step: float
) -> int:
    """Return by how many env steps all updates are delayed, so that `missing` are collected first.

    Updates then go on at their ratio. Those that were due for steps before are not made up for: what they would
    have learned from is not in the replay any more.
    """
    balanced = warmup_steps + math.floor(updates / updates_per_step)
    return env_steps + missing - balanced


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """Limiter with `updates_per_step` updates for each env step after the first `warmup_steps`."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int

    def ceiling(self, updates: int) -> int:
        """Return how many env steps may be collected in all once `updates` are done."""
        # The steps of the next update are included: where collection has to wait, learning can always go on, so the
        # two never wait for each other.
        return self.warmup_steps + math.ceil((updates + 1) / self.updates_per_step) + self.band_steps

    def without_workers(self) -> RateLimiter:
        """Return the same balance for a learner that collects by itself: a worker that joins gets no credit."""
        return _WithoutWorkers(self.warmup_steps, self.updates_per_step, self.band_steps)

    def allows_update(self, env_steps: int, updates: int) -> bool:
        """Return true if the data for one more update has come in."""
        return (
            env_steps >= self.warmup_steps
            and updates + 1 <= (env_steps - self.warmup_steps) * self.updates_per_step
        )


class _WithoutWorkers(RateLimiter):
    """Limiter that leaves no room for segments from elsewhere."""

    __slots__ = ()

    def ceiling(self, updates: int) -> int:
        """Return 0: nothing may be collected elsewhere."""
        del updates
        return 0
