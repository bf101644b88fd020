"""Charts of how runs learn, over their full length: one line for each run, or for the mean of the seeds of a group.

Scales are shared by all lines of a chart, and positions by all charts, so that runs are compared by height and one
cursor reads all charts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from textual import events
from textual.message import Message
from textual.strip import Strip

from l2rtui.domain.curves.chart import (
    AXIS_LABELS,
    SMOOTHINGS,
    WINDOWS,
    Chart,
    ChartLine,
    ChartSettings,
    CurveGroup,
    chart,
    figure_label,
    figures_of,
)
from l2rtui.domain.curves.export import csv_text, svg_text
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.domain.curves.scale import LABEL_CHARS, Scale, number_label, span_label
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.plot import DOT_COLUMNS, PlotLine, PlotPart, plot
from l2rtui.ui.text import HUES, Line, Span, TextStyle, apart, clip, decimal, fit, width_of
from l2rtui.ui.widgets.span_renderer import SpanWidget

NARROWEST: Final = 36
LOWEST: Final = 6
_OVERVIEW: Final = 4
"""Charts beside each other, unless there is room for more of a good height."""
_GOOD_HEIGHT: Final = 12
_EDGE: Final = LABEL_CHARS + 1
"""Columns at the left of a plot: the label of a tick, and the axis."""
_NAME_CHARS: Final = 28
_TICK_COLUMNS: Final = 9
_TICK_ROWS: Final = 2
MARKS: Final = "123456789abcdefghijklmnopqrstuvwxyz"
"""A mark stands at the end of each line and before its name: hues repeat, and some terminals have none."""
_EMPTY: Final = "No metric record yet: a learner prints one every second or two."


class ChartView(SpanWidget, can_focus=True):
    """As many charts as fit, for the runs that ``show`` was given.

    Attributes:
        settings: Axis, smoothing and window.
        is_grouped: Seeds of an experiment are one line; the owner gives groups accordingly.
        note: What is still going on, for the title: ``reading back``.
    """

    BINDINGS = bindings(KeyContext.CHARTS)

    class Changed(Message):
        """Other things are drawn than before: titles and groups are out of date."""

    def __init__(self, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.settings = ChartSettings()
        self.is_grouped = False
        self.note = ""
        self.groups: tuple[CurveGroup, ...] = ()
        self._lines: Sequence[Line] = ()
        self._alone: str = ""
        self._cursor: int | None = None
        self._drawn: object = None

    @property
    def facts(self) -> list[str]:
        """What is drawn, in a few words each, for the title."""
        alone = f"{figure_label(self._alone)} alone" if self._alone else ""
        return [*self.settings.facts, "mean ± sd of seeds" if self.is_grouped else "", alone, self.note]

    @property
    def figures(self) -> tuple[str, ...]:
        """Figures that are drawn: the chosen one, or all."""
        return (self._alone,) if self._alone else figures_of(self.groups)

    def show(self, groups: Sequence[CurveGroup]) -> None:
        """Draw these groups; nothing is done where neither they nor their records differ."""
        self.groups = tuple(groups)
        self._draw()

    def as_svg(self) -> str:
        """Return what is drawn as a picture."""
        return svg_text(self.groups, self.settings, self.figures)

    def as_csv(self) -> str:
        """Return the curves as a table."""
        return csv_text([seed for group in self.groups for seed in group.seeds])

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        # Curves grow in place: their number of records says whether a picture of them is out of date.
        records = tuple(seed.curve.num_records for group in self.groups for seed in group.seeds)
        state = (self.groups, records, width, height, self.settings, self._alone, self._cursor)
        if state == self._drawn:
            return
        self._drawn = state
        lines = chart_lines(self.groups, self.settings, width, height, self.figures, self._cursor)
        before, self._lines = self._lines, lines
        self.refresh_changed(before, lines)

    def render_line(self, y: int) -> Strip:
        """One line of all charts beside each other."""
        return self.strip(self._lines[y] if y < len(self._lines) else (), self.size.width)

    # --- actions -----------------------------------------------------------------------------------------------
    def action_axis(self) -> None:
        """Draw over the next axis: env steps, time, updates."""
        self._choose(axis=_after(tuple(Axis), self.settings.axis))

    def action_smooth(self) -> None:
        """Smooth more, or not at all."""
        self._choose(smoothing=_after(SMOOTHINGS, self.settings.smoothing))

    def action_window(self) -> None:
        """Draw a smaller part of the axis, counted from its end, or all of it."""
        self._choose(window=_after(WINDOWS, self.settings.window))

    def _choose(self, **changes: object) -> None:
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]  # the callers name its fields
        self._draw()
        self.post_message(self.Changed())

    def action_alone(self, by: int) -> None:
        """Draw the next figure alone, or all of them again."""
        choices = ("", *figures_of(self.groups))
        position = choices.index(self._alone) if self._alone in choices else 0
        self._alone = choices[(position + by) % len(choices)]
        self._draw()
        self.post_message(self.Changed())

    def action_group(self) -> None:
        """Draw the mean of seeds, or each run for itself."""
        self.is_grouped = not self.is_grouped
        self.post_message(self.Changed())

    def action_cursor(self, by: int) -> None:
        """Move the cursor; it comes in from the end, and leaves there."""
        last = self._plot_width - 1
        at = (last + 1 if self._cursor is None else self._cursor) + by
        self._cursor = max(0, at) if at <= last else None
        self._draw()

    def action_edge(self, to: int) -> None:
        """Move the cursor to the beginning, or remove it."""
        self._cursor = 0 if to < 0 else None
        self._draw()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor under the mouse."""
        column = event.x % self._chart_width - _EDGE
        if 0 <= column < self._plot_width:
            self._cursor = column
            self._draw()

    @property
    def _chart_width(self) -> int:
        return self.size.width // arrangement(len(self.figures), *self.size)[0]

    @property
    def _plot_width(self) -> int:
        return plot_width(self._chart_width)


