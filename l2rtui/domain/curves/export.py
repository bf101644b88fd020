"""Export of charts as SVG and of curves as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from l2rtui.domain.curves.chart import (
    AXIS_LABELS,
    Chart,
    ChartLine,
    ChartSettings,
    CurveGroup,
    SeedCurve,
    chart,
    figures_of,
)
from l2rtui.domain.curves.run_curve import CurveStretch

FRAME: Final = "#888888"
"""Colour of axes and frames."""


def svg_document(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a picture with a white background; sizes are in pixels."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return "\n".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="none">',
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
        *parts,
        "</svg>\n",
    ))  # fmt: skip


def svg_text_element(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", has_halo: bool = False
) -> str:
    """Return a text at its base line.

    Args:
        anchor: Which end of the text is at ``x``: ``start``, ``middle`` or ``end``.
        has_halo: Draw a white outline around the letters, so that they are readable on lines.
    """
    halo = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if has_halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="#222222" text-anchor="{anchor}" font-weight="{weight}"{halo}>'
        f"{escaped(text)}</text>"
    )


def escaped(text: str) -> str:
    """Escape a text for XML: names come from other people's specs."""
    # A character that XML forbids would make the file unreadable.
    return escape("".join(char for char in text if char.isprintable()))


COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
"""Colours that are distinguishable with any colour vision (Okabe and Ito 2008, ordered by contrast on white)."""
_DASHES: Final = ("", "6 3", "2 2")
"""Dash patterns of the lines after all colours have been used once, twice, three times."""
_WIDTH: Final = 480
_HEIGHT: Final = 300
_LEFT: Final = 70
_RIGHT: Final = 14
_TOP: Final = 30
_BOTTOM: Final = 42
_COLUMNS: Final = 400
_LEGEND_LINE: Final = 18


# --- CSV -------------------------------------------------------------------------------------------------------
def csv_text(seeds: Sequence[SeedCurve]) -> str:
    """Return all buckets of all runs, oldest first; the column ``records`` gives the number of records in a row.

    ``env_steps``, ``time`` (seconds since the epoch) and ``updates`` are taken from the last record of a row. Each
    figure has mean, minimum and maximum; they are empty if no record has it.
    """
    figures = tuple(dict.fromkeys(figure for seed in seeds for figure in seed.curve.figures))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = [f"{figure}{part}" for figure in figures for part in ("", "_min", "_max")]
    writer.writerow(["run", "experiment", "seed", "records", "env_steps", "time", "updates", *names])
    for seed in seeds:
        for stretch, size in seed.curve.stretches():
            writer.writerows(_rows(seed, stretch, size, figures))
    return file.getvalue()


def _rows(seed: SeedCurve, stretch: CurveStretch, size: int, figures: Sequence[str]) -> Iterator[list[object]]:
    for number, (steps, time, updates) in enumerate(zip(*stretch.positions, strict=True)):
        row: list[object] = [seed.name, seed.experiment, seed.seed, size, f"{steps:.0f}", f"{time:.3f}"]
        row.append(f"{updates:.0f}")
        for figure in figures:
            buckets = stretch.figures.get(figure)
            if buckets is None or not buckets.counts[number]:
                row += ["", "", ""]
                continue
            mean = buckets.sums[number] / buckets.counts[number]
            row += [f"{value:.6g}" for value in (mean, buckets.lows[number], buckets.highs[number])]
        yield row


# --- SVG -------------------------------------------------------------------------------------------------------
def svg_text(groups: Sequence[CurveGroup], settings: ChartSettings, figures: Sequence[str] = ()) -> str:
    """Return charts side by side as one picture, with a legend below.

    Args:
        figures: Figures to draw; empty for all that at least one run has.
    """
    drawn = figures or figures_of(groups)
    across = 1 if len(drawn) == 1 else 2
    down = -(-len(drawn) // across)
    height = _HEIGHT * down + _LEGEND_LINE * (len(groups) + 2)
    width = _WIDTH * across
    parts: list[str] = []
    for number, figure in enumerate(drawn):
        x, y = _WIDTH * (number % across), _HEIGHT * (number // across)
        parts.append(f'<g transform="translate({x},{y})">')
        parts += _chart(chart(groups, figure, settings, _COLUMNS, (6, 6)))
        parts.append("</g>")
    parts += _legend(groups, settings, _HEIGHT * down)
    return svg_document(width, height, parts)


def _chart(drawn: Chart) -> Iterator[str]:
    yield svg_text_element(_LEFT, _TOP - 10, drawn.label, weight="bold")
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    yield f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}" stroke="{FRAME}"/>'
    yield svg_text_element((_LEFT + right) / 2, bottom + 32, AXIS_LABELS[drawn.grid.axis], anchor="middle")
    for value, label in drawn.x.ticks:
        x = _x(drawn, value)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="{FRAME}"/>'
        yield svg_text_element(x, bottom + 16, label, anchor="middle")
    if drawn.y is None:
        yield svg_text_element((_LEFT + right) / 2, (_TOP + bottom) / 2, "no value", anchor="middle")
        return
    for value, label in drawn.y.ticks:
        y = _y(drawn, value)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e6e6e6"/>'
        yield svg_text_element(_LEFT - 6, y + 4, label, anchor="end")
    for number, line in enumerate(drawn.lines):
        yield from _line(drawn, line, number)


def _line(drawn: Chart, line: ChartLine, number: int) -> Iterator[str]:
    colour = _colour(number)
    columns = line.columns
    if line.has_spread:
        highs, lows = list(_points(drawn, columns.highs)), list(_points(drawn, columns.lows))
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*highs, *reversed(lows)))
        yield f'<polygon points="{points}" fill="{colour}" fill-opacity="0.18"/>'
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _points(drawn, columns.means))
    yield f'<polyline points="{points}" stroke="{colour}" stroke-width="1.6"{_dashes(number)}/>'


def _points(drawn: Chart, values: Iterable[float]) -> Iterator[tuple[float, float]]:
    for column, value in enumerate(values):
        if not math.isnan(value):
            yield _x(drawn, drawn.grid.centre(column)), _y(drawn, value)


def _x(drawn: Chart, position: float) -> float:
    return _LEFT + drawn.x.share(position) * (_WIDTH - _RIGHT - _LEFT)


def _y(drawn: Chart, value: float) -> float:
    share = drawn.y.clipped_share(value) if drawn.y is not None else 0.0
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)


def _legend(groups: Sequence[CurveGroup], settings: ChartSettings, top: float) -> Iterator[str]:
    yield svg_text_element(_LEFT, top + 12, ", ".join(filter(None, settings.facts)))
    for number, group in enumerate(groups):
        y = top + 12 + _LEGEND_LINE * (number + 1)
        line = f'stroke="{_colour(number)}" stroke-width="2"{_dashes(number)}'
        yield f'<line x1="{_LEFT}" y1="{y - 4}" x2="{_LEFT + 28}" y2="{y - 4}" {line}/>'
        yield svg_text_element(_LEFT + 36, y, group.title)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _dashes(number: int) -> str:
    dashes = _DASHES[number // len(COLOURS) % len(_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""
