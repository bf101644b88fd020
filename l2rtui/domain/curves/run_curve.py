"""Storage for the curves of one run: recent records one by one, older ones in coarser and coarser buckets.

A run writes a record every second or two, for days. The newest records are stored as they arrived. Older ones are
merged into buckets of 2, then 4, 8 … records, each with count, sum, minimum and maximum. Memory grows with the
logarithm of the length, the mean of any stretch stays exact, and no extreme value is lost. Round-robin databases
use the same scheme (RRDtool: consolidation functions AVERAGE, MIN and MAX).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

CAPACITY: Final = 256
"""Buckets that a level keeps when it is compacted, which happens at twice as many. No terminal has more columns for
the older half of a run, which is the coarsest level.
"""
MAX_FIGURES: Final = 12
"""Maximum number of figures of one run. Their names come from inside the run, and a hostile log could have
millions.
"""
MAX_VALUE: Final = 3e38
"""Greatest magnitude of a value, as minima and maxima are stored in 32 bits. Greater values count as missing."""


class Axis(StrEnum):
    """Quantities that a curve can be drawn over."""

    ENV_STEPS = "env_steps"
    TIME = "time"
    UPDATES = "updates"


_NUMBERS: Final = {axis: number for number, axis in enumerate(Axis)}
Positions: TypeAlias = "tuple[array[float], array[float], array[float]]"
"""Positions on each axis, in the order of ``Axis``. Not a dictionary: hashing an enum is a Python call, which would
double the time to read a run back.
"""


class CurveRecord(NamedTuple):
    """Position of one record on each axis, and its figures by name.

    Attributes:
        time: Seconds since the epoch.
    """

    time: float
    env_steps: float
    updates: float
    figures: Mapping[str, float]


class RecordBatch(NamedTuple):
    """Many records as columns of equal length, oldest first; NaN where a record lacks a figure."""

    env_steps: array[float]
    times: array[float]
    updates: array[float]
    figures: Mapping[str, array[float]]


class FigureBuckets(NamedTuple):
    """One figure, bucket by bucket, oldest first; all arrays have the same length.

    Attributes:
        counts: Records with a value. sums: Sums of these values. lows, highs: Infinite in a bucket without a value.
    """

    counts: array[int]
    sums: array[float]
    lows: array[float]
    highs: array[float]


class CurveStretch(Struct, frozen=True):
    """Part of a curve as buckets of equally many records; a bucket has the position of its last record."""

    positions: Positions
    figures: Mapping[str, FigureBuckets]


class RunCurve:
    """Curves of one run, from its first record to its newest.

    Attributes:
        first: Position of the first record on each axis; empty without a record.
        num_records: Number of records that were added.
        is_complete: Records from before this curve began were looked up.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity - capacity % 2
        self.first: dict[Axis, float] = {}
        self.num_records = 0
        self.is_complete = False
        self._last = (-math.inf, -math.inf, -math.inf)
        # The newest records, one column for each axis and figure; NaN where a record lacks the figure.
        self._positions = _no_positions()
        self._values: dict[str, array[float]] = {}
        self._levels: list[_Level] = []

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures, in the order in which they first appeared."""
        return tuple(self._values)

    @property
    def last(self) -> Mapping[Axis, float]:
        """Position of the newest record on each axis."""
        return dict(zip(Axis, self._last, strict=True)) if self.num_records else {}

    def newest(self, figure: str) -> float | None:
        """Return the newest value of a figure from a single record; None if no recent record has one."""
        return next((value for value in reversed(self._values.get(figure, ())) if not math.isnan(value)), None)

    @property
    def num_buckets(self) -> int:
        """Number of buckets and single records in memory."""
        return len(self._positions[0]) + sum(len(level) for level in self._levels)

    def add(self, record: CurveRecord) -> bool:
        """Add a record; return False for a duplicate, as after a log stream was reopened."""
        time, env_steps, updates, figures = record
        last_steps, last_time, last_updates = self._last
        if time <= last_time and env_steps <= last_steps:
            return False
        # Positions never decrease, so that bisection can search them. After a clock was set back, or updates were
        # lost with a killed learner, positions stay at their highest value until the records have passed it.
        at = (max(env_steps, last_steps), max(time, last_time), max(updates, last_updates))
        self._last = at
        for values, value in zip(self._positions, at, strict=True):
            values.append(value)
        if not self.num_records:
            self.first = dict(zip(Axis, at, strict=True))
        self.num_records += 1
        self._add_values(figures)
        if len(self._positions[0]) >= 2 * self._capacity:
            self._thin_out()
        return True

    def add_all(self, batch: RecordBatch) -> None:
        """Add many records, several times faster than one by one; duplicates are skipped."""
        last_steps, last_time, _ = self._last
        news = (
            time > last_time or steps > last_steps for time, steps in zip(batch.times, batch.env_steps, strict=True)
        )
        start = next((number for number, is_new in enumerate(news) if is_new), None)
        if start is None:
            return
        for own, last, values in zip(self._positions, self._last, batch[:3], strict=True):
            own.extend(array("d", accumulate(values[start:], max, initial=last))[1:])
        length = len(batch.times) - start
        if not self.num_records:
            self.first = {axis: values[0] for axis, values in zip(Axis, self._positions, strict=True)}
        steps, times, updates = self._positions
        self._last = steps[-1], times[-1], updates[-1]
        self.num_records += length
        self._make_room_for(batch.figures, length)
        missing = array("d", [math.nan]) * length
        for name, values in self._values.items():
            values.extend(batch.figures[name][start:] if name in batch.figures else missing)
        while len(self._positions[0]) >= 2 * self._capacity:
            self._thin_out()

    def _make_room_for(self, figures: Mapping[str, object], num_new: int) -> None:
        own = self._values
        if not figures.keys() <= own.keys():
            # Records before its first value count as records without it.
            before = array("d", [math.nan]) * (len(self._positions[0]) - num_new)
            new = [name for name in figures if name not in own][: MAX_FIGURES - len(own)]
            for name in new:
                own[name] = before[:]

    def _add_values(self, figures: Mapping[str, float]) -> None:
        self._make_room_for(figures, 1)
        for name, values in self._values.items():
            value = figures.get(name, math.nan)
            values.append(value if -MAX_VALUE < value < MAX_VALUE else math.nan)

    def _thin_out(self) -> None:
        """Move the older half of the records to the first level, and repeat for each level that is full."""
        half = self._capacity
        level = _Level(
            _part(self._positions, slice(None, half)),
            {name: _buckets_of(values[:half]) for name, values in self._values.items()},
        )
        self._positions = _part(self._positions, slice(half, None))
        self._values = {name: values[half:] for name, values in self._values.items()}
        number = 0
        while len(level):
            if number == len(self._levels):
                self._levels.append(_Level.empty())
            self._levels[number].append(level.halved())
            full = half if len(self._levels[number]) >= 2 * half else 0
            level, self._levels[number] = self._levels[number].split(full)
            number += 1

    def stretches(self) -> Iterator[tuple[CurveStretch, int]]:
        """Yield stretches of equal buckets with the number of records in each bucket, oldest and coarsest first."""
        for number in reversed(range(len(self._levels))):
            yield CurveStretch(self._levels[number].positions, self._levels[number].figures), 2 << number
        newest = {name: _buckets_of(values) for name, values in self._values.items()}
        yield CurveStretch(self._positions, newest), 1

    def positions(self, axis: Axis) -> array[float]:
        """Return the position of each bucket, oldest first; positions never decrease."""
        number = _NUMBERS[axis]
        result = array("d")
        for level in reversed(self._levels):
            result += level.positions[number]
        return result + self._positions[number]

    def buckets(self, figure: str) -> FigureBuckets:
        """Return one figure over the length of the run, a bucket for each of ``positions``."""
        result = _nothing(0)
        for level in reversed(self._levels):
            _extend(result, level.figures.get(figure) or _nothing(len(level)))
        newest = self._values.get(figure)
        length = len(self._positions[0])
        _extend(result, _nothing(length) if newest is None else _buckets_of(newest))
        return result

    def continue_with(self, newer: RunCurve) -> None:
        """Append the records of a newer curve of the same run, from after the newest record of this one.

        Each bucket of the newer curve is added as one record with the mean of the bucket.
        """
        last_steps, last_time, _ = self._last
        for stretch, _ in newer.stretches():
            for number, (steps, time, updates) in enumerate(zip(*stretch.positions, strict=True)):
                if time > last_time or steps > last_steps:
                    means = {
                        name: bucket.sums[number] / bucket.counts[number]
                        for name, bucket in stretch.figures.items()
                        if bucket.counts[number]
                    }
                    self.add(CurveRecord(time, steps, updates, means))


class _Level:
    """Buckets that hold equally many records each."""

    def __init__(self, positions: Positions, figures: dict[str, FigureBuckets]) -> None:
        self.positions = positions
        self.figures = figures

    @classmethod
    def empty(cls) -> _Level:
        return cls(_no_positions(), {})

    def __len__(self) -> int:
        return len(self.positions[0])

    def append(self, newer: _Level) -> None:
        """Append buckets; a figure that one of both levels lacks counts no records there."""
        length = len(self)
        for name in newer.figures.keys() - self.figures.keys():
            self.figures[name] = _nothing(length)
        for name, own in self.figures.items():
            _extend(own, newer.figures.get(name) or _nothing(len(newer)))
        for values, others in zip(self.positions, newer.positions, strict=True):
            values.extend(others)

    def halved(self) -> _Level:
        """Return half as many buckets, each merged from two neighbours."""
        # map over slices runs in C: this is the only operation that processes every record repeatedly.
        return _Level(
            _part(self.positions, slice(1, None, 2)),
            {
                name: FigureBuckets(
                    array("I", map(add, own.counts[::2], own.counts[1::2])),
                    array("d", map(add, own.sums[::2], own.sums[1::2])),
                    array("f", map(min, own.lows[::2], own.lows[1::2])),
                    array("f", map(max, own.highs[::2], own.highs[1::2])),
                )
                for name, own in self.figures.items()
            },
        )

    def split(self, at: int) -> tuple[_Level, _Level]:
        """Return the buckets before an index, and the others."""
        return self._part(slice(None, at)), self._part(slice(at, None))

    def _part(self, part: slice) -> _Level:
        figures = {
            name: FigureBuckets(own.counts[part], own.sums[part], own.lows[part], own.highs[part])
            for name, own in self.figures.items()
        }
        return _Level(_part(self.positions, part), figures)


def _no_positions() -> Positions:
    return array("d"), array("d"), array("d")


def _part(positions: Positions, part: slice) -> Positions:
    steps, times, updates = positions
    return steps[part], times[part], updates[part]


def _nothing(length: int) -> FigureBuckets:
    return FigureBuckets(
        array("I", [0]) * length,
        array("d", [0.0]) * length,
        array("f", [math.inf]) * length,
        array("f", [-math.inf]) * length,
    )


def _buckets_of(values: array[float]) -> FigureBuckets:
    """Return buckets of one record each; a bucket without a value has the count 0."""
    if not any(map(math.isnan, values)):
        return FigureBuckets(array("I", [1]) * len(values), values, array("f", values), array("f", values))
    return FigureBuckets(
        array("I", (not math.isnan(value) for value in values)),
        array("d", (0.0 if math.isnan(value) else value for value in values)),
        array("f", (math.inf if math.isnan(value) else value for value in values)),
        array("f", (-math.inf if math.isnan(value) else value for value in values)),
    )


def _extend(buckets: FigureBuckets, more: FigureBuckets) -> None:
    buckets.counts.extend(more.counts)
    buckets.sums.extend(more.sums)
    buckets.lows.extend(more.lows)
    buckets.highs.extend(more.highs)
