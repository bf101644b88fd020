"""Scales of charts: limits and ticks at round numbers, and their labels in a few characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LABEL_CHARS: Final = 9
"""Length of the longest label that is not written as a power of ten."""
_EQUAL: Final = 1e-9
"""Relative difference below which values count as equal: rounding errors of a mean are not a curve."""
_FEW_TICKS: Final = 4
_OUTSIDE: Final = 0.02
"""Share of the values at each end that do not decide what is usual."""
_MANY_VALUES: Final = 12
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_SPANS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Seconds between two ticks of time, up to a day; longer ones are round numbers of days."""
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Scale:
    """Limits of an axis, and the positions and labels of its ticks, ascending."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()

    def share(self, value: float) -> float:
        """Return the relative position of a value between the limits: 0 for the lower, 1 for the upper one."""
        return (value - self.low) / (self.high - self.low)

    def clipped_share(self, value: float) -> float:
        """Return the same, with values beyond a limit on it; not a number stays so."""
        share = self.share(value)
        return share if math.isnan(share) else min(1.0, max(0.0, share))


def usual_values(values: Sequence[float]) -> list[float]:
    """Return the finite values without outliers, which would flatten a curve for ever.

    A value is one if it lies further from the middle 96 % of all values than these are wide. The first record of a
    learner that warms up is the usual case.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if len(ordered) < _MANY_VALUES:
        return ordered
    skipped = max(1, round(_OUTSIDE * len(ordered)))
    low, high = ordered[skipped], ordered[-1 - skipped]
    width = high - low
    return [value for value in ordered if low - width <= value <= high + width] if width > 0 else ordered


def value_scale(values: Sequence[float], most_ticks: int) -> Scale | None:
    """Return a scale that holds all finite values; None without a value.

    Its limits are round numbers, with ticks between them. Where only few ticks fit, the limits are the minimum and
    maximum, as a low chart has no spare height; the ticks are round numbers between them.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    if high - low <= _EQUAL * max(abs(low), abs(high)):
        margin = max(abs(low) * 0.05, 0.5)
        low, high = low - margin, low + margin
    if most_ticks < _FEW_TICKS:
        return Scale(low, high, _two_ticks(low, high))
    most_steps = most_ticks - 1
    step = _round_step((high - low) / most_steps)
    # Rounding to the step may add a tick at either end; then the next round number is used.
    while math.ceil(high / step) - math.floor(low / step) > most_steps:
        step = _round_step(step * 1.5)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple((number * step, number_label(number * step, step)) for number in range(first, last + 1))
    return Scale(first * step, last * step, ticks)


def _two_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Return the roundest two numbers between two limits, as far apart as they may be."""
    step = _round_step((high - low) / 2.0)
    while math.floor(high / step) - math.ceil(low / step) < 1:
        step = _round_step(step / 2.5)
    ends = math.ceil(low / step), math.floor(high / step)
    return tuple((number * step, number_label(number * step, step)) for number in ends)


def position_scale(low: float, high: float, most_ticks: int, *, is_time: bool = False) -> Scale:
    """Return a scale with exactly these limits, and ticks at round numbers between them.

    Args:
        is_time: The unit is seconds; ticks are at round minutes, hours and days.
    """
    if high <= low:
        high = low + 1.0
    step = _span_step((high - low) / most_ticks) if is_time else _round_step((high - low) / most_ticks)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    label = span_label if is_time else lambda value: number_label(value, step)
    return Scale(low, high, tuple((number * step, label(number * step)) for number in numbers))


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10 times a power of ten that is not below a number."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def _span_step(least: float) -> float:
    if least > _SPANS[-1]:
        return _round_step(least / _SPANS[-1]) * _SPANS[-1]
    return float(next(span for span in _SPANS if span >= least))


def number_label(value: float, step: float) -> str:
    """Write a number in a few characters, with enough digits to distinguish neighbours at this step: ``1.2M``."""
    if abs(value) < step / 1e6:
        return "0"  # a sum of steps may miss 0 by a rounding error
    size = max(abs(value), step)
    # Below ten thousand, all digits are as short as a prefix.
    factor, prefix = next(((limit, prefix) for limit, prefix in _PREFIXES if size >= max(limit, 1e4)), (1.0, ""))
    digits = -math.floor(math.log10(step / factor) + 1e-9)
    plain_digits = -math.floor(math.log10(step) + 1e-9)
    in_full = f"{value:,.{max(0, plain_digits)}f}"
    texts = (f"{value / factor:,.{max(0, digits)}f}{prefix}", in_full, in_full.replace(",", ""))
    return next((text for text in texts if len(text) <= LABEL_CHARS), f"{value:.2g}")


def span_label(seconds: float) -> str:
    """Write a duration in at most two units: ``90s`` is ``1m30s``."""
    rest = round(seconds)
    if rest <= 0:
        return "0"
    parts: list[str] = []
    for size, unit in _UNITS:
        number, rest = divmod(rest, size)
        if number or parts:
            parts.append(f"{number}{unit}" if number else "")
    return "".join(parts[:2])
