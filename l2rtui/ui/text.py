"""Ages, counts, gauges and sparklines: values as short text with a meaning. Pure, no widgets.

A text carries a TextStyle, its meaning; the theme gives each style its colour. A style is never the only carrier of
a meaning: a glyph or a word says the same, for terminals and users without colours.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len, set_cell_size

from l2rtui.domain.curves.scale import usual_values
from l2rtui.domain.status import Level

if TYPE_CHECKING:
    from l2rtui.domain.node import SlotId


class TextStyle(Enum):
    """Meaning of a piece of text."""

    PLAIN = "plain"
    DIM = "dim"
    FAINT = "faint"
    HEADING = "heading"
    STRONG = "strong"
    OK = "ok"
    WAIT = "wait"
    WARN = "warn"
    BAD = "bad"
    FAULT = "fault"
    DONE = "done"
    ACCENT = "accent"
    BUTTON = "button"
    SELECTED = "selected"
    SELECTED_FAULT = "selected-fault"
    STAGED = "staged"
    HUE0 = "hue0"
    HUE1 = "hue1"
    HUE2 = "hue2"
    HUE3 = "hue3"
    HUE4 = "hue4"
    HUE5 = "hue5"
    BAND0 = "band0"
    BAND1 = "band1"
    BAND2 = "band2"
    BAND3 = "band3"
    BAND4 = "band4"
    BAND5 = "band5"


HUES: Final = (TextStyle.HUE0, TextStyle.HUE1, TextStyle.HUE2, TextStyle.HUE3, TextStyle.HUE4, TextStyle.HUE5)
"""Styles without a meaning, to distinguish items: owners in the slot grid, pods in a merged log."""
BANDS: Final = (
    TextStyle.BAND0,
    TextStyle.BAND1,
    TextStyle.BAND2,
    TextStyle.BAND3,
    TextStyle.BAND4,
    TextStyle.BAND5,
)
"""The hues, on a background of their own colour: inside the spread of a curve."""


class Span(NamedTuple):
    """Sanitised part of one line, and its style."""

    text: str
    style: TextStyle = TextStyle.PLAIN


Line = tuple[Span, ...]

GLYPHS: Final = {Level.OK: "●", Level.WAIT: "◌", Level.WARN: "▲", Level.BAD: "✖", Level.DONE: "✔"}
# A state with a fault is shown as a coloured block; a sentence about it is not, as a page of blocks would hide it.
_LEVEL_STYLES: Final = {**{level: TextStyle(level.value) for level in Level}, Level.BAD: TextStyle.FAULT}
_BARS: Final = "▁▂▃▄▅▆▇█"
NOTHING: Final = "-"
"""Text for an unknown value."""
_KEYS_OF_HINT: Final = re.compile(r"(?:\S )+|\S* ?")
_HINT_GAP: Final = "   "
QUEUED: Final = " (queued)"
"""End of the name of a run that waits for room instead of being launched."""


def style_of_level(level: Level) -> TextStyle:
    """Return the style of a level."""
    return _LEVEL_STYLES[level]


def status_text(word: str, level: Level) -> str:
    """Return glyph and word of a state."""
    return f"{GLYPHS[level]} {word}"


def count(number: float | None) -> str:
    """Write a count with thousands separators: ``7,610``."""
    return NOTHING if number is None else f"{number:,.0f}"


def decimal(number: float | None) -> str:
    """Write a measured value with two decimals, or without decimals from a thousand on."""
    return count(number) if number is None or abs(number) >= 1000 else f"{number:.2f}"


def per_second(number: float | None) -> str:
    """Write a number of events a second: as ``decimal``, but without decimals from a hundred on."""
    return count(number) if number is not None and abs(number) >= 100 else decimal(number)


def percent(part: float | None, total: float) -> str:
    """Write a share in steps of 5 %, so that a busy machine does not repaint the screen; ``-`` when unknown."""
    if part is None or total <= 0:
        return NOTHING
    return f"{round(20 * part / total) * 5}%"


def load_bar(percent_busy: float) -> str:
    """Draw a load of 0 to 100 % in one column, in eight steps."""
    return _BARS[min(7, max(0, int(percent_busy / 12.5)))]


_FULL = 85
"""Percent from which a load is drawn as full."""


def load_style(percent_busy: float) -> TextStyle:
    """Return the style of a load of 0 to 100 %; a full GPU is no fault and never has the colour of one."""
    return TextStyle.WARN if percent_busy >= _FULL else TextStyle.OK


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the newest values as bars, one column each, scaled between their least and greatest without outliers.

    Args:
        values: Any finite numbers, oldest first.
        width: Columns; more values than columns are averaged in groups, so that the whole history is shown.
    """
    if not values or width < 1:
        return ""
    if len(values) > width:
        # Edges are rounded from fractions, so group sizes differ by at most one value and every value is used.
        edges = [round(number * len(values) / width) for number in range(width + 1)]
        values = [sum(values[low:high]) / (high - low) for low, high in pairwise(edges) if high > low]
    usual = usual_values(values)
    low, high = min(usual), max(usual)
    span = high - low
    if span <= 0:
        return _BARS[3] * len(values)  # a constant has no scale; half height looks like neither 0 nor full
    return "".join(_BARS[max(0, min(7, int(8 * (value - low) / span)))] for value in values)


