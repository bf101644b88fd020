"""Ages, counts, gauges and sparklines: values to short text with a meaning. Pure, no widgets.

A text carries a Tone, its meaning; which colour a tone has is the theme's business. No tone is ever the only
carrier of a meaning: beside it stands a glyph or a word.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len, set_cell_size

from l2rtui.domain.status import Level

if TYPE_CHECKING:
    from l2rtui.domain.node import SlotId


class Tone(Enum):
    """What a piece of text means."""

    PLAIN = "plain"
    DIM = "dim"
    STRONG = "strong"
    OK = "ok"
    WAIT = "wait"
    WARN = "warn"
    BAD = "bad"
    DONE = "done"
    ACCENT = "accent"
    STAGED = "staged"
    HUE0 = "hue0"
    HUE1 = "hue1"
    HUE2 = "hue2"
    HUE3 = "hue3"
    HUE4 = "hue4"
    HUE5 = "hue5"


HUES: Final = (Tone.HUE0, Tone.HUE1, Tone.HUE2, Tone.HUE3, Tone.HUE4, Tone.HUE5)
"""Tones that only tell things apart: owners in the slot grid, pods in a merged log."""


class Span(NamedTuple):
    """A piece of one line, sanitised, and what it means."""

    text: str
    tone: Tone = Tone.PLAIN


Line = tuple[Span, ...]

GLYPHS: Final = {Level.OK: "●", Level.WAIT: "◌", Level.WARN: "▲", Level.BAD: "✖", Level.DONE: "✔"}
_LEVEL_TONES: Final = {
    Level.OK: Tone.OK,
    Level.WAIT: Tone.WAIT,
    Level.WARN: Tone.WARN,
    Level.BAD: Tone.BAD,
    Level.DONE: Tone.DONE,
}
_BARS: Final = "▁▂▃▄▅▆▇█"
NOTHING: Final = "-"
"""What stands where there is no value."""


def tone_of(level: Level) -> Tone:
    """Tone of a level."""
    return _LEVEL_TONES[level]


def status_text(word: str, level: Level) -> str:
    """Glyph and word of a state."""
    return f"{GLYPHS[level]} {word}"


def age(seconds: float) -> str:
    """Write a time span in at most six characters, in steps so coarse that a screen at rest stays at rest.

    Ten seconds up to a minute, then minutes, then hours and minutes, then days and hours.
    """
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole // 10 * 10}s" if whole >= 10 else "<10s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 60:
        return f"{minutes}m"
    if hours < 24:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{days}d{hours % 24:02d}h"


def count(number: float | None) -> str:
    """Write a count with thousands separators: ``7,610``."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}"


def decimal(number: float | None) -> str:
    """Write a measured value with two digits after the point, or none from a thousand on."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.2f}"


def percent(part: float | None, whole: float) -> str:
    """Write a share in steps of 5 %, so that a busy machine does not repaint the screen; ``-`` when unknown."""
    if part is None or whole <= 0:
        return NOTHING
    return f"{round(20 * part / whole) * 5}%"


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the newest values as bars, one column each, scaled between their least and greatest.

    Args:
        values: Any finite numbers, oldest first.
        width: Columns; more values than columns are averaged in groups, so that the whole history shows.
    """
    if not values or width < 1:
        return ""
    if len(values) > width:
        edges = [round(number * len(values) / width) for number in range(width + 1)]
        values = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges) if high > low]
    low, high = min(values), max(values)
    span = high - low
    if span <= 0:
        return _BARS[3] * len(values)
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in values)


def shorten(text: str, width: int) -> str:
    """Cut text to a width in characters, with an ellipsis where something is missing."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def broken(text: str, width: int, line: int) -> str:
    """Give one line, counted from 0, of a sentence broken to a width in characters; empty behind its end."""
    lines = _broken(text, max(10, width))
    return lines[line] if line < len(lines) else ""


@lru_cache(maxsize=16)  # it is drawn line by line
def _broken(text: str, width: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, width))


def plural(number: int, noun: str) -> str:
    """``1 pod``, ``3 pods``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def slot_ranges(slots: Iterable[SlotId]) -> str:
    """Write slots in order with runs of neighbours joined: ``n1/0.0-3, n1/1.2``."""
    parts: list[list[SlotId]] = []
    for slot in sorted(slots):
        last = parts[-1][-1] if parts else None
        if last is not None and (last.node, last.gpu, last.slot + 1) == (slot.node, slot.gpu, slot.slot):
            parts[-1].append(slot)
        else:
            parts.append([slot])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1].slot}" for part in parts)


def width_of(line: Sequence[Span]) -> int:
    """Characters of a line."""
    return sum(len(span.text) for span in line)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Give text exactly this many terminal columns: cut with an ellipsis, or filled with spaces."""
    columns = len(text) if text.isascii() else cell_len(text)
    if columns > width:
        text = f"{set_cell_size(text, max(0, width - 1))}…" if width else ""
        columns = cell_len(text)
    space = " " * (width - columns)
    return f"{space}{text}" if right else f"{text}{space}"
