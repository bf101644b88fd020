"""Learn-to-Race's measures of cars that another task scores: each pose goes through its rules as well."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.l2r_task import CarPose, Race
from runtime.rl.envs.racing_rules import STEP_SECONDS
from runtime.tracks.track import Floats, Track
from runtime.tracks.vehicle import GRAVITY, VehicleState

_NO_END: Final = 2**62
"""Steps: the other task says when an episode ends."""


class RaceMeasures:
    """One `Race` for each car."""

    def __init__(self, track: Track, count: int, laps: int) -> None:
        self._races = [Race(track, laps=laps, max_steps=_NO_END, step_seconds=STEP_SECONDS) for _ in range(count)]
        self._velocity: Floats = np.zeros((count, 2))
        """(B, 2) east and north at the step before, m/s."""

    def begin(self, state: VehicleState, rows: NDArray[np.intp]) -> None:
        """Begin the episodes of the cars `rows` where they are."""
        self._velocity[rows] = _velocity(state)[rows]
        for row in rows.tolist():
            self._races[row].begin(_pose(state, row, GRAVITY))

    def step(self, state: VehicleState) -> None:
        """Take the next pose of every car."""
        velocity = _velocity(state)
        change = (velocity - self._velocity) / STEP_SECONDS
        self._velocity = velocity
        # An accelerometer shows gravity as well, and the measures take it off again.
        felt = np.sqrt(np.sum(change**2, axis=1) + GRAVITY**2)
        for row, race in enumerate(self._races):
            race.step(_pose(state, row, float(felt[row])))

    def metrics(self, row: int, *, left_track: bool) -> dict[str, float]:
        """Return the measures of a car's episode, at its end."""
        # There the first wheels beyond an edge end an episode; here the centre does, and the steps between are no
        # infractions of their own.
        return {**self._races[row].metrics(), "num_infractions": float(left_track)}


def _velocity(state: VehicleState) -> Floats:
    cos, sin = np.cos(state.yaw), np.sin(state.yaw)
    east, north = state.forward * cos - state.sideways * sin, state.forward * sin + state.sideways * cos
    return np.stack([east, north], axis=1)


def _pose(state: VehicleState, row: int, acceleration: float) -> CarPose:
    speed = math.hypot(state.forward[row], state.sideways[row])
    return CarPose(float(state.x[row]), float(state.y[row]), float(state.yaw[row]), speed, acceleration)
