"""Trend of a run's return against its own best, for screens and for the alerts of the run itself. Pure."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

FALLEN_SECONDS: Final = 120.0
"""Time for which a return must be far below its best to count as divergence: exploration causes dips too."""
_SMOOTHING_SECONDS: Final = 60.0
"""Time constant of the smoothed return: single episodes and evaluations vary strongly."""
_FALLEN: Final = 0.2
"""Fraction of the way from its first to its best return below which a return has collapsed; 0.4 ends that."""
_RECOVERED: Final = 0.4
_NOISES: Final = 4.0
"""Number of mean deviations by which a smoothed return must differ from its best: less may be chance."""


class ReturnTrend(Struct, frozen=True):
    """Return of a run, exponentially smoothed, against its own best.

    Attributes:
        level: Smoothed return. noise: Smoothed absolute deviation from it.
        first, best: Level once the smoothing has reached its time constant, and the highest since; None before.
        fallen_since: Time since which the level is far below the best; otherwise 0.
    """

    level: float
    began: float
    time: float
    noise: float = 0.0
    first: float | None = None
    best: float | None = None
    fallen_since: float = 0.0

    def after(self, value: float, time: float) -> ReturnTrend:
        """Return the trend after one more value."""
        gap = time - self.time
        if gap <= 0:  # a clock that was set back: the time between is unknown
            return self
        weight = 1.0 - math.exp(-gap / _SMOOTHING_SECONDS)
        level = self.level + weight * (value - self.level)
        noise = self.noise + weight * (abs(value - self.level) - self.noise)
        if time - self.began < _SMOOTHING_SECONDS:
            return replace(self, level=level, noise=noise, time=time)
        first = level if self.first is None else self.first
        best = level if self.best is None else max(self.best, level)
        edge = first + (_RECOVERED if self.fallen_since else _FALLEN) * (best - first)
        has_fallen = level < edge and best - level > _NOISES * noise
        since = (self.fallen_since or time) if has_fallen else 0.0
        return ReturnTrend(level, self.began, time, noise, first, best, since)
