"""Learn-to-Race's measures of an episode, from where the car was and how it moved.

Curvature is the root mean square over a path by finite differences; smoothness is the logarithm of the
dimensionless jerk of the acceleration's size without gravity (after Balasubramanian et al. 2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.tracks.vehicle import GRAVITY

Floats = NDArray[np.float64]
_TINY: Final = 1e-6


@dataclass(frozen=True, slots=True)
class KinematicSample:
    """The car at one step."""

    east: float
    north: float
    centre_distance: float
    """From the centre line, m."""
    acceleration: float
    """Size of what the accelerometer shows, m/s^2; gravity is in it."""
    wheels_out: int
    seconds: float
    """Since the step before."""


@dataclass(slots=True)
class Recorder:
    """Collects the moments of an episode."""

    samples: list[KinematicSample] = field(default_factory=list)

    def metrics(self, track_curvature: float, *, infractions: int, laps: int) -> Mapping[str, float]:
        """Return the measures by their names in Learn-to-Race; times are of the simulation."""
        path = np.array([[sample.east, sample.north] for sample in self.samples]).reshape(-1, 2)
        seconds = np.array([sample.seconds for sample in self.samples])
        unsafe = sum(sample.seconds * sample.wheels_out for sample in self.samples)
        total = float(seconds.sum())
        distance = float(np.hypot(*np.diff(path, axis=0).T).sum()) if len(path) > 1 else 0.0
        rate = len(self.samples) / total if total else 0.0
        pushes = np.array([sample.acceleration - GRAVITY for sample in self.samples])
        return {
            "total_time": total,
            "total_distance": distance,
            "average_speed_kph": 3.6 * distance / total if total else 0.0,
            "average_displacement_error": float(
                np.mean([sample.centre_distance for sample in self.samples] or [0.0])
            ),
            "trajectory_efficiency": track_curvature / max(rms_curvature(path), _TINY),
            "trajectory_admissibility": 1.0 - min(1.0, unsafe / total) ** 0.5 if total else 1.0,
            "movement_smoothness": log_dimensionless_jerk(pushes, rate),
            "timestep/sec": rate,
            "num_infractions": infractions,
            "laps_completed": laps,
        }


def rms_curvature(path: Floats) -> float:
    """Root mean square of the curvature, 1/m, of a path (N, 2); 0 for fewer than three points."""
    if len(path) < 3:
        return 0.0
    velocity = 0.5 * (path[2:] - path[:-2])
    bend = path[2:] - 2 * path[1:-1] + path[:-2]
    # A standing car has no direction; the constant keeps its curvature finite and next to 0.
    speed_2 = np.sum(velocity**2, axis=1) + _TINY
    curvature = (velocity[:, 0] * bend[:, 1] - velocity[:, 1] * bend[:, 0]) / speed_2**1.5
    return float(np.sqrt(np.mean(curvature**2)))


def log_dimensionless_jerk(acceleration: Floats, rate: float) -> float:
    """Logarithm of the dimensionless jerk of an acceleration, ``rate`` samples a second; 0 where it is still."""
    peak = float(np.max(np.abs(acceleration), initial=0.0))
    if len(acceleration) < 2 or peak < _TINY or rate <= 0:
        return 0.0
    jerk = np.diff(acceleration) * rate
    size = (len(acceleration) / rate) / peak**2 * float(np.sum(jerk**2)) / rate
    return float(np.log(size)) if size > 0 else 0.0
