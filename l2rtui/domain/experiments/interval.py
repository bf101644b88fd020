"""Confidence interval of a mean over few seeds, by the percentile bootstrap.

B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979); B. Efron and R. J.
Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3, who take at least 1,000 resamples for an
interval. The returns of seeds are seldom normal: some learn, others do not, so no t-interval is used.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
_SEED: Final = 1979
_TAIL: Final = round(RESAMPLES * (1.0 - CONFIDENCE) / 2.0)
"""Resampled means outside of the interval at each end."""


@lru_cache(maxsize=1024)
def bootstrap_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the limits of the 95 % interval of the mean; None for fewer than two values.

    The same values in the same order always give the same interval.
    """
    if len(values) < 2:
        return None
    number, value_at = len(values), values.__getitem__
    means = sorted(sum(map(value_at, resample)) / number for resample in _resamples(number))
    return means[_TAIL - 1], means[RESAMPLES - _TAIL - 1]


# Drawing costs five times as much as averaging, and experiments have few different sizes: positions are drawn once
# per size.
@lru_cache(maxsize=16)
def _resamples(number: int) -> Sequence[array[int]]:
    """Return the positions that each resample of ``number`` values draws, with replacement."""
    generator = random.Random(_SEED)  # noqa: S311  (statistics, and the same at every look)
    positions = range(number)
    return [array("I", generator.choices(positions, k=number)) for _ in range(RESAMPLES)]
