"""Line plots in braille dots (Unicode block U+2800): two by four dots in each cell of the terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character, by column and row of the dot."""
EMPTY: Final = "⠀"


def bounds(series: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Return the least and the greatest finite value, made unequal where they are equal; None without values."""
    values = [value for line in series for value in line if math.isfinite(value)]
    if not values:
        return None
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def plot(series: Sequence[Sequence[float]], width: int, height: int) -> list[list[tuple[str, int]]]:
    """Draw lines over each other.

    Args:
        series: Values of each line, oldest first; each line takes the whole width.
        width, height: Cells of the terminal.

    Returns:
        Lines from top to bottom; each cell holds its character and the number of the line that touched it last, or
        -1 where none did.
    """
    limits = bounds(series)
    cells = [[0] * width for _ in range(height)]
    owners = [[-1] * width for _ in range(height)]
    if limits is not None and width > 0 and height > 0:
        low, high = limits
        for number, line in enumerate(series):
            for x, y in _dots(line, 2 * width, 4 * height, low, high):
                cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
                owners[y // 4][x // 2] = number
    return [
        [(chr(0x2800 + dots), owner) for dots, owner in zip(row, whose, strict=True)]
        for row, whose in zip(cells, owners, strict=True)
    ]


def _dots(values: Sequence[float], columns: int, rows: int, low: float, high: float) -> list[tuple[int, int]]:
    """Return the dots of one line: its points, and the dots on the straight lines between neighbours."""
    points: list[tuple[int, int]] = []
    last = max(1, len(values) - 1)
    for number, value in enumerate(values):
        if math.isfinite(value):  # a diverged run logs NaN; its line goes on at the next number
            x = round(number * (columns - 1) / last) if len(values) > 1 else columns - 1
            share = (min(high, max(low, value)) - low) / (high - low)
            points.append((x, round((1 - share) * (rows - 1))))
    dots = list(points[:1])
    for (x, y), (to_x, to_y) in pairwise(points):
        steps = max(abs(to_x - x), abs(to_y - y), 1)
        dots += [
            (round(x + (to_x - x) * step / steps), round(y + (to_y - y) * step / steps))
            for step in range(1, steps + 1)
        ]
    return dots
