"""Learning curves of runs over their full length: one line for each run, or for the mean of a group's seeds.

All lines of a chart share its scale, and all charts share positions, so that runs are compared by height and one
cursor reads all charts.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual import events
from textual.message import Message
from textual.strip import Strip

from l2rtui.domain.curves.chart import SMOOTHINGS, WINDOWS, ChartSettings, CurveGroup, figure_label, figures_of
from l2rtui.domain.curves.export import csv_text, svg_text
from l2rtui.domain.curves.run_curve import Axis
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.text import Line
from l2rtui.ui.widgets.chart_lines import EDGE, ChartPicture, arrangement, chart_lines, pictures, plot_width
from l2rtui.ui.widgets.span_renderer import SpanWidget


class ChartView(SpanWidget, can_focus=True):
    """As many charts as fit, for the runs given to ``show``.

    Attributes:
        settings: Axis, smoothing and window.
        is_grouped: Seeds of an experiment are one line; the owner gives groups accordingly.
        note: Work in progress, for the title: ``reading back``.
    """

    BINDINGS = bindings(KeyContext.CHARTS)

    class ContentChanged(Message):
        """The drawn curves or settings have changed: titles and groups are out of date."""

    def __init__(self, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.settings = ChartSettings()
        self.is_grouped = False
        self.note = ""
        self.groups: tuple[CurveGroup, ...] = ()
        self._lines: Sequence[Line] = ()
        self._alone: str = ""
        self._cursor: int | None = None
        self._state: object = None
        self._pictures: list[ChartPicture] = []

    @property
    def facts(self) -> list[str]:
        """Short facts about the drawn charts, for the title."""
        alone = f"{figure_label(self._alone)} alone" if self._alone else ""
        axis, *others = self.settings.facts
        return [axis, "mean and 95% interval" if self.is_grouped else "", *others, alone, self.note]

    @property
    def figures(self) -> tuple[str, ...]:
        """Figures that are drawn: the chosen one, or all."""
        return (self._alone,) if self._alone else figures_of(self.groups)

    def show(self, groups: Sequence[CurveGroup]) -> None:
        """Draw these groups; does nothing if neither groups nor records have changed."""
        self.groups = tuple(groups)
        self._draw(is_new_only=True)

    def as_svg(self) -> str:
        """Return the drawn charts as a picture."""
        return svg_text(self.groups, self.settings, self.figures)

    def as_csv(self) -> str:
        """Return the curves as a table."""
        return csv_text([seed for group in self.groups for seed in group.seeds])

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self, *, is_new_only: bool = False) -> None:
        width, height = self.size
        if not width or not height:
            return
        # Curves grow in place: their number of records shows whether their picture is out of date.
        records = tuple(seed.curve.num_records for group in self.groups for seed in group.seeds)
        state = (self.groups, records, width, height, self.settings, self._alone)
        if state != self._state:
            self._state = state
            self._pictures = pictures(self.groups, self.settings, width, height, self.figures)
        elif is_new_only:
            return
        lines = chart_lines(self.groups, self._pictures, width, height, self._cursor)
        before, self._lines = self._lines, lines
        self.refresh_changed(before, lines)

    def render_line(self, y: int) -> Strip:
        """One line of all charts side by side."""
        return self.strip(self._lines[y] if y < len(self._lines) else (), self.size.width)

    # --- actions -----------------------------------------------------------------------------------------------
    def action_axis(self) -> None:
        """Draw over the next axis: env steps, time, updates."""
        self._choose(axis=_after(tuple(Axis), self.settings.axis))

    def action_smooth(self) -> None:
        """Use the next smoothing, or turn it off after the last."""
        self._choose(smoothing=_after(SMOOTHINGS, self.settings.smoothing))

    def action_window(self) -> None:
        """Draw a smaller part of the axis, ending at its end, or all of it."""
        self._choose(window=_after(WINDOWS, self.settings.window))

    def _choose(self, **changes: object) -> None:
        self.settings = replace(self.settings, **changes)
        self._draw()
        self.post_message(self.ContentChanged())

    def action_alone(self, by: int) -> None:
        """Draw only the next figure, or all of them again."""
        choices = ("", *figures_of(self.groups))
        position = choices.index(self._alone) if self._alone in choices else 0
        self._alone = choices[(position + by) % len(choices)]
        self._draw()
        self.post_message(self.ContentChanged())

    def action_group(self) -> None:
        """Draw the mean of seeds, or each run separately."""
        self.is_grouped = not self.is_grouped
        self.post_message(self.ContentChanged())

    def action_cursor(self, by: int) -> None:
        """Move the cursor; it appears at the right end, and disappears there."""
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
        column = event.x % self._chart_width - EDGE
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
