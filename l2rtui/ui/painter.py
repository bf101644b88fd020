"""Output to the terminal: the difference between the cells that it shows and the new ones.

Textual writes every line that a widget has touched, with the full style of each piece. A dialog then takes seconds
over a slow link: its dimmed background is sent first, and all lines are sent twice. Here cells are compared with
those of before; only words that differ are written, and of their style only what changes from piece to piece.

Textual has no hook for this: ``_display`` gets the two kinds of updates whose parts are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

_BRIDGE: Final = 6
"""Equal cells between two runs that are written again, since a cursor movement has as many bytes."""
_SEEN_ON_BLANKS: Final = frozenset(("4", "7", "9", "21", "53"))
"""Attributes that show on a space: underlines, reverse, strike, overline."""


class _Pen(NamedTuple):
    """Style of a cell as parameters of SGR; an empty text is the terminal's default.

    Attributes:
        attributes, colour: None for a space on which neither shows.
        link: OSC 8 target.
    """

    attributes: str | None
    colour: str | None
    back: str
    link: str = ""


_DEFAULT: Final = _Pen("", "", "")
_Cell = tuple[str, _Pen]
_columns_of = lru_cache(maxsize=4096)(cell_len)


class _Cells(NamedTuple):
    """Cells of a line, and whether a character has two columns."""

    cells: list[_Cell]
    is_wide: bool


class Painter(CompositorUpdate):
    """Collects updates, and renders them as the difference to what was rendered before."""

    def __init__(self) -> None:
        self._size = Size(0, 0)
        self._lines: dict[int, Strip] = {}
        self._painted: dict[int, tuple[Strip, _Cells]] = {}
        self._changed: set[int] = set()

    def forget(self) -> None:
        """Forget the painted cells: another program or a new size has changed the terminal."""
        self._painted.clear()
        self._changed.update(self._lines)

    def take(self, update: LayoutUpdate | ChopsUpdate, size: Size) -> None:
        """Add an update; ``render_segments`` writes its effect."""
        # Lines of another size say nothing about the cells of this one.
        if size != self._size:
            self._size = size
            self._lines.clear()
            self._painted.clear()
            self._changed.clear()
        # Textual yields lines from the top, so the parts of one line are neighbours.
        pieces = _whole(update) if isinstance(update, LayoutUpdate) else _chops(update)
        for y, parts in groupby(pieces, key=itemgetter(0)):
            if 0 <= y < size.height:
                self._lines[y] = _merged(self._lines.get(y), [part[1:] for part in parts], size.width)
                self._changed.add(y)

    def render_segments(self, console: Console) -> str:
        """Return the output for all changes since the last call."""
        system = console._color_system or ColorSystem.TRUECOLOR  # noqa: SLF001  (its property is a name)
        output: list[str] = []
        pen = _DEFAULT
        for y in sorted(self._changed):
            line, (before, old) = self._lines[y], self._painted.get(y, (None, None))
            if before is not None and (line is before or line._segments == before._segments):  # noqa: SLF001
                continue
            row = _cells(line, system)
            self._painted[y] = line, row
            for x, run in _differing(row, old):
                output.append(f"\x1b[{y + 1};{x + 1}H")
                for own, cells in groupby(run, key=itemgetter(1)):
                    output.append(_turn(pen, own))
                    output += [text for text, _ in cells]
                    pen = _after(pen, own)
        self._changed.clear()
        if pen != _DEFAULT:
            output.append(_turn(pen, _DEFAULT))
        return "".join(output)


def _whole(update: LayoutUpdate) -> Iterator[tuple[int, int, Strip]]:
    for y, strips in enumerate(update.strips, update.region.y):
        x = update.region.x
        for strip in strips:
            yield y, x, strip
            x += strip.cell_length


def _chops(update: ChopsUpdate) -> Iterator[tuple[int, int, Strip]]:
    for y, left, right in update.spans:
        # As in render_segments of Textual: a part that begins before its span is sent from its beginning.
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x > right or end <= left:
                continue
            yield y, x, strip if end <= right else strip.crop(0, min(end, right) - x)


def _merged(before: Strip | None, parts: list[tuple[int, Strip]], width: int) -> Strip:
    """Return a line with parts of it replaced; unknown cells are blank."""
    if len(parts) == 1 and parts[0][0] == 0 and parts[0][1].cell_length == width:
        return parts[0][1]
    line = Strip.blank(width) if before is None else before
    pieces: list[Strip] = []
    at = 0
    for x, strip in sorted(parts, key=itemgetter(0)):
        if x < at:  # the same cells again, from a second span of the line
            line = Strip.join([*pieces, line.crop(at, width)])
            pieces, at = [], 0
        if x > at:
            pieces.append(line.crop(at, x))
        pieces.append(strip)
        at = x + strip.cell_length
    if at < width:
        pieces.append(line.crop(at, width))
    return Strip.join(pieces)


def _cells(line: Strip, system: ColorSystem) -> _Cells:
    """Return a line as cells. A character of two columns is followed by an empty one, and one of none is with the
    character before it.
    """
    cells: list[_Cell] = []
    is_wide = False
    for text, style, control in line:
        if control:
            continue
        pen, blank = _pens(style or Style.null(), system)
        if text.isascii():
            cells += [(char, blank if char == " " else pen) for char in text]
            continue
        for char in text:
            columns = _columns_of(char)
            if not columns:
                if cells:
                    cells[-1] = (cells[-1][0] + char, cells[-1][1])
                continue
            cells.append((char, blank if char == " " else pen))
            if columns > 1:
                is_wide = True
                cells += [("", pen)] * (columns - 1)
    return _Cells(cells, is_wide)


@lru_cache(maxsize=4096)
def _pens(style: Style, system: ColorSystem) -> tuple[_Pen, _Pen]:
    """Return the pens of a style and of its spaces."""
    colour, back = style.color, style.bgcolor
    attributes = Strip.render_ansi(style.without_color, system)
    pen = _Pen(
        attributes,
        ";".join(colour.downgrade(system).get_ansi_codes()) if colour is not None else "",
        ";".join(back.downgrade(system).get_ansi_codes(foreground=False)) if back is not None else "",
        style.link or "",
    )
    is_seen = pen.link or _SEEN_ON_BLANKS.intersection(attributes.split(";"))
    return pen, pen if is_seen else _Pen(None, None, pen.back)


def _differing(line: _Cells, before: _Cells | None) -> Iterator[tuple[int, list[_Cell]]]:
    """Yield the runs of cells that differ, each with its column."""
    cells = line.cells
    if before is None or len(cells) != len(before.cells) or line.is_wide or before.is_wide:
        # Half of a wide character cannot be written: lines with one are written as a whole.
        yield 0, cells
        return
    start = end = -1
    for x in [x for x, (cell, old) in enumerate(zip(cells, before.cells, strict=True)) if cell != old]:
        if x < end:
            continue
        if start >= 0 and x - end > _BRIDGE:
            yield start, cells[start:end]
            start = -1
        if start < 0:
            start = x
        end = x + 1
        # To the ends of the word: programs that read the output look for words.
        while start and cells[start - 1][0] != " " and cells[start][0] != " ":
            start -= 1
        while end < len(cells) and cells[end][0] != " " and cells[end - 1][0] != " ":
            end += 1
    if start >= 0:
        yield start, cells[start:end]


def _turn(pen: _Pen, to: _Pen) -> str:
    """Return the output that changes the pen."""
    link = f"\x1b]8;;{to.link}\x1b\\" if to.link != pen.link else ""
    if to.attributes is None:
        if not _SEEN_ON_BLANKS.intersection((pen.attributes or "").split(";")):
            return link if to.back == pen.back else f"{link}\x1b[{to.back or '49'}m"
        to = to._replace(attributes="", colour="")
    parts = [*_colours(pen, to)]
    if to.attributes != pen.attributes:
        # Single attributes are never ended, only all of them, and with them the colours.
        parts = ["0", to.attributes or "", *_colours(_DEFAULT, to)]
    codes = ";".join(filter(None, parts))
    return f"{link}\x1b[{codes}m" if codes else link


def _colours(pen: _Pen, to: _Pen) -> tuple[str, str]:
    return (
        "" if to.colour == pen.colour else to.colour or "39",
        "" if to.back == pen.back else to.back or "49",
    )


def _after(pen: _Pen, to: _Pen) -> _Pen:
    """Return the state of the terminal after ``_turn``."""
    if to.attributes is not None:
        return to
    if _SEEN_ON_BLANKS.intersection((pen.attributes or "").split(";")):
        return _Pen("", "", to.back)
    return _Pen(pen.attributes, pen.colour, to.back, to.link)
