"""Racing on a closed track: many cars at once, each alone on the course.

The idea of the task is Learn-to-Race's: steer and accelerate at 10 Hz, earn the metres gained along the centre
line, lose the episode and a speed-dependent fine when leaving the track. What an agent sees here is its place
relative to the track, or a picture of the road; the vehicle and the tracks are those of the reference simulator.

An episode *terminates* when the car's centre crosses an edge, or when it has driven ``WRONG_WAY`` metres
backwards: both are ends that the car has earned, with the fine. It is *truncated* after ``max_seconds``, after
``laps`` laps where that is set, or when it gained less than ``STUCK`` metres in ``STUCK_SECONDS``: a car that
stands still could yet drive on, so its value is estimated, not set to zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import EpisodeSummary, StepResult
from runtime.rl.envs.road_image import SHAPE, View
from runtime.rl.spaces import ActionSpace, ObsSpace
from runtime.tracks.track import COURSES, Floats, Track, make_track
from runtime.tracks.vehicle import Vehicle, VehicleParams, VehicleState

STEP_SECONDS: Final = 0.1
SUBSTEPS: Final = 5
STUCK_SECONDS: Final = 5.0
STUCK: Final = 5.0
"""Metres to be gained in ``STUCK_SECONDS``."""
WRONG_WAY: Final = 10.0
"""Metres behind the farthest point reached."""
LOOK_AHEAD: Final = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 65.0, 80.0, 100.0, 125.0, 150.0)
"""Borders, m, of the stretches whose mean curvature the agent sees; it brakes from 45 m/s within 80."""
REWARD_PER_METRE: Final = 0.2
"""About 0.5 a step at racing speed, so that returns over the horizon of a discount of 0.98 stay near 25."""
MIN_FINE: Final = 12.5
FINE_PER_SPEED: Final = 2.5
"""Fine for leaving the track: metres, at least, and metres per m/s of speed. Learn-to-Race's min(-25, -5 |v|) in
its own units, half metres."""
CURVATURE_UNIT: Final = 0.03
"""1/m; about the sharpest bends of the courses."""
SPEED_UNIT: Final = 20.0
"""m/s"""
OBS_BOUND: Final = 10.0
"""Observations are clipped to this size."""
FELT: Final = (3, 4, 5, 6, 9, 10)
"""Numbers of an observation of the place that a car can feel: speeds, yaw rate, road-wheel angle, last action."""


@dataclass(frozen=True, slots=True)
class RacingOptions:
    """Settings of one set of cars, as a spec writes them under ``env``."""

    observation: Literal["place", "view"] = "place"
    """``place``: where the car is on the track and how the road goes on. ``view``: how it moves, and a picture of
    the road ahead (``runtime.rl.envs.road_image``)."""
    track: str = "harbour"
    """Course to drive; see ``runtime.tracks.track.COURSES``."""
    start: Literal["random", "line"] = "random"
    """``random``: anywhere, rolling, a little off the centre line: for training, so that every bend is met from
    the first minute. ``line``: standing at the start line: for evaluation."""
    max_seconds: float = 60.0
    """Simulated time after which an episode is cut."""
    laps: int = 0
    """Whole laps after which an episode is cut; 0 means that only time cuts it."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> RacingOptions:
        """Check ``options`` and fill in the defaults. ValueError names the option and what it may be."""
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise ValueError(f"racing has no option {name!r}; known are {', '.join(names)}")
        made = cls(**options)
        if made.track not in COURSES:
            raise ValueError(f"racing: track is {made.track!r}; known are {', '.join(COURSES)}")
        if made.observation not in ("place", "view"):
            raise ValueError(f"racing: observation is {made.observation!r}; it may be place or view")
        if made.start not in ("random", "line"):
            raise ValueError(f"racing: start is {made.start!r}; it may be random or line")
        for name in ("max_seconds", "laps"):
            value = getattr(made, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
                raise ValueError(f"racing: {name} is {value!r}; it must be a number from 0 up")
        if made.laps != int(made.laps):
            raise ValueError(f"racing: laps is {made.laps}; it must be a whole number")
        if made.max_seconds < STEP_SECONDS:
            raise ValueError(f"racing: max_seconds is {made.max_seconds}; a step alone takes {STEP_SECONDS}")
        return made


class RacingVectorEnv:
    """``num_envs`` cars on a track each of their own; see ``runtime.rl.envs.base.VectorEnv`` for the methods.

    Observation of the place, each about 1 in size: offset from the centre line over half the width; sine and
    cosine of the heading error; speed forward and sideways; yaw rate; road-wheel angle; room to the left and to
    the right edge; the last action (2); mean curvature of the 12 stretches of ``LOOK_AHEAD``. With a view: of
    these only the speeds, yaw rate, road-wheel angle and last action, which a car can feel, and a picture.
    """

    act_dim = 2
    """Steering, positive to the left, and acceleration: -16 m/s^2 at -1, 6 m/s^2 at 1 (Learn-to-Race's scale)."""
    obs_dim = 11 + len(LOOK_AHEAD) - 1
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
        self.track: Track = track or make_track(self.options.track)
        self.vehicle = vehicle or Vehicle(params)
        self.state = state or VehicleState.at_rest(num_envs)
        self._view = View.of(self.track) if self.options.observation == "view" else None
        self.obs_space = ObsSpace(len(FELT), (SHAPE,)) if self._view else ObsSpace(self.obs_dim)
        self._ahead = self.track.look_ahead(LOOK_AHEAD) / CURVATURE_UNIT
        self._rng = np.random.default_rng(0)
        self._max_steps = round(self.options.max_seconds / STEP_SECONDS)
        self._stuck_steps = round(STUCK_SECONDS / STEP_SECONDS)
        self._goal = self.options.laps * self.track.length if self.options.laps else np.inf
        self._action = np.zeros((num_envs, self.act_dim))
        self._projection = self.track.project(self.state.x, self.state.y, np.zeros(num_envs, dtype=np.intp))
        self._progress = np.zeros(num_envs)
        self._farthest = np.zeros(num_envs)
        self._checkpoint = np.zeros(num_envs)
        """Progress at the start of the current stretch of ``STUCK_SECONDS``."""
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self.reset(0)

    def reset(self, seed: int) -> NDArray[Any]:
        """Start every car anew; the same seed and actions give the same episodes."""
        self._rng = np.random.default_rng(seed)
        self._start(np.arange(self.num_envs))
        return self._observe()

    def step(self, action: NDArray[np.float32]) -> StepResult:
        """Drive all cars for a tenth of a second."""
        track, state, params = self.track, self.state, self.vehicle.params
        self._action = np.clip(np.asarray(action, dtype=np.float64), -1.0, 1.0)
        pedal = self._action[:, 1]
        acceleration = np.where(pedal < 0, params.max_brake, params.max_drive) * pedal
        # Constant commands over the step, as the lab's simulator holds them between two actions.
        self.vehicle.advance(state, self._action[:, 0], acceleration, STEP_SECONDS, SUBSTEPS)

        before, self._projection = self._projection, track.project(state.x, state.y, self._projection.index)
        # The shorter way around: a step across the start line is a small gain, not the loss of a lap.
        half = track.length / 2
        gained = (self._projection.distance - before.distance + half) % track.length - half
        self._progress += gained
        self._farthest = np.maximum(self._farthest, self._progress)
        self._steps += 1

        offset, index = self._projection.offset, self._projection.index
        left_track = (offset > track.left[index]) | (offset < -track.right[index])
        terminated = left_track | (self._progress < self._farthest - WRONG_WAY)
        due = self._steps % self._stuck_steps == 0
        stuck = due & (self._progress - self._checkpoint < STUCK)
        self._checkpoint = np.where(due, self._progress, self._checkpoint)
        truncated = stuck | (self._steps >= self._max_steps) | (self._progress >= self._goal)
        truncated &= ~terminated

        fine = np.where(terminated, np.maximum(MIN_FINE, FINE_PER_SPEED * state.speed), 0.0)
        reward = REWARD_PER_METRE * (gained - fine)
        self._return += reward
        final_obs = obs = self._observe()
        ended = np.flatnonzero(terminated | truncated)
        episodes: tuple[EpisodeSummary, ...] = ()
        if len(ended):
            episodes = tuple(self._summary(env, left_track=bool(left_track[env])) for env in ended.tolist())
            self._start(ended)
            obs = self._observe()
        return StepResult(obs, reward.astype(np.float32), terminated, truncated, final_obs, episodes)

    def restart(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        """Begin new episodes in the cars ``rows``, without an end of the present ones; the observation of all."""
        self._start(rows)
        return self._observe()

    @property
    def progress(self) -> Floats:
        """(B,) metres gained since the start of each car's present episode."""
        return self._progress.copy()

    def _summary(self, env: int, *, left_track: bool) -> EpisodeSummary:
        progress = float(self._progress[env])
        laps = max(0, int(progress // self.track.length))
        return EpisodeSummary(int(env), int(self._steps[env]), float(self._return[env]), progress, laps, left_track)

    def _start(self, rows: NDArray[np.intp]) -> None:
        """Put the cars ``rows`` at a start and begin their episodes."""
        track, count = self.track, len(rows)
        if self.options.start == "line":
            at = np.zeros(count, dtype=np.intp)
            offset, turned, forward = (np.zeros(count) for _ in range(3))
        else:
            at = self._rng.integers(len(track.curvature), size=count, dtype=np.intp)
            offset = self._rng.uniform(-0.6, 0.6, count) * np.minimum(track.left[at], track.right[at])
            turned = self._rng.uniform(-0.15, 0.15, count)
            forward = self._rng.uniform(0.0, 25.0, count)
        heading = track.heading[at]
        x = track.centre[at, 0] - offset * np.sin(heading)
        y = track.centre[at, 1] + offset * np.cos(heading)
        self.state.set_pose(rows, x=x, y=y, yaw=heading + turned, forward=forward)
        for counter in (self._progress, self._farthest, self._checkpoint, self._return, self._action):
            counter[rows] = 0.0
        self._steps[rows] = 0
        near = self._projection.index.copy()
        near[rows] = at
        self._projection = track.project(self.state.x, self.state.y, near)

    def _observe(self) -> NDArray[Any]:
        """(B, obs_space.width) of the present state."""
        state, place = self.state, self._observe_place()
        if self._view is None:
            return place
        return self.obs_space.pack(place[:, FELT], [self._view.render(state.x, state.y, state.yaw)])

    def _observe_place(self) -> NDArray[np.float32]:
        """(B, obs_dim) of the present state."""
        state, place = self.state, self._projection
        left, right = self.track.left[place.index], self.track.right[place.index]
        error = state.yaw - place.heading
        obs = np.empty((self.num_envs, self.obs_dim), dtype=np.float32)
        obs[:, 0] = 2.0 * place.offset / (left + right)
        obs[:, 1] = np.sin(error)
        obs[:, 2] = np.cos(error)
        obs[:, 3] = state.forward / SPEED_UNIT
        obs[:, 4] = state.sideways / 2.0
        obs[:, 5] = state.yaw_rate
        obs[:, 6] = state.steer / self.vehicle.params.max_steer
        obs[:, 7] = (left - place.offset) / 10.0
        obs[:, 8] = (right + place.offset) / 10.0
        obs[:, 9:11] = self._action
        obs[:, 11:] = self._ahead[place.index]
        # A spinning car can go past any unit; a bound keeps such a moment from ruling a network's weights.
        return np.clip(obs, -OBS_BOUND, OBS_BOUND, out=obs)
