"""Racing on a closed track in NumPy: many cars at once, each alone on the course, by ``racing_rules``.

`DeviceRacing` does the same on the learner's device, with thousands of cars in one array. `RacingVectorEnv` begins
episodes anew in the rows that ended. On the device that is a value, so new starts are drawn for all cars, and taken
where an episode ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.device import Array, DeviceArrays, DeviceStep, ended_code, summed
from runtime.rl.envs.l2r_task import CarPose, Race
from runtime.rl.envs.racing_rules import (
    START_OFFSET,
    START_SPEED,
    START_TURN,
    STEP_SECONDS,
    Cars,
    RacingOptions,
    RacingRules,
)
from runtime.rl.spaces import ActionSpace
from runtime.tracks.track import Floats, Projection, Track
from runtime.tracks.vehicle import GRAVITY, Vehicle, VehicleParams, VehicleState

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


class RacingVectorEnv:
    """``num_envs`` cars on a track each of their own; see ``runtime.rl.envs.base.VectorEnv`` for the methods.

    Observation of the place, each about 1 in size: offset from the centre line over half the width; sine and
    cosine of the heading error; speed forward and sideways; yaw rate; road-wheel angle; room to the left and to
    the right edge; the last action (2); mean curvature of the 12 stretches of ``LOOK_AHEAD``. With a view: of
    these only the speeds, yaw rate, road-wheel angle and last action, which a car can feel, and a picture.
    """

    act_dim = RacingRules.act_dim
    """Steering, positive to the left, and acceleration: -16 m/s^2 at -1, 6 m/s^2 at 1 (Learn-to-Race's scale)."""
    obs_dim = RacingRules.obs_dim
    action_space = ActionSpace(act_dim)
    step_seconds = STEP_SECONDS

    def __init__(
        self,
        num_envs: int,
        options: RacingOptions | None = None,
        *,
        params: VehicleParams | None = None,
        track: Track | None = None,
        vehicle: Vehicle | None = None,
        state: VehicleState | None = None,
    ) -> None:
        """Take another track, or cars that something else moves, in place of those that the options name."""
        self.num_envs = num_envs
        self.options = options or RacingOptions()
        self.vehicle = vehicle or Vehicle(params)
        self._rules = RacingRules(self.options, track=track, vehicle=self.vehicle)
        self.track = self._rules.track
        self.obs_space = self._rules.obs_space
        self._cars = Cars.standing(state or VehicleState.at_rest(num_envs), self.track)
        self._races: RaceMeasures | None = None
        self._rng = np.random.default_rng(0)
        self.reset(0)

    @property
    def state(self) -> VehicleState:
        """Pose and motion of the cars."""
        return self._cars.state

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every car; the same seed and actions give the same episodes."""
        self._rng = np.random.default_rng(seed)
        self._start(np.arange(self.num_envs))
        return self._rules.observe(self._cars)

    def step(self, action: NDArray[np.float32]) -> StepResult:
        """Drive all cars for a tenth of a second."""
        outcome = self._rules.drive(self._cars, np.asarray(action, dtype=np.float64))
        if self._races is not None:
            self._races.step(self.state)
        final_obs = obs = self._rules.observe(self._cars)
        ended = np.flatnonzero(outcome.terminated | outcome.truncated)
        episodes: tuple[EpisodeSummary, ...] = ()
        if len(ended):
            left = outcome.left_track
            episodes = tuple(self._summary(env, left_track=bool(left[env])) for env in ended.tolist())
            self._start(ended)
            obs = self._rules.observe(self._cars)
        reward = outcome.reward.astype(np.float32)
        return StepResult(obs, reward, outcome.terminated, outcome.truncated, final_obs, episodes)

    def restart(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Begin new episodes in the cars ``rows``, without an end of the present ones; the observation of all."""
        self._start(rows)
        return self._rules.observe(self._cars)

    def measure(self) -> None:
        """Fill the summaries' metrics with those of Learn-to-Race, from the next reset on."""
        self._races = RaceMeasures(self.track, self.num_envs, int(self.options.laps))
        self._races.begin(self.state, np.arange(self.num_envs))

    @property
    def progress(self) -> Floats:
        """(B,) metres gained since the start of each car's present episode."""
        return self._cars.progress.copy()

    def _summary(self, env: int, *, left_track: bool) -> EpisodeSummary:
        cars = self._cars
        progress = float(cars.progress[env])
        laps = max(0, int(progress // self.track.length))
        metrics = self._races.metrics(env, left_track=left_track) if self._races is not None else {}
        steps, return_ = int(cars.steps[env]), float(cars.returns[env])
        return EpisodeSummary(int(env), steps, return_, progress, laps, left_track, metrics)

    def _start(self, rows: NDArray[np.intp]) -> None:
        """Put the cars ``rows`` at a start and begin their episodes."""
        track, cars, count = self.track, self._cars, len(rows)
        if self.options.start == "line":
            at = np.zeros(count, dtype=np.intp)
            offset, turned, forward = (np.zeros(count) for _ in range(3))
        else:
            at = self._rng.integers(len(track.curvature), size=count, dtype=np.intp)
            share = self._rng.uniform(-START_OFFSET, START_OFFSET, count)
            offset = share * np.minimum(track.left[at], track.right[at])
            turned = self._rng.uniform(-START_TURN, START_TURN, count)
            forward = self._rng.uniform(0.0, START_SPEED, count)
        x, y, yaw = self._rules.start_pose(at, offset, turned)
        cars.state.set_pose(rows, x=x, y=y, yaw=yaw, forward=forward)
        for counter in (cars.progress, cars.farthest, cars.checkpoint, cars.returns, cars.action):
            counter[rows] = 0.0
        cars.steps[rows] = 0
        near = cars.projection.index.copy()
        near[rows] = at
        cars.projection = track.project(cars.state.x, cars.state.y, near)
        if self._races is not None:
            self._races.begin(self.state, rows)


_PARTS: Final = {"state": VehicleState, "projection": Projection}
"""Fields of `Cars` that are records of arrays."""
# Listed once: torch.compile cannot follow `dataclasses.fields` of a class.
_FIELDS: Final = {part: tuple(field.name for field in fields(kind)) for part, kind in _PARTS.items()}
_REST: Final = tuple(field.name for field in fields(Cars) if field.name not in _PARTS)


class DeviceRacing:
    """``num_envs`` cars on a device; see ``runtime.rl.envs.device.DeviceEnv`` for the methods."""

    def __init__(self, num_envs: int, options: RacingOptions, arrays: DeviceArrays) -> None:
        self.num_envs = num_envs
        self._arrays = arrays
        self._from_line = options.start == "line"
        self._rules = RacingRules(options, xp=arrays.xp, convert=arrays.convert)
        self.obs_space, self.action_space = self._rules.obs_space, self._rules.action_space
        # Made before any step: a copy from the host is not allowed while a step is captured.
        self._zero = arrays.convert(np.zeros(num_envs))
        self._first = arrays.convert(np.zeros(num_envs, dtype=np.int64))
        self._no_action = arrays.convert(np.zeros((num_envs, RacingRules.act_dim)))
        self.start()

    def start(self) -> None:
        """Begin a new episode in every car."""
        self._cars = self._started()

    def observe(self) -> Array:
        """(B, obs_space.width) of the current state."""
        return self._rules.observe(self._cars)

    def step(self, action: Array) -> DeviceStep:
        """Drive all cars for a tenth of a second."""
        cars, xp = self._cars, self._arrays.xp
        outcome = self._rules.drive(cars, action)
        final_obs = self._rules.observe(cars)
        ended = outcome.terminated | outcome.truncated
        laps = (cars.progress // self._rules.track.length).clip(0, None)
        episodes = summed(ended, cars.returns, cars.steps, cars.progress, laps)
        fresh = _flat(self._started())
        before = _flat(cars)
        # Triton 3.6 fails on the one kernel that Inductor makes of both (`PassManager::run failed`, torch 2.11).
        self._arrays.part()
        self.use_state({name: _where(ended, fresh[name], before[name], xp) for name in before})
        reward = xp.asarray(outcome.reward, dtype=xp.float32)
        return DeviceStep(reward, ended_code(outcome.terminated, outcome.truncated, xp), final_obs, episodes)

    def state(self) -> dict[str, Array]:
        """Return the cars' arrays."""
        return _flat(self._cars)

    def use_state(self, state: Mapping[str, Array]) -> None:
        """Go on with other arrays."""
        parts = {
            part: kind(**{name: state[f"{part}.{name}"] for name in _FIELDS[part]}) for part, kind in _PARTS.items()
        }
        self._cars = Cars(**parts, **{name: state[name] for name in _REST})

    def _started(self) -> Cars:
        """Draw a start for every car: at the line, standing; or anywhere, rolling, a little off the centre line."""
        track, zero, first = self._rules.track, self._zero, self._first
        at, offset, turned, forward = first, zero, zero, zero
        if not self._from_line:
            xp, draws = self._arrays.xp, self._arrays.uniform((4, self.num_envs))
            samples = len(track.curvature)
            # A draw just below 1 may be rounded up to the number of samples in float32.
            at = xp.asarray(draws[0] * samples, dtype=xp.int64).clip(None, samples - 1)
            offset = START_OFFSET * (2.0 * draws[1] - 1.0) * xp.minimum(track.left[at], track.right[at])
            turned = START_TURN * (2.0 * draws[2] - 1.0)
            forward = START_SPEED * draws[3]
        x, y, yaw = self._rules.start_pose(at, offset, turned)
        state = VehicleState(x, y, yaw, forward, zero, zero, zero)
        # The foot point of a start is its sample: no search is needed.
        place = Projection(at, at * track.step + zero, offset, track.heading[at])
        return Cars(state, place, self._no_action, zero, zero, zero, first, zero)


def _flat(cars: Cars) -> dict[str, Array]:
    """Return the arrays of ``cars`` by name: ``state.x``, ``progress``."""
    parts = {
        f"{part}.{name}": getattr(getattr(cars, part), name) for part, names in _FIELDS.items() for name in names
    }
    return parts | {name: getattr(cars, name) for name in _REST}


def _where(ended: Array, fresh: Array, before: Array, xp: Any) -> Array:
    """Rows of ``fresh`` where an episode ended, of ``before`` elsewhere; arrays are (B,) or (B, size)."""
    return xp.where(ended if before.ndim == 1 else ended[:, None], fresh, before)
