"""World of the reference simulator: levels, the open level, its cars and the starting grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from runtime.sim.reference.car import VEHICLE_CLASS, Car
from runtime.sim.wire import protocol
from runtime.tracks.maps import FILE_FAMILIES, LAB_LEVELS, STAND_INS, TrackMap, own_map, plain_name, short_name
from runtime.tracks.track import COURSES

GRID_GAP: Final = 8.0
"""Metres between two cars on the starting grid."""
GRID_OFFSET: Final = 2.0
"""Metres from the centre line, on alternating sides. A single car starts on the line."""


class World:
    """Levels by name, the open level, and its cars."""

    def __init__(self, vehicles: int, seed: int, maps: Mapping[str, TrackMap]) -> None:
        self._seed = seed
        self._maps = dict(maps)
        """Maps from files by plain name; they take precedence over courses of the same name."""
        self.level = protocol.MAIN_MENU
        self.map: TrackMap | None = None
        """None in the main menu."""
        self.seconds = 0.0
        """Simulated time since the level was opened."""
        self._count = vehicles
        self.cars = self._new_cars()

    def levels(self) -> list[str]:
        """Return the names that ``open`` accepts; it accepts paths that contain them too."""
        names = [*COURSES, *(name for name in LAB_LEVELS if self._is_offered(plain_name(name)))]
        return [*self._maps, *(name for name in names if plain_name(name) not in self._maps)]

    def _is_offered(self, level: str) -> bool:
        """Return whether one of the lab's levels can be opened: from a file, or as a course if no file was
        given.
        """
        return not self._maps or self._from_file(level) is not None

    def _from_file(self, level: str) -> TrackMap | None:
        """Return the map from the file of a level, or from a file whose name contains the level."""
        if level in self._maps or level not in FILE_FAMILIES:
            return self._maps.get(level)
        family = FILE_FAMILIES[level]
        return next((track_map for name, track_map in self._maps.items() if name.startswith(family)), None)

    def open(self, level: str) -> None:
        """Open a level and put all cars on its grid. Raises KeyError for an unknown level."""
        plain = plain_name(level)
        if (track_map := self._from_file(plain)) is not None:
            self.map = track_map
        elif plain in COURSES:
            self.map = own_map(plain)
        elif plain in STAND_INS and self._is_offered(plain):
            self.map = own_map(STAND_INS[plain])
            course = STAND_INS[plain]
            print(f"simulator: level {plain} has no --track file; course {course} stands in, elsewhere", flush=True)
        else:
            raise KeyError(level)
        self.level = short_name(level).removesuffix(".json")
        self.cars = self._new_cars()
        self.reset()

    def _new_cars(self) -> list[Car]:
        """Create cars with default parameters and noise that only depends on the seed: runs repeat exactly."""
        return [Car(np.random.default_rng([self._seed, number])) for number in range(self._count)]

    def reset(self) -> None:
        """Put all cars back on the grid; parameters are kept, and the noise restarts."""
        self.seconds = 0.0
        if self.map is None:
            return
        track = self.map.track
        for number, car in enumerate(self.cars):
            # Backwards from the finish line, alternating sides.
            at = -round(number * GRID_GAP / track.step) % len(track.heading)
            heading = float(track.heading[at])
            side = 0.0 if len(self.cars) == 1 else GRID_OFFSET * (-1) ** number
            x, y = track.centre[at].tolist()
            car.set_pose(x - side * math.sin(heading), y + side * math.cos(heading), heading)
            car.begin(np.random.default_rng([self._seed, number]))

    def advance(self, seconds: float, substeps: int = 1) -> None:
        """Advance every car."""
        for car in self.cars:
            car.advance(seconds, substeps)
        self.seconds += seconds

    def pose(self, number: int) -> bytes:
        """Return the pose datagram of a car."""
        if self.map is None:
            raise RuntimeError("there is no pose in the main menu")
        return protocol.pack_pose(self.cars[number].pose(self.map.frame))

    def state(self, number: int) -> dict[str, Any]:
        """Return the result of ``get_vehicle_state``."""
        car = self.cars[number]
        x, y, _ = car.position
        return {"pos_xyz": [x, y, 0.0], "yaw": car.compass_yaw, "vehicle_class_name": VEHICLE_CLASS}
