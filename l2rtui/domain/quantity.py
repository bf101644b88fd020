"""Conversion between Kubernetes quantities (``500m``, ``16Gi``) and numbers; formats of counts, times and
durations.

Source: the Quantity format of the Kubernetes API, ``apimachinery/pkg/api/resource/quantity.go``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import inf, isfinite

_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?)\s*", re.ASCII
)


def parse_quantity(text: str | float) -> float:
    """Return the number that a quantity represents: cores for CPU, bytes for memory.

    Raises:
        ValueError: The text is not a quantity; the message names it.
    """
    try:
        value = float(text) if isinstance(text, int | float) else _parse(text)
    except OverflowError:  # a whole number with more than 308 digits
        value = inf
    if not isfinite(value):
        raise ValueError(f"{text!r} is not a number of cores or bytes")
    return value


def _parse(text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        sentence = f"{text!r} is not a quantity: write a number with an optional suffix, such as 500m or 16Gi"
        raise ValueError(sentence)
    number, exponent, suffix = match.groups()
    return float(f"{number}e{exponent}") if exponent else float(number) * _SUFFIXES[suffix or ""]


_LEAST_BYTES = 2**16
_MOST_CORES = 4096
_LOOSE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtpe])?i?(?:b|byte|bytes)?\s*", re.ASCII | re.IGNORECASE)
"""A size as people often write it: ``512mb``, ``2 GiB``."""


def parse_bytes(text: str | float) -> int:
    """Parse a quantity of memory or storage into bytes.

    Raises:
        ValueError: It is not a quantity, or is negative, or is below one byte, so that another unit must be meant:
            ``512m`` is half a byte, which Kubernetes treats as no limit.
    """
    try:
        value = parse_quantity(text)
    except ValueError as error:
        if (size := _meant_size(text)) and "is not a quantity" in str(error):
            raise ValueError(f"{text!r} is not a quantity: did you mean {size}?") from None
        raise
    if value < 0:
        raise ValueError(f"{text} is less than nothing")
    if 0 < value < _LEAST_BYTES:
        amount = "less than one byte" if value < 1 else counted(int(value), "byte")
        raise ValueError(f"{text!r} is {amount}: did you mean {_meant_size(text) or '512Mi'}?")
    return int(value)


def parse_cores(text: str | float) -> float:
    """Parse a quantity of CPU into cores.

    Raises:
        ValueError: It is not a quantity, or is negative, or has a unit that makes no sense for CPU: ``2Gi``,
            ``500M``.
    """
    value = parse_quantity(text)
    if value < 0:
        raise ValueError(f"{text} is less than nothing")
    number = _LOOSE.fullmatch(str(text))
    if value > _MOST_CORES:
        is_thousandths = number is None or number[2] in (None, "M")
        unit = f"{number[1]}m" if number and is_thousandths else number[1] if number else "2"
        raise ValueError(f"{text!r} is {value:.4g} cores: did you mean {unit}?")
    if 0 < value < 0.001:
        raise ValueError(f"{text!r} is less than a thousandth of a core, 1m")
    return value


def _meant_size(text: str | float) -> str:
    """Return the size that was probably meant, with a binary suffix; empty if it cannot be guessed."""
    match = _LOOSE.fullmatch(str(text))
    if match is None:
        return ""
    suffix = {"k": "Ki"}.get((match[2] or "m").lower(), f"{(match[2] or 'm').upper()}i")
    return f"{match[1]}{suffix}"


def whole_number(text: str) -> int | None:
    """Parse a number of up to 15 ASCII digits; None for any other text.

    Labels and variables of other people's pods may hold a thousand digits, which Python refuses to parse.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def rfc3339(seconds: float | None) -> str | None:
    """Format seconds since the epoch in UTC, to the millisecond; None for None or a time outside of the
    calendar.
    """
    if not seconds:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # a record from inside a run may contain any number
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(seconds: float | None) -> str:
    """Format seconds since the epoch for people: ``2026-11-27 15:49:49 UTC``; empty where ``rfc3339`` is None."""
    text = rfc3339(seconds)
    return f"{text[:19].replace('T', ' ')} UTC" if text else ""


def counted(number: int, noun: str) -> str:
    """Write ``1 pod``, ``2 pods`` and ``1,000 pods``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def age(seconds: float, *, second_step: int = 10) -> str:
    """Write a time span in at most six characters: ``40s``, ``12m``, ``3h20m``, ``2d05h``, ``60d``.

    Args:
        second_step: Rounds spans below a minute down; the app's ten seconds keep a screen at rest unchanged.
    """
    rounded = max(0, int(seconds))
    if rounded < 60:
        steps = rounded // second_step
        return f"{steps * second_step}s" if steps or second_step == 1 else f"<{second_step}s"
    minutes, hours, days = rounded // 60, rounded // 3600, rounded // 86400
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{days}d{hours % 24:02d}h" if days < 10 else f"{days}d"


def format_bytes(count: float) -> str:
    """Write a number of bytes with at least three significant digits and a binary suffix: ``1.5Gi``."""
    suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
    while abs(count) >= 1024 and len(suffixes) > 1:
        count /= 1024
        suffixes.pop(0)
    # From 999.5 on, %.3g would round to 1e+03.
    return (f"{count:.3g}" if abs(count) < 999.5 else f"{count:.0f}") + suffixes[0]


def format_rate(count: float) -> str:
    """Write a number of bytes a second with its unit: ``370 KiB/s``."""
    text = format_bytes(count)
    digits = text.rstrip("KMGTPi")
    return f"{digits} {text[len(digits) :]}B/s"


def format_cores(cores: float) -> str:
    """Write CPU cores as Kubernetes does: ``2``, ``500m``."""
    return str(int(cores)) if cores == int(cores) else f"{round(cores * 1000)}m"
