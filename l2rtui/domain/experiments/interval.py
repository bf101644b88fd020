"""Confidence interval of a mean over few seeds, by the percentile bootstrap.

B. Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979); B. Efron and R. J.
Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3, who take at least 1,000 resamples for an
interval. The returns of seeds are seldom normal: some learn, others do not, so no t-interval is used.

For up to seven values all possible resamples are counted, each with its probability; there are fewer of them than
would be drawn.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, combinations_with_replacement
from math import factorial, prod
from typing import Final

RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
_SEED: Final = 1979
_TAIL: Final = round(RESAMPLES * (1.0 - CONFIDENCE) / 2.0)
"""Resampled means outside of the interval at each end."""
MOST_EXACT: Final = 7


@lru_cache(maxsize=8192)  # charts ask for each column, and most columns stay as they are
def bootstrap_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the limits of the 95 % interval of the mean; None for fewer than two values.

    The same values in the same order always give the same interval.
    """
    if len(values) < 2:
        return None
    number, value_at = len(values), values.__getitem__
    if number <= MOST_EXACT:
        tail = (1.0 - CONFIDENCE) / 2.0
        outcomes = sorted((sum(map(value_at, drawn)) / number, share) for drawn, share in _outcomes(number))
        return _first_beyond(outcomes, tail), _first_beyond(outcomes[::-1], tail)
    means = sorted(sum(map(value_at, resample)) / number for resample in _resamples(number))
    return means[_TAIL - 1], means[RESAMPLES - _TAIL - 1]


def _first_beyond(outcomes: Sequence[tuple[float, float]], tail: float) -> float:
    """Return the first mean at which the sum of the probabilities exceeds a tail."""
    passed = accumulate(share for _, share in outcomes)
    return next(mean for (mean, _), share in zip(outcomes, passed, strict=True) if share > tail)


@lru_cache(maxsize=16)
def _outcomes(number: int) -> Sequence[tuple[tuple[int, ...], float]]:
    """Return all resamples of ``number`` values as positions in ascending order, each with its probability."""
    resamples = combinations_with_replacement(range(number), number)
    orders = ((drawn, prod(map(factorial, Counter(drawn).values()))) for drawn in resamples)
    return [(drawn, factorial(number) / repeats / number**number) for drawn, repeats in orders]


# Drawing costs five times as much as averaging, and experiments have few different sizes: positions are drawn once
# per size.
@lru_cache(maxsize=16)
def _resamples(number: int) -> Sequence[array[int]]:
    """Return the positions that each resample of ``number`` values draws, with replacement."""
    generator = random.Random(_SEED)  # noqa: S311  (statistics, and the same at every look)
    positions = range(number)
    return [array("I", generator.choices(positions, k=number)) for _ in range(RESAMPLES)]
