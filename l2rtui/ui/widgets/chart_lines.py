"""Charts as lines of the terminal: titles with values, plots with the labels of their scales, a cursor. Pure.

Lines are plotted in braille dots (Unicode block U+2800), two by four in each cell of the terminal. This is own code
because of its speed: a chart of 12 lines with 512 points in 76x20 cells took textual-plotext 48 ms, textual-plot
33 ms, and this module 3 ms. Four such charts are redrawn every second, and keys wait for them.
textual-plot also needs NumPy, which the app avoids, and neither library draws a spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from msgspec import Struct

from l2rtui.domain.curves.chart import AXIS_LABELS, Chart, ChartLine, ChartSettings, CurveGroup, chart
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.curves.scale import LABEL_CHARS, Scale, number_label, span_label
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import (
    BANDS,
    HUES,
    Line,
    Span,
    TextStyle,
    apart,
    clip,
    count,
    decimal,
    fit,
    per_second,
    width_of,
)

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


NARROWEST: Final = 36
LOWEST: Final = 6
_OVERVIEW: Final = 4
"""Number of charts side by side, unless more of them fit at a good height."""
_GOOD_HEIGHT: Final = 12
EDGE: Final = LABEL_CHARS + 1
"""Columns to the left of a plot: the label of a tick, and the axis."""
_NAME_CHARS: Final = 28
_TICK_COLUMNS: Final = 9
_TICK_ROWS: Final = 2
_WRITERS: Final = {"env steps/s": count, "updates/s": per_second}
"""Format of figures that the other tables write without decimals, or only small ones with them."""
MARKS: Final = "123456789abcdefghijklmnopqrstuvwxyz"
"""Mark at the end of each line and before its name: colours repeat, and some terminals have none."""
_EMPTY: Final = "No metric record yet: a learner prints one every second or two."


def arrangement(number: int, width: int, height: int) -> tuple[int, int]:
    """Return the numbers of charts across and down that fit; other charts are left out rather than squeezed."""
    across = max(1, min(number, width // NARROWEST, _OVERVIEW))
    fitting = max(1, (height - 1) // LOWEST)
    needed = -(-min(number, _OVERVIEW) // across)
    # More than the overview only if all charts keep a good height.
    roomy = min(-(-number // across), (height - 1) // _GOOD_HEIGHT)
    return across, max(1, min(fitting, max(needed, roomy)))


def plot_width(chart_width: int) -> int:
    """Return the cells of a plot in a chart of this width."""
    return max(1, chart_width - EDGE - 1)


class ChartPicture(Struct, frozen=True):
    """Chart and its plot without the cursor, since the cursor moves more often than curves change.

    Attributes:
        rows: Of the plot. ends: number of the line that ends in a cell, by column and row.
    """

    chart: Chart
    rows: list[list[PlotPart]]
    ends: dict[tuple[int, int], int]


def pictures(
    groups: Sequence[CurveGroup], settings: ChartSettings, width: int, height: int, figures: Sequence[str]
) -> list[ChartPicture]:
    """Draw as many charts as fit into this width and height."""
    across, down = arrangement(len(figures), width, height)
    columns, rows = _plot_size(len(figures), width, height)
    ticks = max(3, columns // _TICK_COLUMNS), max(3, rows // _TICK_ROWS)
    drawn = (chart(groups, figure, settings, DOT_COLUMNS * columns, ticks) for figure in figures[: across * down])
    return [_picture(part, columns, rows) for part in drawn]


def _plot_size(number: int, width: int, height: int) -> tuple[int, int]:
    """Return columns and rows of the plot of each of this many charts."""
    across, down = arrangement(number, width, height)
    return plot_width(width // across), max(3, (height - 1) // down) - 2


def _picture(drawn: Chart, columns: int, rows: int) -> ChartPicture:
    y = drawn.y
    if y is None:
        return ChartPicture(drawn, [[PlotPart(" " * columns, -1)]] * rows, {})
    ends = _ends(drawn, y, columns, rows) if len(drawn.lines) > 1 else {}
    return ChartPicture(drawn, plot([_plot_line(line, y) for line in drawn.lines], columns, rows), ends)


def chart_lines(
    groups: Sequence[CurveGroup],
    drawn: Sequence[ChartPicture],
    width: int,
    height: int,
    cursor: int | None = None,
) -> list[Line]:
    """Return charts as lines of the terminal, at most ``height`` of them.

    Args:
        drawn: Of ``pictures`` for this width and height.
        cursor: Column of the plots whose values are read; None for the newest.
    """
    if not drawn:
        return [(Span(f"  {_EMPTY}", TextStyle.DIM),)]
    across = arrangement(len(drawn), width, height)[0]
    lines: list[Line] = [clip(_legend(groups, drawn[0].chart, cursor), width)]
    for first in range(0, len(drawn), across):
        blocks = [_chart(picture, width // across, cursor) for picture in drawn[first : first + across]]
        lines += [tuple(span for block in blocks for span in block[y]) for y in range(len(blocks[0]))]
    return lines[:height]


def _legend(groups: Sequence[CurveGroup], drawn: Chart, cursor: int | None) -> Line:
    """Names of the lines with their marks, after the position under the cursor."""
    spans = [Span(" ")]
    if cursor is not None:
        at = drawn.grid.centre(DOT_COLUMNS * cursor + 1)
        label = span_label(at) if drawn.grid.axis is Axis.TIME else number_label(at, drawn.grid.width)
        spans.append(Span(f"│ at {label} {AXIS_LABELS[drawn.grid.axis]}   ", TextStyle.STRONG))
    # The colour depends on the position among all groups: a run keeps it while others have no record yet.
    names = apart([sanitize(group.name) for group in groups], _NAME_CHARS)
    for number, group in enumerate(groups):
        spans.append(Span(f"{_mark(number)} ━ ", _hue(number)))
        spans.append(Span(names[sanitize(group.name)], TextStyle.PLAIN))
        spans.append(Span(f"{_members(group)}   ", TextStyle.DIM))
        if group.old:
            spans.append(Span(f"▲ {group.old}   ", TextStyle.WARN))
    return tuple(spans)


def _members(group: CurveGroup) -> str:
    return f" {len(group.seeds)} seeds" if len(group.seeds) > 1 else ""


def _chart(picture: ChartPicture, width: int, cursor: int | None) -> list[Line]:
    """Return one chart: a title with values, the plot with the labels of its values, the labels of positions."""
    drawn, y, num_rows = picture.chart, picture.chart.y, len(picture.rows)
    columns = plot_width(width)
    title = clip((Span(f" {drawn.label}  ", TextStyle.STRONG), *_values(drawn, cursor)), width - 1)
    lines: list[Line] = [(*title, Span(" " * (width - width_of(title))))]
    if y is None:
        blank: list[Line] = [(Span(" " * width),)] * (num_rows + 1)
        blank[num_rows // 2] = (Span(fit("  no value of it yet", width), TextStyle.DIM),)
        return [*lines, *blank]
    labels = {round((1 - y.share(value)) * (num_rows - 1)): label for value, label in y.ticks}
    for number, row in enumerate(picture.rows):
        label = labels.get(number, "")
        edge = Span(f"{fit(label, LABEL_CHARS, right=True)}{'┤' if label else '│'}", TextStyle.DIM)
        marks = _beyond(drawn, y, "above" if number == 0 else "below" if number == num_rows - 1 else "")
        marks |= {x: Span(_mark(line), _hue(line)) for (x, at), line in picture.ends.items() if at == number}
        if cursor is not None and cursor < columns:
            marks[cursor] = Span("│", TextStyle.STRONG)
        lines.append((edge, *_with_marks(row, marks), Span(" ")))
    lines.append((Span(_positions(drawn.x, columns, width), TextStyle.DIM),))
    return lines


def _values(drawn: Chart, cursor: int | None) -> Line:
    """Values of all lines under the cursor, or the newest ones, each with its mark."""
    column = drawn.grid.num - 1 if cursor is None else DOT_COLUMNS * cursor + 1
    write = _WRITERS.get(drawn.label, decimal)
    spans: list[Span] = []
    for number, line in enumerate(drawn.lines):
        # A column holds the mean of its records, but other tables show the newest record under the same name.
        value = line.newest if cursor is None and line.newest is not None else line.at(column)
        mark = f"{_mark(number)} " if len(drawn.lines) > 1 else ""
        spans.append(Span(mark, _hue(number)))
        spans.append(Span(f"{write(value)}{_spread(line, column, value, write)}  ", TextStyle.PLAIN))
    return tuple(spans)


def _spread(line: ChartLine, column: int, value: float | None, write: Callable[[float], str]) -> str:
    """Write the interval of the mean and the number of seeds, if the line is a mean of several."""
    columns = line.columns
    if not line.is_mean or value is None:
        return ""
    nearest = next(number for number in range(column, -1, -1) if not math.isnan(columns.means[number]))
    low, high = write(columns.lows[nearest]), write(columns.highs[nearest])
    return f" [{low} to {high}] n={columns.counts[nearest]}"


def _plot_line(line: ChartLine, y: Scale) -> PlotLine:
    values = [y.clipped_share(value) for value in line.columns.means]
    if not line.has_spread:
        return PlotLine(values)
    return PlotLine(
        values,
        [y.clipped_share(value) for value in line.columns.lows],
        [y.clipped_share(value) for value in line.columns.highs],
    )


def _ends(drawn: Chart, y: Scale, columns: int, rows: int) -> dict[tuple[int, int], int]:
    """Return the cells after the last value of each line; lines that end at the same cell get different rows."""
    ends: dict[tuple[int, int], int] = {}
    for number, line in enumerate(drawn.lines):
        last = line.last
        if last is None:
            continue
        x = min(columns - 1, last // DOT_COLUMNS + 1)
        row = round((1 - y.clipped_share(line.columns.means[last])) * (rows - 1))
        free = (at for at in sorted(range(rows), key=lambda at: abs(at - row)) if (x, at) not in ends)
        if (at := next(free, None)) is not None:
            ends[x, at] = number
    return ends


def _beyond(drawn: Chart, y: Scale, side: str) -> dict[int, Span]:
    """Return arrows for the cells of the first or the last row whose values lie beyond the scale."""
    is_beyond = {"above": lambda value: value > y.high, "below": lambda value: value < y.low}.get(side)
    if is_beyond is None:
        return {}
    return {
        column // DOT_COLUMNS: Span("▲" if side == "above" else "▼", _hue(number))
        for number, line in enumerate(drawn.lines)
        for column, value in enumerate(line.columns.means)
        if is_beyond(value)
    }


def _with_marks(row: Sequence[PlotPart], marks: dict[int, Span]) -> list[Span]:
    """Return the spans of a row of a plot, with single cells replaced."""
    spans: list[Span] = []
    x = 0
    for text, owner, is_inside in row:
        style = TextStyle.DIM if owner < 0 else BANDS[owner % len(BANDS)] if is_inside else _hue(owner)
        start = 0
        for at in sorted(at - x for at in marks if x <= at < x + len(text)):
            spans += [Span(text[start:at], style), marks[x + at]]
            start = at + 1
        spans.append(Span(text[start:], style))
        x += len(text)
    return spans


def _positions(scale: Scale, plot_columns: int, width: int) -> str:
    """Return the labels of positions, each centred below its position; labels that would touch are left out."""
    line = [" "] * width
    free_from = 0
    for value, label in scale.ticks:
        centre = EDGE + min(plot_columns - 1, int(scale.share(value) * plot_columns))
        start = min(max(0, centre - len(label) // 2), width - len(label))
        if start >= free_from:
            line[start : start + len(label)] = label
            free_from = start + len(label) + 1
    return "".join(line)


def _mark(number: int) -> str:
    return MARKS[number % len(MARKS)]


def _hue(number: int) -> TextStyle:
    return HUES[number % len(HUES)]
