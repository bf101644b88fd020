"""Learn-to-Race's task on one car: reward, ends, laps, segments and infractions, from poses alone.

The reward is the progress along the centre line, in samples of half a metre as the original counts it, and a fine
for leaving the track, which is two wheels or more beyond an edge. What ends an episode by its own rules (out of
bounds, wrong way, all laps driven) is a termination; what merely cuts it (stuck, too slow, too many steps) is a
truncation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.tracks.track import Track
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
    """Bound of the accelerometer's values, m/s^2, with gravity."""
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


SAMPLE: Final = 0.505
"""Metres of centre line for which the reward is 1."""
MIN_FINE: Final = 25.0
FINE_PER_SPEED: Final = 5.0
"""Fine for leaving the track, and per m/s of speed if that is more."""
CAR_LENGTH: Final = 3.0
CAR_WIDTH: Final = 1.68
"""m"""
WHEELS_OUT: Final = 2
STUCK_STEPS: Final = 100
STUCK: Final = 0.5
"""Metres to be gained in ``STUCK_STEPS``."""
PROGRESS_STEPS: Final = 299
PROGRESS: Final = 50.0
"""Metres to be gained by step ``PROGRESS_STEPS``."""
WRONG_WAY: Final = 10.0
"""Metres behind the farthest point reached."""
SEGMENTS: Final = 10
ON_THE_LINE: Final = 0.5
"""Metres before a segment's border that belong to it: a car on the starting line is in the first."""


