"""State of a worker's simulators, and their camera images as terminal text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

UPPER: Final = "▀"
SHADES: Final = " .:-=+*#%@"
"""From dark to light, for terminals without colours or half blocks."""

Colour = tuple[int, int, int]
"""Red, green, blue, 0 to 255 each."""


class Simulator(Struct, frozen=True):
    """State of one simulator, as its worker reports it.

    Attributes:
        index: Number within its worker, from 0.
        state: ``starting``, ``ready``, ``lost``, ``given up`` or ``stopped``. fps: Poses per second.
        error: Newest failure as a sentence; empty without one. tail: Last lines of its output.
    """

    index: int
    kind: str = ""
    state: str = ""
    restarts: int = 0
    uptime_seconds: float = 0.0
    fps: float = 0.0
    error: str = ""
    tail: tuple[str, ...] = ()


class CameraImage(Struct, frozen=True):
    """RGB image, 8 bits per channel, rows from the top."""

    width: int
    height: int
    pixels: bytes

    def at(self, x: int, y: int) -> Colour:
        """Colour of a pixel."""
        start = 3 * (y * self.width + x)
        red, green, blue = self.pixels[start : start + 3]
        return red, green, blue


class Cell(NamedTuple):
    """Character cell: two pixels, one above the other."""

    upper: Colour
    lower: Colour

    @property
    def shade(self) -> str:
        """Character with the mean brightness of both pixels."""
        red, green, blue = (upper + lower for upper, lower in zip(self.upper, self.lower, strict=True))
        # Luma weights of ITU-R BT.601 in thousandths; the sum of two pixels is halved.
        light = (299 * red + 587 * green + 114 * blue) // 2000
        return SHADES[min(len(SHADES) - 1, light * len(SHADES) // 256)]


CellRows = Sequence[Sequence[Cell]]


def to_cells(image: CameraImage, columns: int, rows: int) -> Iterator[tuple[Cell, ...]]:
    """Scale an image to rows of cells of two pixels each: as large as fits, with preserved aspect ratio."""
    # A terminal cell is about twice as high as wide, so one cell of two pixels keeps pixels square.
    scale = min(columns / image.width, 2 * rows / image.height)
    width, lines = max(1, int(image.width * scale)), max(1, int(image.height * scale / 2))

    def pixel(column: int, line: int) -> Colour:
        return image.at(column * image.width // width, min(image.height - 1, line * image.height // (2 * lines)))

    for row in range(lines):
        yield tuple(Cell(pixel(column, 2 * row), pixel(column, 2 * row + 1)) for column in range(width))


def to_ansi(image: CameraImage, columns: int, rows: int, *, has_colours: bool) -> Iterator[str]:
    """Return lines for a terminal; without colours as ASCII shades."""
    for row in to_cells(image, columns, rows):
        if not has_colours:
            yield "".join(cell.shade for cell in row).rstrip()
            continue
        parts = (
            f"\x1b[38;2;{cell.upper[0]};{cell.upper[1]};{cell.upper[2]}"
            f";48;2;{cell.lower[0]};{cell.lower[1]};{cell.lower[2]}m{UPPER}"
            for cell in row
        )
        yield f"{''.join(parts)}\x1b[0m"
