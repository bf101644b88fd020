"""Charts of how runs learn, side by side: return, rates, lag. One line for each run, each in its own hue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.plot import bounds, plot
from l2rtui.ui.text import HUES, Line, Span, TextStyle, count, decimal, fit
from l2rtui.ui.widgets.span_renderer import SpanWidget

NARROWEST: Final = 36
LOWEST: Final = 6
_SCALE: Final = 9
"""Columns of the numbers at the left of a chart."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Name and metrics of one run, as a chart draws them; ``old`` is their age where they are not new."""

    name: str
    metrics: RunMetrics
    old: str = ""


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    values: Callable[[RunMetrics], Sequence[float]]
    write: Callable[[float | None], str]


CHARTS: Final = (
    _Chart("return", lambda metrics: metrics.returns, decimal),
    _Chart("env steps/s", lambda metrics: metrics.rates, count),
    _Chart("updates/s", lambda metrics: metrics.update_rates, decimal),
    _Chart("policy lag, versions", lambda metrics: metrics.lags, decimal),
)


class ChartView(SpanWidget, can_focus=True):
    """As many charts as fit, for the marked runs or the selected run."""

    curves: reactive[tuple[Curve, ...]] = reactive((), repaint=False)
    _lines: Sequence[Line] = ()

    def on_resize(self) -> None:
        """Draw the lines that differ."""
        width, height = self.size
        if not width or not height:
            return
        lines = chart_lines(self.curves, width, height)
        before, self._lines = self._lines, lines
        self.refresh_changed(before, lines)

    watch_curves = on_resize

    def render_line(self, y: int) -> Strip:
        """One line of all charts beside each other."""
        return self.strip(self._lines[y] if y < len(self._lines) else (), self.size.width)


def chart_lines(curves: Sequence[Curve], width: int, height: int) -> list[Line]:
    """Draw all charts as lines of exactly this width, at most ``height`` of them."""
    if not curves:
        return [(Span("  No metric record yet: a learner prints one a second.", TextStyle.DIM),)]
    # The hue goes by the position among all curves, in the legend and in the charts: a run keeps its colour while
    # others have no record yet.
    names: list[Span] = [Span(" ")]
    for number, curve in enumerate(curves):
        if any(chart.values(curve.metrics) for chart in CHARTS):
            names += [Span("━ ", _hue(number)), Span(f"{sanitize(curve.name)}   ", TextStyle.DIM)]
            if curve.old:
                names.append(Span(f"▲ {curve.old} old   ", TextStyle.WARN))
    # Charts fill a grid of equal cells. One that is too narrow or too low to read is left out rather than
    # squeezed.
    across = max(1, min(len(CHARTS), width // NARROWEST))
    down = max(1, min(-(-len(CHARTS) // across), (height - 1) // LOWEST))
    chart_width, chart_height = width // across, max(2, (height - 1) // down)
    lines: list[Line] = [tuple(names)]
    for first in range(0, across * down, across):
        charts = CHARTS[first : first + across]
        blocks = [_chart(curves, chart, chart_width, chart_height) for chart in charts]
        lines += [tuple(span for block in blocks for span in block[y]) for y in range(chart_height)]
    return lines[:height]


def _chart(curves: Sequence[Curve], chart: _Chart, width: int, height: int) -> list[Line]:
    series = [chart.values(curve.metrics) for curve in curves]
    newest = [values[-1] for values in series if values]
    now = "  ".join(chart.write(value) for value in newest[:4])
    title = (
        Span(f" {chart.title} ", TextStyle.DIM),
        Span(fit(now, width - len(chart.title) - 2), TextStyle.STRONG),
    )
    # One scale for all curves of a chart, so that runs can be compared by height.
    limits = bounds(series)
    room = width - _SCALE - 2
    rows = plot(series, room, height - 1)
    lines: list[Line] = [title]
    for y, row in enumerate(rows):
        edge = None if limits is None else limits[1] if y == 0 else limits[0] if y == len(rows) - 1 else None
        scale = "" if edge is None else chart.write(edge)
        spans = [Span(f"{fit(scale, _SCALE, right=True)} ", TextStyle.DIM)]
        spans += [Span(cell, TextStyle.DIM if owner < 0 else _hue(owner)) for cell, owner in row]
        lines.append((*spans, Span(" ")))
    return lines


def _hue(number: int) -> TextStyle:
    return HUES[number % len(HUES)]
