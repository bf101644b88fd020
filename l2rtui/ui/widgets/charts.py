"""Charts of how runs learn, side by side: return, rates, lag. One line for each run, each in its own hue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.plot import bounds, plot
from l2rtui.ui.text import HUES, Line, Span, Tone, count, decimal, fit
from l2rtui.ui.values import Learning
from l2rtui.ui.widgets.paint import Painted

NARROWEST: Final = 36
LOWEST: Final = 6
_SCALE: Final = 9
"""Columns of the numbers at the left of a chart."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What is drawn of one run."""

    name: str
    metrics: Learning


@dataclass(frozen=True, slots=True)
class _Chart:
    title: str
    values: Callable[[Learning], Sequence[float]]
    write: Callable[[float | None], str]


CHARTS: Final = (
    _Chart("return", lambda one: one.returns, decimal),
    _Chart("env steps/s", lambda one: one.rates, count),
    _Chart("updates/s", lambda one: one.update_rates, decimal),
    _Chart("policy lag, versions", lambda one: one.lags, decimal),
)


class ChartView(Painted, can_focus=True):
    """As many charts as fit, for the marked runs or the selected one."""

    curves: reactive[tuple[Curve, ...]] = reactive((), repaint=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self._lines: list[Line] = []

    def watch_curves(self) -> None:
        """Draw the lines that differ."""
        self._draw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        if not width or not height:
            return
        lines = chart_lines(self.curves, width, height)
        before, self._lines = self._lines, lines
        if len(before) != len(lines):
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, lines, strict=True)):
            if old != new:
                self.refresh(self.size.region.crop_size((width, 1)).translate((0, y)))

    def render_line(self, y: int) -> Strip:
        """One line of all charts beside each other."""
        return self.strip(self._lines[y] if y < len(self._lines) else (), self.size.width)


def chart_lines(curves: Sequence[Curve], width: int, height: int) -> list[Line]:
    """The whole view as lines."""
    if not curves:
        return [(Span("  No metric record yet: a learner prints one a second.", Tone.DIM),)]
    shown = [
        (number, curve)
        for number, curve in enumerate(curves)
        if any(chart.values(curve.metrics) for chart in CHARTS)
    ]
    names: list[Span] = [Span(" ")]
    for number, curve in shown:
        names += [Span("━ ", _hue(number)), Span(f"{sanitize(curve.name)}   ", Tone.DIM)]
    across = max(1, min(len(CHARTS), width // NARROWEST))
    down = max(1, min(-(-len(CHARTS) // across), (height - 1) // LOWEST))
    each, tall = width // across, max(2, (height - 1) // down)
    lines: list[Line] = [tuple(names)]
    for first in range(0, across * down, across):
        charts = CHARTS[first : first + across]
        blocks = [_chart([curve for _, curve in shown], chart, each, tall) for chart in charts]
        lines += [tuple(span for block in blocks for span in block[y]) for y in range(tall)]
    return lines[:height]


def _chart(curves: Sequence[Curve], chart: _Chart, width: int, height: int) -> list[Line]:
    series = [chart.values(curve.metrics) for curve in curves]
    newest = [values[-1] for values in series if values]
    now = "  ".join(chart.write(value) for value in newest[:4])
    title = (Span(f" {chart.title} ", Tone.DIM), Span(fit(now, width - len(chart.title) - 2), Tone.STRONG))
    found = bounds(series)
    room = width - _SCALE - 2
    rows = plot(series, room, height - 1)
    lines: list[Line] = [title]
    for y, row in enumerate(rows):
        edge = None if found is None else found[1] if y == 0 else found[0] if y == len(rows) - 1 else None
        scale = "" if edge is None else chart.write(edge)
        spans = [Span(f"{fit(scale, _SCALE, right=True)} ", Tone.DIM)]
        spans += [Span(cell, Tone.DIM if owner < 0 else _hue(owner)) for cell, owner in row]
        lines.append((*spans, Span(" ")))
    return lines


def _hue(number: int) -> Tone:
    return HUES[number % len(HUES)]
