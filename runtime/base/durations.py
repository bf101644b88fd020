"""Durations as people write them, in specs, settings and options: ``90``, ``30m``, ``1h30m``, ``1.5h``, ``2d``."""

from __future__ import annotations

import math
import re
from typing import Final

MAX_SECONDS: Final = 10 * 365 * 86400.0
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd]?)+", re.ASCII)
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)


def parse_duration(value: str | float, *, allows_zero: bool = False) -> float:
    """Return the seconds of a duration.

    Raises:
        ValueError: with a sentence: it is no duration, is negative, or is above ten years.
    """
    seconds = math.nan
    if isinstance(value, str) and _DURATION.fullmatch(text := value.replace(" ", "")):
        seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not (seconds >= 0 if allows_zero else seconds > 0) or seconds > MAX_SECONDS:
        raise ValueError(f"{value!r} is not a duration: write seconds, or 30m, 12h, 1h30m, 2d")
    return seconds


def duration_text(seconds: float) -> str:
    """Write a duration as people do: ``12 h``, ``1 h 30 min``, ``2.5 s``."""
    if seconds < 60:
        return f"{round(seconds, 1):g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