@dataclass(frozen=True, slots=True)
class CarPose:
    """Pose of a car: east and north in m, heading in rad from the east, speed in m/s."""

    east: float
    north: float
    yaw: float
    speed: float
    acceleration: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Reward, end and info of one step."""

    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Race:
    """The task of one car; `begin` an episode, then `step` with each pose."""

    def __init__(self, track: Track, *, laps: int, max_steps: int, step_seconds: float) -> None:
        self.infractions = 0
        """Over all episodes, as Learn-to-Race counts them."""
        self._track = track
        self._goal = laps
        self._max_steps = max_steps
        self._seconds = step_seconds
        self._track_curvature = rms_curvature(track.centre)

    def begin(self, pose: CarPose) -> None:
        """Start an episode where the car is."""
        x, y = np.array([pose.east]), np.array([pose.north])
        self._projection = self._track.project(x, y, self._track.locate(x, y))
        self.progress = 0.0
        """Metres gained in this episode."""
        self._farthest = 0.0
        self._steps = 0
        self._recorder = Recorder()
        self._recent: deque[float] = deque([0.0], maxlen=STUCK_STEPS + 1)
        self._lap_times: list[float] = []
        self._lap_began = 0.0
        self._start_metres = float(self._projection.distance[0])
        self._passed: list[int] = []

    @property
    def segment(self) -> int:
        """The tenth of the course that the car is in, from 0."""
        metres = float(self._projection.distance[0]) + ON_THE_LINE
        return int(metres / self._track.length * SEGMENTS) % SEGMENTS

    def segment_start(self, segment: int) -> tuple[float, float, float]:
        """East, north and heading (rad from the east) where a segment begins."""
        at = round(segment % SEGMENTS * len(self._track.heading) / SEGMENTS) % len(self._track.heading)
        x, y = self._track.centre[at].tolist()
        return x, y, float(self._track.heading[at])

    def step(self, pose: CarPose) -> Outcome:
        """Take the next pose."""
        before = self.progress
        gained = self._advance(pose)
        self._steps += 1
        wheels_out = self._wheels_out(pose)
        offset = float(self._projection.offset[0])
        sample = KinematicSample(pose.east, pose.north, abs(offset), pose.acceleration, wheels_out, self._seconds)
        self._recorder.samples.append(sample)
        self._count_laps(before, gained)
        self._recent.append(self.progress)
        ends = {
            "oob": wheels_out >= WHEELS_OUT,
            "wrong_way": self.progress < self._farthest - WRONG_WAY,
            "success": bool(self._goal) and len(self._lap_times) >= self._goal,
        }
        cuts = {
            # Only with a full window: a car that has just started has gained nothing yet.
            "stuck": len(self._recent) > STUCK_STEPS and self.progress - self._recent[0] < STUCK,
            "not_progressing": self._steps == PROGRESS_STEPS and self.progress < PROGRESS,
            "dnf": self._steps >= self._max_steps,
        }
        terminated = any(ends.values())
        truncated = any(cuts.values()) and not terminated
        reward = gained / SAMPLE
        if ends["oob"]:
            reward -= max(MIN_FINE, FINE_PER_SPEED * pose.speed)
        self.infractions += ends["oob"] + ends["wrong_way"]
        return Outcome(reward, terminated, truncated, self._info({**ends, **cuts}, ended=terminated or truncated))

    def _info(self, flags: dict[str, bool], *, ended: bool) -> dict[str, Any]:
        info: dict[str, Any] = {
            **flags,
            "progress_metres": self.progress,
            "segment": self.segment,
            "segments_passed": len(self._passed),
            "laps": len(self._lap_times),
            "lap_times": list(self._lap_times),
        }
        if ended:
            info["metrics"] = self.metrics()
        return info

    def metrics(self) -> dict[str, float]:
        """Return Learn-to-Race's measures of the current episode so far, by the names that they have there."""
        return {
            **self._recorder.metrics(
                self._track_curvature, infractions=self.infractions, laps=len(self._lap_times)
            ),
            "pct_complete": self._share_complete(),
            "success_rate": min(1.0, len(self._passed) / SEGMENTS),
        }

    def _share_complete(self) -> float:
        """Per cent of the laps asked for, of one where none are."""
        return min(100.0, max(0.0, 100.0 * self.progress / (max(1, self._goal) * self._track.length)))

    def _advance(self, pose: CarPose) -> float:
        """Update the projection of the car and return the metres gained."""
        before = float(self._projection.distance[0])
        x, y = np.array([pose.east]), np.array([pose.north])
        self._projection = self._track.project(x, y, self._projection.index)
        # The shorter way around: a step across the start line is a small gain, not the loss of a lap.
        half = self._track.length / 2
        gained = (float(self._projection.distance[0]) - before + half) % self._track.length - half
        self.progress += gained
        self._farthest = max(self._farthest, self.progress)
        return gained

    def _count_laps(self, before: float, gained: float) -> None:
        """Note laps from the point of the start, to a part of a step, and segments driven from end to end."""
        now, length = self._steps * self._seconds, self._track.length
        lap = len(self._lap_times) + 1
        if self.progress >= lap * length and gained > 0:
            # The line was crossed within this step: the lap time ends at the fraction of the step before it.
            over = (self.progress - lap * length) / gained
            ended = now - over * self._seconds
            self._lap_times.append(ended - self._lap_began)
            self._lap_began = ended
        size = length / SEGMENTS
        first = math.ceil(self._start_metres / size - 1e-6)
        done = int((self._start_metres + max(self.progress, before)) / size) - first
        while len(self._passed) < min(done, SEGMENTS):
            self._passed.append((first + len(self._passed)) % SEGMENTS)

    def _wheels_out(self, pose: CarPose) -> int:
        """Corners of the car's box beyond an edge of the track."""
        long, wide = CAR_LENGTH / 2, CAR_WIDTH / 2
        ahead = np.array([long, long, -long, -long])
        left = np.array([wide, -wide, wide, -wide])
        cos, sin = math.cos(pose.yaw), math.sin(pose.yaw)
        x = pose.east + ahead * cos - left * sin
        y = pose.north + ahead * sin + left * cos
        # Projected near the car's own sample, so that a corner is never matched to another part of the course.
        corners = self._track.project(x, y, np.repeat(self._projection.index, 4))
        index, offset = corners.index, corners.offset
        beyond = (offset > self._track.left[index]) | (offset < -self._track.right[index])
        return int(beyond.sum())
