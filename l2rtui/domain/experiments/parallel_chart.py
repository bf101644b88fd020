"""Parallel coordinates of a sweep as SVG: an axis for each setting, the last for the result, a line for each trial.

A line is the darker and the wider the greater its result: one hue from light to dark, so that the order can be read
in print and with any colour vision. Trials without a result are dotted and end before the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from l2rtui.domain.curves.svg import FRAME, escaped, svg_document, svg_text_element
from l2rtui.domain.experiments.parallel_axes import ParallelAxis, number_axis, setting_axes
from l2rtui.domain.experiments.trial_results import TrialResult
from l2rtui.domain.quantity import counted

_LEFT: Final = 110
_RIGHT: Final = 60
_TOP: Final = 52
_HEIGHT: Final = 300
_GAP: Final = 150
"""Pixels between two axes: a label of 20 characters."""
_MOST_CHARS: Final = 20
_FOOT: Final = 42
_HUE: Final = ((0xA9, 0xC4, 0xE0), (0x31, 0x82, 0xBD), (0x08, 0x2A, 0x5E))
"""Colours of the worst, a middle and the best result (a sequential scale of one hue after Brewer)."""
_WIDTHS: Final = (1.0, 2.6)
_NO_RESULT: Final = 'stroke="#888888" stroke-width="1" stroke-dasharray="2 3"'


def parallel_chart(title: str, results: Sequence[TrialResult]) -> str:
    """Return the trials of a sweep as one picture.

    Args:
        results: The best first, as ``trial_results`` returns them.
    """
    finite = [_finite(result.mean_return) for result in results]
    axes = (*setting_axes(results), number_axis("mean return", finite, may_be_log=False))
    width = _LEFT + _GAP * (len(axes) - 1) + _RIGHT
    return svg_document(
        max(width, 480),
        _TOP + _HEIGHT + _FOOT,
        (svg_text_element(14, 18, title, weight="bold"), *_parts(axes, results)),
    )


def _parts(axes: Sequence[ParallelAxis], results: Sequence[TrialResult]) -> Iterator[str]:
    # The best comes last, above all others; those without a result lie below everything.
    for at in reversed(range(len(results))):
        yield from _line(axes, results[at], at)
    for number, axis in enumerate(axes):
        yield from _axis(axis, _x(number))
    if results and (share := axes[-1].shares[0]) is not None:
        best = svg_text_element(_x(len(axes) - 1) + 8, _y(share) + 4, f"t{results[0].trial.number}", weight="bold")
        yield best
    yield from _legend(results)


def _axis(axis: ParallelAxis, x: float) -> Iterator[str]:
    yield f'<line x1="{x}" y1="{_TOP}" x2="{x}" y2="{_TOP + _HEIGHT}" stroke="{FRAME}"/>'
    yield svg_text_element(x, _TOP - 12, _short(axis.label), anchor="middle", weight="bold")
    if not axis.ticks:
        yield svg_text_element(x, _TOP + _HEIGHT / 2, "no value", anchor="middle", has_halo=True)
    for share, label in axis.ticks:
        y = _y(share)
        yield f'<line x1="{x - 4}" y1="{y:.1f}" x2="{x}" y2="{y:.1f}" stroke="{FRAME}"/>'
        yield svg_text_element(x - 7, y + 4, _short(label), anchor="end", has_halo=True)


def _line(axes: Sequence[ParallelAxis], result: TrialResult, at: int) -> Iterator[str]:
    share = axes[-1].shares[at]
    style = _NO_RESULT
    if share is not None:
        width = _WIDTHS[0] + share * (_WIDTHS[1] - _WIDTHS[0])
        style = f'stroke="{_colour(share)}" stroke-width="{width:.2f}"'
    values = ", ".join(f"{path} {value}" for path, value in result.trial.settings().items())
    mean = "no return yet" if share is None else f"{result.mean_return:.6g}"
    name = escaped(f"t{result.trial.number}: {mean} ({values})")
    # A trial without one of the settings, as of an earlier sweep of that name, has a gap there.
    points: list[str] = []
    for number, own in enumerate([axis.shares[at] for axis in axes] + [None]):
        if own is not None:
            points.append(f"{_x(number)},{_y(own):.1f}")
            continue
        if len(points) > 1:
            yield f'<polyline points="{" ".join(points)}" {style}><title>{name}</title></polyline>'
        points = []


def _legend(results: Sequence[TrialResult]) -> Iterator[str]:
    silent = sum(_finite(result.mean_return) is None for result in results)
    sentence = f"{counted(len(results), 'trial')}; the darker and wider a line, the greater its mean return"
    dotted = f"; {silent} without a return dotted" if silent else ""
    yield svg_text_element(14, _TOP + _HEIGHT + 30, sentence + dotted)


def _colour(share: float) -> str:
    """Return the colour of a result: 0 for the worst, 1 for the best."""
    half = min(int(share * 2), 1)
    first, second = _HUE[half], _HUE[half + 1]
    rest = share * 2 - half
    return "#" + "".join(f"{round(a + (b - a) * rest):02x}" for a, b in zip(first, second, strict=True))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def _x(number: int) -> float:
    return _LEFT + _GAP * number


def _y(share: float) -> float:
    return _TOP + (1.0 - share) * _HEIGHT
