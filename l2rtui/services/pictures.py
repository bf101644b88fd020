"""Images in a terminal: two pixels a character cell as coloured half blocks, or shades of ASCII. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from l2rtui.services.simulators import Picture

UPPER: Final = "▀"
SHADES: Final = " .:-=+*#%@"
"""From dark to light, for terminals without colours or without half blocks."""

Colour = tuple[int, int, int]


class Cell(NamedTuple):
    """Two pixels, one over the other."""

    upper: Colour
    lower: Colour

    @property
    def shade(self) -> str:
        """One character as light as both."""
        red, green, blue = (upper + lower for upper, lower in zip(self.upper, self.lower, strict=True))
        light = (299 * red + 587 * green + 114 * blue) // 2000
        return SHADES[min(len(SHADES) - 1, light * len(SHADES) // 256)]


def cells(picture: Picture, columns: int, rows: int) -> Iterator[tuple[Cell, ...]]:
    """The picture as rows of cells, as large as fits, its shape kept."""
    scale = min(columns / picture.width, 2 * rows / picture.height)
    width, lines = max(1, int(picture.width * scale)), max(1, int(picture.height * scale / 2))

    def pixel(column: int, line: int) -> Colour:
        return picture.at(
            column * picture.width // width, min(picture.height - 1, line * picture.height // (2 * lines))
        )

    for row in range(lines):
        yield tuple(Cell(pixel(column, 2 * row), pixel(column, 2 * row + 1)) for column in range(width))


def ansi(picture: Picture, columns: int, rows: int, *, has_colours: bool) -> Iterator[str]:
    """Lines for a terminal; without colours in shades of ASCII."""
    for row in cells(picture, columns, rows):
        if not has_colours:
            yield "".join(cell.shade for cell in row).rstrip()
            continue
        parts = (
            f"\x1b[38;2;{cell.upper[0]};{cell.upper[1]};{cell.upper[2]}"
            f";48;2;{cell.lower[0]};{cell.lower[1]};{cell.lower[2]}m{UPPER}"
            for cell in row
        )
        yield f"{''.join(parts)}\x1b[0m"
