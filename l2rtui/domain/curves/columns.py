"""Curves on a grid of equal columns: resampling, smoothing, and mean with its interval over seeds.

A column without a record is NaN. Where a mean over seeds needs a value, gaps are filled by linear interpolation,
never beyond the records of the run itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from l2rtui.domain.curves.run_curve import Axis, RunCurve
from l2rtui.domain.experiments import MOST_EXACT, bootstrap_interval

NOTHING: Final = math.nan
_RESAMPLED_COLUMNS: Final = 24
"""Columns whose interval is drawn by chance, a millisecond each."""


class Columns(Struct, frozen=True):
    """Values by column; NaN without a record.

    Attributes:
        lows, highs: Limits of the spread: minimum and maximum record of a run, or the 95 % interval of the mean
            over seeds.
        counts: Number of records in the column, or of seeds.
    """

    means: list[float]
    lows: list[float]
    highs: list[float]
    counts: list[int]


class Grid(Struct, frozen=True):
    """Columns of equal width between two positions of an axis."""

    axis: Axis
    low: float
    high: float
    num: int

    @property
    def width(self) -> float:
        """Width of a column in units of the axis."""
        return (self.high - self.low) / self.num

    def centre(self, column: int) -> float:
        """Return the position of the middle of a column."""
        return self.low + (column + 0.5) * self.width


def resample(curve: RunCurve, figure: str, grid: Grid, origin: float = 0.0) -> Columns:
    """Return a figure of a run by columns: mean, minimum and maximum of all records in each column.

    The newest column is usually still incomplete. Its values are those of a whole column that ends at the newest
    record; the mean of one or two records beside means of many would be a vertical stroke at the end of the curve.

    Args:
        origin: Position in the run that counts as 0.
    """
    positions = curve.positions(grid.axis)
    counts, sums, lows, highs = curve.buckets(figure)
    columns = Columns([], [], [], [])
    start = bisect_left(positions, grid.low + origin)
    for number in range(1, grid.num + 1):
        edge = origin + (grid.high if number == grid.num else grid.low + number * grid.width)
        # The last column includes its upper edge; otherwise the newest record would be dropped.
        end = (bisect_right if number == grid.num else bisect_left)(positions, edge, start)
        columns.counts.append(sum(counts[start:end]))
        if start < end == len(positions):
            start = bisect_left(positions, positions[-1] - grid.width, 0, start + 1)
        count = sum(counts[start:end])
        columns.means.append(sum(sums[start:end]) / count if count else NOTHING)
        columns.lows.append(min(lows[start:end]) if count else NOTHING)
        columns.highs.append(max(highs[start:end]) if count else NOTHING)
        start = end
    return columns


def smooth(values: Sequence[float], columns: float) -> list[float]:
    """Return the exponential moving average of values, initialised with the first value.

    Args:
        columns: Time constant in columns. A gap of n columns counts as n steps, so that a run that reports rarely
            is smoothed over the same length of the axis.
    """
    result: list[float] = []
    level, gap = NOTHING, 1
    for value in values:
        if math.isnan(value):
            result.append(NOTHING)
            gap += 1
            continue
        weight = 1.0 if math.isnan(level) else -math.expm1(-gap / columns)
        level = value if weight >= 1.0 else level + weight * (value - level)
        gap = 1
        result.append(level)
    return result


def bridge(values: Sequence[float]) -> list[float]:
    """Fill the gaps between the first and the last value by linear interpolation."""
    result = list(values)
    before = -1
    for number, value in enumerate(values):
        if math.isnan(value):
            continue
        gap = number - before
        if before >= 0 and gap > 1:
            rise = (value - result[before]) / gap
            result[before + 1 : number] = [result[before] + rise * step for step in range(1, gap)]
        before = number
    return result


def over_seeds(runs: Sequence[Sequence[float]]) -> Columns:
    """Return the mean of several runs in each column, and its 95 % bootstrap interval, as of experiments.

    Runs that have ended or have not yet reached a column do not count there: ``counts`` gives the number that do.
    A single run has no interval: both limits are its value. With many runs, intervals are computed at some columns
    and interpolated between them.
    """
    columns = Columns([], [], [], [])
    below, above = [NOTHING] * len(runs[0]), [NOTHING] * len(runs[0])
    step = 1 if len(runs) <= MOST_EXACT else max(1, len(runs[0]) // _RESAMPLED_COLUMNS)
    rows = [tuple(value for value in row if not math.isnan(value)) for row in zip(*map(bridge, runs), strict=True)]
    last = max((number for number, finite in enumerate(rows) if finite), default=0)
    for number, finite in enumerate(rows):
        mean = sum(finite) / len(finite) if finite else NOTHING
        columns.means.append(mean)
        columns.counts.append(len(finite))
        # Also where a run comes or goes: interpolation across it would be neither interval.
        has_changed = number == 0 or len(finite) != len(rows[number - 1])
        if finite and (number % step == 0 or number == last or has_changed):
            low, high = bootstrap_interval(finite) or (mean, mean)
            below[number], above[number] = mean - low, high - mean
    for mean, under, over in zip(columns.means, bridge(below), bridge(above), strict=True):
        columns.lows.append(mean - under)
        columns.highs.append(mean + over)
    return columns
