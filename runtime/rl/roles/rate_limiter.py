"""Rate limiter between collection and learning, as plain arithmetic.

Based on Reverb's rate limiter (Cassirer et al. 2021, section 3.4): a fixed ratio of samples to inserts, with a band
in which either side may run ahead. Here learning never runs ahead of its data, and collection runs ahead by at most
`band_steps`. On a small machine the workers therefore leave the learner its core, and the ratio of updates to env
steps is a setting that does not depend on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def warmup_after_resume(warmup_steps: int, capacity: int, transitions: int) -> int:
    """Return how many transitions a replay needs before it can be learned from.

    It contains `transitions` of `capacity`. Without a warm-up one transition suffices.
    """
    return max(0, min(max(1, warmup_steps), capacity) - transitions)


def delay_after_resume(
    missing: int, env_steps: int, updates: int, warmup_steps: int, updates_per_step: float
) -> int:
    """Return the number of env steps by which to delay all updates, so that `missing` ones are collected first.

    Updates then continue at their ratio. Updates that were due for earlier steps are not made up for: their data is
    no longer in the replay.
    """
    balanced = warmup_steps + math.floor(updates / updates_per_step)
    return env_steps + missing - balanced


@dataclass(frozen=True, slots=True)
class RateLimiter:
    """Limiter with `updates_per_step` updates per env step after the first `warmup_steps`."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int

    def ceiling(self, updates: int) -> int:
        """Return the total number of env steps that may be collected once `updates` are done."""
        # Includes the steps of the next update: whenever collection has to wait, learning can continue, so the two
        # never wait for each other.
        return self.warmup_steps + math.ceil((updates + 1) / self.updates_per_step) + self.band_steps

    def without_workers(self) -> RateLimiter:
        """Return the limiter for a learner that collects without workers: workers get no credit."""
        return _WithoutWorkers(self.warmup_steps, self.updates_per_step, self.band_steps)

    def allows_update(self, env_steps: int, updates: int) -> bool:
        """Return True if the data for one more update has arrived."""
        return (
            env_steps >= self.warmup_steps
            and updates + 1 <= (env_steps - self.warmup_steps) * self.updates_per_step
        )


class _WithoutWorkers(RateLimiter):
    """Limiter that grants workers no credit."""

    __slots__ = ()

    def ceiling(self, updates: int) -> int:
        """Return 0: workers may not collect."""
        del updates
        return 0
