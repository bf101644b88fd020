"""Map of a track with a car and its path, north up."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.road_image import CELL, MARGIN, View
from runtime.tracks.track import Track
from runtime.tracks.vehicle import VehicleState

MAX_SIDE: Final = 640
"""Approximate maximum of the longer side, in pixels."""
BORDER: Final = 10.0
"""Metres of grass around the course."""
GRASS: Final = (34, 60, 40)
ROAD: Final = (120, 120, 124)
WAY: Final = (90, 170, 255)
CAR: Final = (255, 80, 60)


class CourseMap:
    """Images of one car's path around a track."""

    def __init__(self, track: Track) -> None:
        view = View.of(track)
        cut = int((MARGIN - BORDER) / CELL)
        road = view.pixels[cut:-cut, cut:-cut]
        self._stride = max(1, -(-max(road.shape) // MAX_SIDE))
        share = road[:: self._stride, :: self._stride, None] / 255.0
        self._ground = (np.array(GRASS) * (1.0 - share) + np.array(ROAD) * share).astype(np.uint8)
        self._south_west = view.south_west[0] + cut * CELL, view.south_west[1] + cut * CELL

    def draw(self, state: VehicleState) -> NDArray[np.uint8]:
        """Return the map (height, width, 3) with the first car at its current position, and extend its path."""
        metres = CELL * self._stride
        column = int((float(state.x[0]) - self._south_west[0]) / metres)
        row = int((float(state.y[0]) - self._south_west[1]) / metres)
        _dot(self._ground, row, column, 1, WAY)
        picture = self._ground.copy()
        _dot(picture, row, column, 3, CAR)
        return np.ascontiguousarray(picture[::-1])


def _dot(picture: NDArray[np.uint8], row: int, column: int, reach: int, colour: tuple[int, int, int]) -> None:
    """Paint a square; parts outside the map are omitted."""
    rows, columns = slice(max(0, row - reach), row + reach + 1), slice(max(0, column - reach), column + reach + 1)
    if row >= -reach and column >= -reach:
        picture[rows, columns] = colour