def shorten(text: str, width: int) -> str:
    """Cut text to a width in characters, with an ellipsis for the missing part."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def broken(text: str, width: int, line: int) -> str:
    """Return one line, counted from 0, of a sentence wrapped to a width in characters; empty after the last
    line.
    """
    lines = _broken(text, max(10, width))
    return lines[line] if line < len(lines) else ""


def key_hints(hints: Sequence[str], width: int, *, has_button: bool = False) -> list[Line]:
    """Return hints such as ``enter plan`` in lines of a width in characters; a key and its action stay together.

    Args:
        has_button: The first hint is the main action, drawn as a button.
    """
    rows: list[Line] = [()]
    for number, hint in enumerate(hints):
        end = len(_KEYS_OF_HINT.match(hint)[0])  # type: ignore[index]  # matches any text
        spans: Line = (Span(hint[:end], TextStyle.ACCENT), Span(hint[end:], TextStyle.DIM))
        if has_button and not number:
            spans = (Span(f" {hint} ", TextStyle.BUTTON),)
        if rows[-1] and width_of(rows[-1]) + len(_HINT_GAP) + width_of(spans) > width:
            rows.append(spans)
        else:
            rows[-1] = (*rows[-1], Span(_HINT_GAP), *spans) if rows[-1] else spans
    return rows


@lru_cache(maxsize=16)  # a widget asks for its lines one by one, and each call would wrap the whole text
def _broken(text: str, width: int) -> tuple[str, ...]:
    return tuple(textwrap.wrap(text, width))


def slot_ranges(slots: Iterable[SlotId]) -> str:
    """Write slots in order with consecutive ones joined: ``n1/0.0-3, n1/1.2``."""
    parts: list[list[SlotId]] = []
    for slot in sorted(slots):
        last = parts[-1][-1] if parts else None
        if last is not None and (last.node, last.gpu, last.slot + 1) == (slot.node, slot.gpu, slot.slot):
            parts[-1].append(slot)
        else:
            parts.append([slot])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1].slot}" for part in parts)


def apart(names: Sequence[str], most: int) -> dict[str, str]:
    """Return names of at most this many characters, by the full ones, cut where they agree.

    Names of pods start alike and differ at their end: a common prefix is cut first, then the middle.
    """
    if all(len(name) <= most for name in names):
        return {name: name for name in names}
    parts = [name.split("-") for name in names]
    # The last part always stays: a single name would otherwise be cut completely.
    columns = zip(*(own[:-1] for own in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns)) if len(names) > 1 else 0
    rests = {name: "-".join(own[shared:]) for name, own in zip(names, parts, strict=True)}
    for head in range(most // 3, -1, -1):
        cut = {name: _cut_middle(rest, most, head) for name, rest in rests.items()}
        # With several runs the seed may be in the part that is cut: then more of the end is shown.
        if len(set(cut.values())) == len(cut):
            return cut
    return {name: _cut_middle(rest, most, most // 3) for name, rest in rests.items()}


def _cut_middle(text: str, most: int, head: int) -> str:
    """Cut text to a width in characters, with an ellipsis after the first ``head`` characters."""
    return text if len(text) <= most else f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def clip(line: Line, width: int) -> Line:
    """Cut a line to a width in characters between two words, with an ellipsis for the rest.

    Half a number reads as another number. A single word that is too long is cut anyway.
    """
    if width_of(line) <= width:
        return line
    spans: list[Span] = []
    room = max(0, width - 1)
    for text, style in line:
        if len(text) <= room:
            spans.append(Span(text, style))
            room -= len(text)
            continue
        end = text.rfind(" ", 0, room + 1)
        spans.append(Span(text[:end] if end >= 0 else "" if spans else text[:room], style))
        break
    return (*spans, Span("…", TextStyle.DIM))


def wrapped(line: Line, width: int, rows: int, indent: int) -> tuple[Line, ...]:
    """Wrap a line between words into at most this many rows; the rest is clipped in the last row.

    Args:
        indent: Columns before all rows but the first.
    """
    result: list[Line] = []
    row: list[Span] = []
    pieces = [Span(word, style) for text, style in line for word in re.findall(r"\s+|\S+", text)]
    for number, piece in enumerate(pieces):
        if width_of(row) + len(piece.text) > width:
            if len(result) == rows - 1:
                row += pieces[number:]
                break
            if piece.text.isspace():  # trailing spaces are not carried to the next row
                continue
            result.append(clip(tuple(row), width))
            row = [Span(" " * indent)]
        row.append(piece)
    return (*result, clip(tuple(row), width))


_LEAST_INDENT: Final = 2


def hanging(line: Line, width: int) -> tuple[Line, ...]:
    """Wrap a line between words; further rows are indented to the start of its text, after a label or spaces."""
    if width_of(line) <= width or not line:
        return (line,)
    first = line[0].text
    # A glyph and the spaces around it are a label too.
    signs = tuple(takewhile(lambda span: not any(map(str.isalnum, span.text)), line))
    indent = width_of(signs) or (len(first) if len(line) > 1 else len(first) - len(first.lstrip(" ")))
    longest = max((len(word) for span in line for word in span.text.split()), default=0)
    if indent + longest > width:  # a path, below a long label
        indent = len(first) - len(first.lstrip(" ")) + _LEAST_INDENT
    if indent + longest > width:
        return (line,)  # the widget wraps inside such a word, so nothing is lost
    return wrapped(line, width, width_of(line), indent)


def width_of(line: Sequence[Span]) -> int:
    """Return the number of characters of a line."""
    return sum(len(span.text) for span in line)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Give text exactly this many terminal columns: cut with an ellipsis, or padded with spaces."""
    columns = len(text) if text.isascii() else cell_len(text)  # wide characters take two columns, accents zero
    if columns > width:
        text = f"{set_cell_size(text, max(0, width - 1))}…" if width else ""
        columns = cell_len(text)
    space = " " * (width - columns)
    return f"{space}{text}" if right else f"{text}{space}"
