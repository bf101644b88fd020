"""Rate limiter between collection and learning, as plain arithmetic.

After Reverb's rate limiter (Cassirer et al. 2021, section 3.4): a fixed ratio of samples to inserts, with a band in
which either side may run ahead. Here learning never runs ahead of its data, and collection runs ahead by at most
`band_steps`. So on a small machine the workers leave the learner its core, and the ratio of updates to env steps is
a setting and not an accident of the machine. It watches the limit between collecting and learning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
