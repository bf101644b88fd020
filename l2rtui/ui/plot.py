"""Line plots in braille dots (Unicode block U+2800): two by four dots in each cell of the terminal. Pure.

Own code, because of its speed: a chart of 12 lines with 512 points in 76x20 cells took textual-plotext 48 ms,
textual-plot 33 ms, and this module 3 ms. Four such charts are redrawn every second, and keys wait for them.
textual-plot also needs NumPy, which the app avoids, and neither library draws a spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character, by column and row of the dot."""
SPREAD: Final = "░"
"""Empty cell inside a spread: no line looks like it, even without colours."""
DOT_COLUMNS: Final = 2
"""Columns of dots in a cell."""
_DOT_ROWS: Final = 4
_FIRST: Final = 0x2800
"""The braille character without dots; the others are this one with the bits of their dots."""


class PlotLine(NamedTuple):
    """Line by columns of dots; values are shares of the height, from 0 to 1, or NaN.

    Attributes:
        lows, highs: Edges of its spread; empty without one.
    """

    values: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()


class PlotPart(NamedTuple):
    """Adjacent cells that belong to one line.

    Attributes:
        owner: Number of the line, -1 for empty cells.
        is_inside: The cells are inside a spread, which is their background.
    """

    text: str
    owner: int
    is_inside: bool = False


def plot(lines: Sequence[PlotLine], width: int, height: int) -> list[list[PlotPart]]:
    """Draw lines and their spreads over each other, later ones over earlier ones, lines over spreads.

    Args:
        width, height: Cells of the terminal.

    Returns:
        Lines of the terminal from top to bottom, each in parts of one owner.
    """
    cells = [[" "] * width for _ in range(height)]
    owners = [[-1] * width for _ in range(height)]
    insides = [[False] * width for _ in range(height)]
    for number, line in enumerate(lines):
        for x, top, bottom in _spans_of_spread(line, height):
            for y in range(top, bottom + 1):
                cells[y][x] = SPREAD
                owners[y][x] = number
                insides[y][x] = True
    for number, line in enumerate(lines):
        for x, top, bottom in _spans_of_line(line.values, height):
            column, cell = _DOTS[x % DOT_COLUMNS], x // DOT_COLUMNS
            for y in range(top, bottom + 1):
                row = cells[y // _DOT_ROWS]
                before = ord(row[cell])
                dots = max(before, _FIRST)
                row[cell] = chr(dots | column[y % _DOT_ROWS])
                owners[y // _DOT_ROWS][cell] = number
    return [_parts(*row) for row in zip(cells, owners, insides, strict=True)]


def _parts(cells: list[str], owners: list[int], insides: list[bool]) -> list[PlotPart]:
    groups = groupby(zip(owners, insides, cells, strict=True), key=itemgetter(0, 1))
    return [PlotPart("".join(char for *_, char in group), *look) for look, group in groups]


def _spans_of_line(values: Sequence[float], height: int) -> Iterator[tuple[int, int, int]]:
    """Yield column, upper and lower dot of the line, which joins each value to the previous one."""
    last = _DOT_ROWS * height - 1
    before_x, before_y = -2, 0  # not a neighbour of the first column
    for x, value in enumerate(values):
        if math.isnan(value):  # a column without a record; the line continues straight to the next one
            continue
        y = round((1 - value) * last)
        if before_x >= 0:
            for between in range(before_x + 1, x):
                at = before_y + round((y - before_y) * (between - before_x) / (x - before_x))
                yield between, at, at
        nearest = y if before_x != x - 1 or before_y == y else before_y + (1 if y > before_y else -1)
        yield x, min(y, nearest), max(y, nearest)
        before_x, before_y = x, y


def _spans_of_spread(line: PlotLine, height: int) -> Iterator[tuple[int, int, int]]:
    """Yield column, upper and lower row of the cells whose centre is inside the spread."""
    for x in range(0, len(line.lows), DOT_COLUMNS):
        lows = [value for value in line.lows[x : x + DOT_COLUMNS] if not math.isnan(value)]
        highs = [value for value in line.highs[x : x + DOT_COLUMNS] if not math.isnan(value)]
        if lows and highs:
            top, bottom = (1 - max(highs)) * height - 0.5, (1 - min(lows)) * height - 0.5
            yield x // DOT_COLUMNS, max(0, math.ceil(top)), min(height - 1, math.floor(bottom))
