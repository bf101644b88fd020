"""How fast collection and learning may go beside each other, as plain arithmetic.

The idea is Reverb's rate limiter (Cassirer et al. 2021, section 3.4): a fixed ratio of samples to inserts, with a
band in which either side may run ahead. Here learning never runs ahead of the data it was promised, and
collection runs ahead by at most `band_steps`; so on a small machine the workers leave the learner its core, and
the ratio of updates to env steps is a setting and not an accident of the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The promise: after `warmup_steps` env steps, `updates_per_step` updates for each further one."""

    warmup_steps: int
    updates_per_step: float
    band_steps: int

    def ceiling(self, updates: int) -> int:
        """Return how many env steps may be taken in all when `updates` are done: the next one's, and the band.

        With the next one's among them, learning can always go on where collection has to wait.
        """
        return self.warmup_steps + math.ceil((updates + 1) / self.updates_per_step) + self.band_steps

    def allows_update(self, env_steps: int, updates: int) -> bool:
        """Say whether the data for one more update has come in."""
        return (
            env_steps >= self.warmup_steps
            and updates + 1 <= (env_steps - self.warmup_steps) * self.updates_per_step
        )
