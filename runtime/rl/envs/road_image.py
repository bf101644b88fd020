"""Bird's-eye images of the road around many cars, small and grey.

The picture is wide where it looks far, as a camera's is: rows lie at distances that grow by the same factor, so
that the near edge is seen to half a metre and the bend after next is in the picture as well. Road is white. It is
looked up in one map of the whole course; nothing is drawn while cars drive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.spaces import Image
from runtime.tracks.track import Floats, Track
from runtime.tracks.vehicle import Namespace

SIDE: Final = 32
"""Pixels of a picture in height and width."""
SHAPE: Final[Image] = (SIDE, SIDE, 1)
NEAR: Final = 4.0
"""The eye is so many metres behind the first row, which lies under the car."""
FAR: Final = 104.0
"""And the last row so many metres ahead of it: a car brakes from 45 m/s within 80."""
HALF_WIDTH: Final = 9.0
"""Metres to either side that the first row shows; a road is 12 wide."""
OPENING: Final = 0.35
"""Metres to either side that come with each metre of distance."""
CELL: Final = 0.5
"""Metres of a pixel of the map."""
MARGIN: Final = FAR * (1.0 + OPENING) + HALF_WIDTH
"""Metres of nothing around the course: what a car on its edge can see."""


@dataclass(frozen=True, slots=True)
class View:
    """The map of a course, and how to look at it."""

    pixels: NDArray[np.uint8]
    """(rows, columns) of the map, rows to the north: how much of a cell is road, 255 all of it."""
    south_west: tuple[float, float]
    """Metres east and north of the map's first corner."""
    ahead: Floats
    """(SIDE, 1) metres from the car to each row of a picture, the farthest first."""
    left: Floats
    """(SIDE, SIDE) metres from the middle of its row to each pixel, positive to the left."""
    xp: Namespace = np
    """Library of the arrays."""

    def converted(self, xp: Namespace, convert: Callable[[NDArray[Any]], Any]) -> View:
        """Return the map with the arrays of ``xp`` that ``convert`` makes of this one's, for `render` there."""
        arrays = {name: convert(getattr(self, name)) for name in ("pixels", "ahead", "left")}
        return replace(self, xp=xp, **arrays)

    @classmethod
    def of(cls, track: Track) -> View:
        """Draw the map of a track."""
        ahead = np.geomspace(FAR, NEAR, SIDE)[:, None] - NEAR
        left = np.linspace(1.0, -1.0, SIDE) * (HALF_WIDTH + OPENING * ahead)
        low = track.centre.min(axis=0) - MARGIN
        columns, rows = np.ceil((track.centre.max(axis=0) + MARGIN - low) / CELL).astype(int).tolist()
        pixels = np.zeros((rows, columns), dtype=np.uint8)
        reach = int(np.ceil(max(track.left.max(), track.right.max()) / CELL)) + 2
        around = np.arange(-reach, reach + 1)
        samples = zip(track.centre - low, track.heading, track.left, track.right, strict=True)
        for (x, y), heading, to_left, to_right in samples:
            column, row = int(x / CELL) + around, int(y / CELL) + around[:, None]
            east, north = (column + 0.5) * CELL - x, (row + 0.5) * CELL - y
            edge = np.where(north * np.cos(heading) > east * np.sin(heading), to_left, to_right)
            covered = np.clip(0.5 + (edge - np.hypot(east, north)) / CELL, 0.0, 1.0)
            patch = pixels[row[0, 0] : row[-1, 0] + 1, column[0] : column[-1] + 1]
            np.maximum(patch, (255.0 * covered).astype(np.uint8), out=patch)
        return cls(pixels, (float(low[0]), float(low[1])), ahead, left)

    def render(self, x: Floats, y: Floats, yaw: Floats) -> NDArray[np.uint8]:
        """(B, *SHAPE) pictures of cars at (B,) places that look along ``yaw``, rad."""
        xp = self.xp
        cos, sin = (turn(yaw)[:, None, None] / CELL for turn in (xp.cos, xp.sin))
        column = (x[:, None, None] - self.south_west[0]) / CELL + self.ahead * cos - self.left * sin
        row = (y[:, None, None] - self.south_west[1]) / CELL + self.ahead * sin + self.left * cos
        rows, columns = self.pixels.shape
        # A car that flies off the map still sees its edge, where there is no road.
        row, column = row.clip(0, rows - 1), column.clip(0, columns - 1)
        at = xp.asarray(row, dtype=xp.int64) * columns + xp.asarray(column, dtype=xp.int64)
        images: NDArray[np.uint8] = self.pixels.reshape(-1)[at]
        return images[..., None]