def _after(choices: Sequence[object], current: object) -> object:
    return choices[(choices.index(current) + 1) % len(choices)]


def arrangement(number: int, width: int, height: int) -> tuple[int, int]:
    """Return the charts beside and below each other that fit; the rest is left out rather than squeezed."""
    across = max(1, min(number, width // NARROWEST, _OVERVIEW))
    fitting = max(1, (height - 1) // LOWEST)
    needed = -(-min(number, _OVERVIEW) // across)
    # More than the overview only where all charts remain of a good height.
    roomy = min(-(-number // across), (height - 1) // _GOOD_HEIGHT)
    return across, max(1, min(fitting, max(needed, roomy)))


def plot_width(chart_width: int) -> int:
    """Return the cells of a plot in a chart of this width."""
    return max(1, chart_width - _EDGE - 1)


def chart_lines(
    groups: Sequence[CurveGroup],
    settings: ChartSettings,
    width: int,
    height: int,
    figures: Sequence[str],
    cursor: int | None = None,
) -> list[Line]:
    """Draw charts as lines of the terminal, at most ``height`` of them.

    Args:
        cursor: Column of the plots whose values are read; None for the newest.
    """
    if not figures:
        return [(Span(f"  {_EMPTY}", TextStyle.DIM),)]
    across, down = arrangement(len(figures), width, height)
    chart_width, chart_height = width // across, max(3, (height - 1) // down)
    plot_size = plot_width(chart_width), chart_height - 2
    ticks = max(3, plot_size[0] // _TICK_COLUMNS), max(3, plot_size[1] // _TICK_ROWS)
    drawn = [
        chart(groups, figure, settings, DOT_COLUMNS * plot_size[0], ticks) for figure in figures[: across * down]
    ]
    lines: list[Line] = [clip(_legend(groups, drawn[0], cursor), width)]
    for first in range(0, len(drawn), across):
        blocks = [_chart(part, chart_width, *plot_size, cursor) for part in drawn[first : first + across]]
        lines += [tuple(span for block in blocks for span in block[y]) for y in range(chart_height)]
    return lines[:height]


def _legend(groups: Sequence[CurveGroup], drawn: Chart, cursor: int | None) -> Line:
    """Names of the lines with their marks; at its beginning the position that is read."""
    spans = [Span(" ")]
    if cursor is not None:
        at = drawn.grid.centre(DOT_COLUMNS * cursor + 1)
        label = span_label(at) if drawn.grid.axis is Axis.TIME else number_label(at, drawn.grid.width)
        spans.append(Span(f"│ at {label} {AXIS_LABELS[drawn.grid.axis]}   ", TextStyle.STRONG))
    # The hue goes by the position among all groups: a run keeps its colour while others have no record yet.
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


def _chart(drawn: Chart, width: int, plot_columns: int, plot_rows: int, cursor: int | None) -> list[Line]:
    """Draw one chart: a title with values, the plot with the labels of its values, the labels of positions."""
    title = clip((Span(f" {drawn.label}  ", TextStyle.STRONG), *_values(drawn, cursor)), width - 1)
    lines: list[Line] = [_filled(title, width)]
    if drawn.y is None:
        blank: list[Line] = [(Span(" " * width),)] * plot_rows
        blank[plot_rows // 2] = (Span(fit("  no value of it yet", width), TextStyle.DIM),)
        return [*lines, *blank, (Span(" " * width),)]
    y = drawn.y
    labels = {round((1 - y.share(value)) * (plot_rows - 1)): label for value, label in y.ticks}
    rows = plot([_plot_line(line, y) for line in drawn.lines], plot_columns, plot_rows)
    ends = _ends(drawn, plot_columns, plot_rows) if len(drawn.lines) > 1 else {}
    for number, row in enumerate(rows):
        label = labels.get(number, "")
        edge = Span(f"{fit(label, LABEL_CHARS, right=True)}{'┤' if label else '│'}", TextStyle.DIM)
        marks = {x: _mark_span(line) for (x, at), line in ends.items() if at == number}
        if cursor is not None and cursor < plot_columns:
            marks[cursor] = Span("│", TextStyle.STRONG)
        lines.append((edge, *_with_marks(row, marks), Span(" ")))
    lines.append((Span(_positions(drawn.x, plot_columns, width), TextStyle.DIM),))
    return lines


def _values(drawn: Chart, cursor: int | None) -> Line:
    """Values of all lines under the cursor, or the newest ones, each with its mark."""
    column = drawn.grid.num - 1 if cursor is None else DOT_COLUMNS * cursor + 1
    spans: list[Span] = []
    for number, line in enumerate(drawn.lines):
        value = line.at(column)
        mark = f"{_mark(number)} " if len(drawn.lines) > 1 else ""
        spans.append(Span(mark, _hue(number)))
        spans.append(Span(f"{decimal(value)}{_spread(line, column, value)}  ", TextStyle.PLAIN))
    return tuple(spans)


def _spread(line: ChartLine, column: int, value: float | None) -> str:
    """Write the deviation of the seeds and their number, where the line is a mean of several."""
    columns = line.columns
    if not line.is_mean or value is None:
        return ""
    nearest = next(number for number in range(column, -1, -1) if not math.isnan(columns.means[number]))
    return f" ±{decimal(columns.highs[nearest] - columns.means[nearest])} n={columns.counts[nearest]}"


def _plot_line(line: ChartLine, y: Scale) -> PlotLine:
    values = [y.share(value) for value in line.columns.means]
    if not line.has_spread:
        return PlotLine(values)
    return PlotLine(
        values, [y.share(value) for value in line.columns.lows], [y.share(v) for v in line.columns.highs]
    )


def _ends(drawn: Chart, plot_columns: int, plot_rows: int) -> dict[tuple[int, int], int]:
    """Return the cells behind the last value of each line; two lines that end together are told apart by a row."""
    ends: dict[tuple[int, int], int] = {}
    for number, line in enumerate(drawn.lines):
        last = line.last
        if last is None or drawn.y is None:
            continue
        x = min(plot_columns - 1, last // DOT_COLUMNS + 1)
        row = round((1 - drawn.y.share(line.columns.means[last])) * (plot_rows - 1))
        free = (at for at in sorted(range(plot_rows), key=lambda at: abs(at - row)) if (x, at) not in ends)
        if (at := next(free, None)) is not None:
            ends[x, at] = number
    return ends


def _with_marks(row: Sequence[PlotPart], marks: dict[int, Span]) -> list[Span]:
    """Return the spans of a row of a plot, with single cells replaced."""
    spans: list[Span] = []
    x = 0
    for text, owner in row:
        style = TextStyle.DIM if owner < 0 else _hue(owner)
        start = 0
        for at in sorted(at - x for at in marks if x <= at < x + len(text)):
            spans += [Span(text[start:at], style), marks[x + at]]
            start = at + 1
        spans.append(Span(text[start:], style))
        x += len(text)
    return spans


def _positions(scale: Scale, plot_columns: int, width: int) -> str:
    """Return the labels of positions, each centred below its place; those that would touch are left out."""
    line = [" "] * width
    free_from = 0
    for value, label in scale.ticks:
        centre = _EDGE + min(plot_columns - 1, int(scale.share(value) * plot_columns))
        start = min(max(0, centre - len(label) // 2), width - len(label))
        if start >= free_from:
            line[start : start + len(label)] = label
            free_from = start + len(label) + 1
    return "".join(line)


def _filled(line: Line, width: int) -> Line:
    return (*line, Span(" " * (width - width_of(line))))


def _mark(number: int) -> str:
    return MARKS[number % len(MARKS)]


def _mark_span(number: int) -> Span:
    return Span(_mark(number), _hue(number))


def _hue(number: int) -> TextStyle:
    return HUES[number % len(HUES)]
