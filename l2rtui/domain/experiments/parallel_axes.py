"""Axes of parallel coordinates: where each trial of a sweep lies on each of its settings, and on its result.

A. Inselberg, "The plane with parallel coordinates", The Visual Computer 1 (1985). An axis of numbers is logarithmic
where its values span a factor of ten; texts, lists and truth values lie evenly, in the order of the trials.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.domain.curves.scale import position_scale
from l2rtui.domain.experiments.trial_results import TrialResult
from l2rtui.domain.sweeps.trial import short_names

_LOG_FACTOR: Final = 10.0
_MOST_VALUES: Final = 8
"""Distinct numbers that are all labelled; of more, round ones are."""
_TICK_DISTANCE: Final = 0.06
"""Share of an axis between two labels: 18 of 300 pixels."""
_LEAST_SPAN: Final = 1e-300
"""Span below which no float is a round step."""
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """One axis.

    Attributes:
        shares: Where each trial lies, in the order of the trials: 0 at the lower end, 1 at the upper one; None for
            a trial without a value.
        ticks: Shares with their labels, ascending.
    """

    label: str
    shares: tuple[float | None, ...]
    ticks: tuple[tuple[float, str], ...]


def setting_axes(results: Sequence[TrialResult]) -> tuple[ParallelAxis, ...]:
    """Return an axis for each setting that a trial has, in the order of the first trial that has it."""
    settings = [result.trial.settings() for result in results]
    by_number = sorted(range(len(results)), key=lambda at: results[at].trial.number)
    paths = list(dict.fromkeys(path for at in by_number for path in settings[at]))
    names = short_names(paths)
    axes = []
    for path in paths:
        values = [own.get(path, _MISSING) for own in settings]
        numbers = [_number(value) for value in values]
        if all(number is not None or value is _MISSING for number, value in zip(numbers, values, strict=True)):
            axes.append(number_axis(names[path], numbers))
        else:
            axes.append(_word_axis(names[path], values, by_number))
    return tuple(axes)


def number_axis(label: str, values: Sequence[float | None], *, may_be_log: bool = True) -> ParallelAxis:
    """Return an axis of numbers, from the least to the greatest of them.

    Args:
        may_be_log: Logarithmic where the greatest is ten times the least, and no value is 0 or less.
    """
    distinct = sorted({value for value in values if value is not None})
    if not distinct:
        return ParallelAxis(label, tuple(None for _ in values), ())
    low, high = distinct[0], distinct[-1]
    is_log = may_be_log and low > 0.0 and high >= low * _LOG_FACTOR

    def share(value: float) -> float:
        if low == high:
            return 0.5
        if is_log:
            return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        if math.isinf(high - low):  # of opposite signs and beyond 1e308
            return (value / 2 - low / 2) / (high / 2 - low / 2)
        return (value - low) / (high - low)

    marked = distinct if len(distinct) <= _MOST_VALUES else _round_values(low, high, is_log=is_log)
    ticks = [(share(value), f"{value:.6g}") for value in marked]
    shares = tuple(None if value is None else share(value) for value in values)
    return ParallelAxis(f"{label} (log)" if is_log else label, shares, _apart(ticks))


def _round_values(low: float, high: float, *, is_log: bool) -> list[float]:
    """Return both ends, and the round numbers between them."""
    if is_log:
        first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
        # A power below 1e-307 or above 1e308 is none that a float can have.
        inner = [10.0**power for power in range(max(first, -307), min(last, 308) + 1)]
    elif not _LEAST_SPAN < high - low < math.inf:
        inner = []
    else:
        inner = [value for value, _ in position_scale(low, high, 6).ticks]
    return [low, *(value for value in inner if low < value < high), high]


def _word_axis(label: str, values: Sequence[Any], order: Sequence[int]) -> ParallelAxis:
    texts = [None if value is _MISSING else _word(value) for value in values]
    words = list(dict.fromkeys(text for at in order if (text := texts[at]) is not None))
    places = {word: at / (len(words) - 1) if len(words) > 1 else 0.5 for at, word in enumerate(words)}
    shares = tuple(None if text is None else places[text] for text in texts)
    return ParallelAxis(label, shares, _apart([(place, word) for word, place in places.items()]))


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond 1e308
        return None
    return number if math.isfinite(number) else None


def _apart(ticks: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """Return both outer ticks, and of the others those that leave room for every label."""
    if len(ticks) < 3:
        return tuple(ticks)
    chosen, last = [ticks[0]], ticks[-1]
    for tick in ticks[1:-1]:
        if tick[0] - chosen[-1][0] >= _TICK_DISTANCE and last[0] - tick[0] >= _TICK_DISTANCE:
            chosen.append(tick)
    return (*chosen, last)
