"""Charts: curves of several runs, or means over their seeds, on shared scales; the same for screens and files.

Curves on a grid of equal columns: resampling, smoothing, and mean with its interval over seeds.

A column without a record is NaN. Where a mean over seeds needs a value, gaps are filled by linear interpolation,
never beyond the records of the run itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from l2rtui.domain.curves.run_curve import Axis, RunCurve
from l2rtui.domain.curves.scale import Scale, position_scale, usual_values, value_scale
from l2rtui.domain.experiments import MOST_EXACT, bootstrap_interval
from l2rtui.domain.history import Key, newest_by_seed, variants_of

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


RETURN: Final = "return"
"""Return of evaluations if there are any, otherwise of training episodes."""
FIGURE_LABELS: Final[Mapping[str, str]] = MappingProxyType({
    RETURN: "return",
    "env_steps_per_second": "env steps/s",
    "updates_per_second": "updates/s",
    "policy_lag": "policy lag",
    "idle_share": "waiting for data",
})  # fmt: skip
"""Figures of charts in display order; other figures follow under their own names."""
AXIS_LABELS: Final[Mapping[Axis, str]] = MappingProxyType(
    {Axis.ENV_STEPS: "env steps", Axis.TIME: "time since launch", Axis.UPDATES: "updates"}
)
SMOOTHINGS: Final = (0.0, 0.02, 0.1)
"""Time constants of the exponential moving average, as parts of the axis."""
WINDOWS: Final = (1, 4, 16)
"""The newest part of the axis that is drawn: all of it, a quarter, a sixteenth."""
_FROM_ZERO: Final = 0.25
"""Part of the axis that may be empty before the first record. If more would be empty, the axis does not start at 0.
"""
_ROUNDING: Final = 50
"""The end of the axis is rounded up to this fraction of its length, so that the chart does not shift with each
record.
"""


class SeedCurve(Struct, frozen=True):
    """Curve of one run.

    Attributes:
        launched: Time from which its time counts, in seconds since the epoch; 0 if unknown.
        place, spec_id: Place and spec id of its experiment, see ``domain.history.identity``.
    """

    name: str
    curve: RunCurve
    seed: int = 0
    experiment: str = ""
    launched: float = 0.0
    place: str = ""
    spec_id: str = ""

    def origin(self, axis: Axis) -> float:
        """Return the position that counts as 0."""
        if axis is not Axis.TIME:
            return 0.0
        first = self.curve.first.get(axis, 0.0)
        # A learner's clock may be behind the cluster's clock; its first record is never before 0.
        return self.launched if 0.0 < self.launched < first else first


class CurveGroup(Struct, frozen=True):
    """Runs that are drawn as one line: a single run, or seeds of an experiment as their mean.

    Attributes:
        old: Age of the newest record if it is too old to describe the current state; otherwise empty.
    """

    name: str
    seeds: tuple[SeedCurve, ...]
    old: str = ""

    @property
    def title(self) -> str:
        """Name, and the number of seeds behind a mean."""
        return f"{self.name} (mean of {len(self.seeds)} seeds, 95% interval)" if len(self.seeds) > 1 else self.name


def grouped(seeds: Iterable[SeedCurve], *, by_experiment: bool) -> tuple[CurveGroup, ...]:
    """Return the groups of runs: each run separately, or the seeds of each experiment together.

    If several runs of an experiment have the same seed, the newest is drawn.
    """
    if not by_experiment:
        return tuple(CurveGroup(seed.name, (seed,)) for seed in seeds)
    members: dict[Key, list[SeedCurve]] = {}
    for seed in seeds:
        members.setdefault((seed.experiment or seed.name, seed.place, seed.spec_id), []).append(seed)
    variants = variants_of(members)
    groups = []
    for key, own in members.items():
        newest, _ = newest_by_seed(own, lambda seed: seed.seed, lambda seed: (seed.launched, seed.name))
        drawn = tuple(seed for seed in own if any(seed is other for other in newest))
        groups.append(CurveGroup(f"{key[0]} ({variants[key]})" if variants[key] else key[0], drawn))
    return tuple(groups)


class ChartSettings(Struct, frozen=True):
    """Chart settings that the user chooses.

    Attributes:
        smoothing: Time constant of the moving average as a part of the axis; 0 for none.
        window: Denominator of the part of the axis that is drawn, counted from its end.
    """

    axis: Axis = Axis.ENV_STEPS
    smoothing: float = 0.0
    window: int = 1

    @property
    def facts(self) -> tuple[str, ...]:
        """Short phrases for chart titles that describe what is drawn."""
        smoothing = f"EMA over {self.smoothing:.0%} of axis" if self.smoothing else "not smoothed"
        return (
            f"over {AXIS_LABELS[self.axis]}",
            smoothing,
            f"newest 1/{self.window}" if self.window > 1 else "",
        )


class ChartLine(Struct, frozen=True):
    """One line of a chart.

    Attributes:
        has_spread: Draw lows and highs. is_mean: They are the 95 % interval of the mean over several seeds.
        newest: Value of the newest record, as tables show it; None if the line does not show plain values.
    """

    name: str
    columns: Columns
    has_spread: bool = False
    is_mean: bool = False
    newest: float | None = None

    @property
    def last(self) -> int | None:
        """Newest column with a value."""
        means = self.columns.means
        return next((number for number in reversed(range(len(means))) if not math.isnan(means[number])), None)

    def at(self, column: int) -> float | None:
        """Return the value in a column, or the nearest value before it."""
        values = self.columns.means[: column + 1]
        return next((value for value in reversed(values) if not math.isnan(value)), None)


class Chart(Struct, frozen=True):
    """One figure of all groups; ``y`` is None if no group has a value of it."""

    figure: str
    grid: Grid
    x: Scale
    y: Scale | None
    lines: tuple[ChartLine, ...]

    @property
    def label(self) -> str:
        """Name and unit of the figure."""
        return figure_label(self.figure)


def figure_label(figure: str) -> str:
    """Return the name of a figure for people, with its unit."""
    return FIGURE_LABELS.get(figure) or figure.replace("_", " ")


def figures_of(groups: Iterable[CurveGroup]) -> tuple[str, ...]:
    """Return the figures that at least one run has, in the order of charts."""
    own = dict.fromkeys(figure for group in groups for seed in group.seeds for figure in seed.curve.figures)
    first = [figure for figure in FIGURE_LABELS if figure in own]
    return (*first, *(figure for figure in own if figure not in FIGURE_LABELS))


def chart(
    groups: Sequence[CurveGroup], figure: str, settings: ChartSettings, columns: int, ticks: tuple[int, int]
) -> Chart:
    """Draw one figure of all groups. Outliers lie beyond the limits of its scale.

    Args:
        columns: Number of columns of the grid on which runs are compared.
        ticks: Maximum number of ticks on the position axis and on the value axis.
    """
    low, high = _limits(groups, settings)
    x = position_scale(low, high, ticks[0], is_time=settings.axis is Axis.TIME)
    grid = Grid(settings.axis, x.low, x.high, columns)
    lines = tuple(_line(group, figure, grid, settings, is_alone=len(groups) == 1) for group in groups)
    values = [
        value
        for line in lines
        for part in (line.columns.means, *((line.columns.lows, line.columns.highs) if line.has_spread else ()))
        for value in part
    ]
    return Chart(figure, grid, x, value_scale(usual_values(values), ticks[1]), lines)


def _limits(groups: Iterable[CurveGroup], settings: ChartSettings) -> tuple[float, float]:
    """Return the part of the axis that is drawn."""
    axis = settings.axis
    seeds = [seed for group in groups for seed in group.seeds if seed.curve.num_records]
    low = min((seed.curve.first[axis] - seed.origin(axis) for seed in seeds), default=0.0)
    high = max((seed.curve.last[axis] - seed.origin(axis) for seed in seeds), default=1.0)
    if low < _FROM_ZERO * high:
        low = 0.0
    low = max(low, high - (high - low) / settings.window)
    if high <= low:
        return low, low + 1.0
    part = 2.0 ** math.ceil(math.log2((high - low) / _ROUNDING))
    return low, math.ceil(high / part) * part


def _line(group: CurveGroup, figure: str, grid: Grid, settings: ChartSettings, *, is_alone: bool) -> ChartLine:
    runs = [resample(seed.curve, figure, grid, seed.origin(grid.axis)) for seed in group.seeds]
    time_constant = settings.smoothing * grid.num
    means = [smooth(run.means, time_constant) if settings.smoothing else run.means for run in runs]
    if len(runs) > 1:
        return ChartLine(group.name, over_seeds(means), has_spread=True, is_mean=True)
    if not runs:
        return ChartLine(group.name, over_seeds([[math.nan] * grid.num]))
    run = runs[0]
    # A smoothed line that is the only one in its chart has the raw range behind it. Several such ranges would hide
    # the lines.
    columns = Columns(means[0], bridge(run.lows), bridge(run.highs), run.counts)
    if settings.smoothing:
        return ChartLine(group.name, columns, has_spread=is_alone)
    return ChartLine(group.name, columns, newest=group.seeds[0].curve.newest(figure))
