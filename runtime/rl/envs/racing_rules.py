"""Rules of the racing task: motion, ends, rewards and observations of many cars, over the arrays of any library.

The idea of the task is Learn-to-Race's: steer and accelerate at 10 Hz, earn the metres gained along the centre
line, lose the episode and a speed-dependent fine when leaving the track. What an agent sees here is its place
relative to the track, or a picture of the road; the vehicle and the tracks are those of the reference simulator.

An episode *terminates* when the car's centre crosses an edge, or when it has driven ``WRONG_WAY`` metres
backwards: both are ends that the car has earned, with the fine. It is *truncated* after ``max_seconds``, after
``laps`` laps where that is set, or when it gained less than ``STUCK`` metres in ``STUCK_SECONDS``: a car that
stands still could yet drive on, so its value is estimated, not set to zero.

The rules are written once, for NumPy (``RacingVectorEnv``: workers, evaluators, simulators) and for the arrays of a
device (``DeviceRacing``). How episodes begin again differs: by rows there, by masks here.

The picture of the road is wide where it looks far, as a camera's is: rows lie at distances that grow by the same
factor, so that the near edge is seen to half a metre and the bend after next is in the picture as well. Road is
white. It is looked up in one map of the whole course; nothing is drawn while cars drive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.rl.spaces import ActionSpace, Image, ObsSpace
from runtime.tracks.track import COURSES, Floats, Indices, Projection, Track, make_track
from runtime.tracks.vehicle import Namespace, Vehicle, VehicleState

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


START_OFFSET: Final = 0.6
"""Largest distance of a random start from the centre line, as a share of the way to the nearer edge."""
START_TURN: Final = 0.15
"""Largest angle of a random start to the track, rad."""
START_SPEED: Final = 25.0
"""Largest speed of a random start, m/s."""


@dataclass(frozen=True, slots=True)
class RacingOptions:
    """Settings of one set of cars, as a spec writes them under ``env``."""

    observation: Literal["place", "view"] = "place"
    """``place``: where the car is on the track and how the road goes on. ``view``: how it moves, and a picture of
    the road ahead (``View``)."""
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
        """Check ``options`` and fill in the defaults. ValueError names the option and the valid values."""
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


@dataclass(slots=True)
class Cars:
    """Cars and their present episodes; B of them, arrays are (B,) unless they say otherwise."""

    state: VehicleState
    projection: Projection
    action: Floats
    """(B, 2) the last one, within [-1, 1]."""
    progress: Floats
    """Metres gained since the start."""
    farthest: Floats
    """Largest progress of the episode, m."""
    checkpoint: Floats
    """Progress at the start of the current stretch of ``STUCK_SECONDS``."""
    steps: Indices
    returns: Floats
    """Sum of the rewards."""

    @classmethod
    def standing(cls, state: VehicleState, track: Track) -> Cars:
        """NumPy cars in ``state``, near the start line, whose episodes begin."""
        count = len(state.x)
        near = track.project(state.x, state.y, np.zeros(count, dtype=np.intp))
        progress, farthest, checkpoint, returns = (np.zeros(count) for _ in range(4))
        steps = np.zeros(count, dtype=np.intp)
        return cls(state, near, np.zeros((count, 2)), progress, farthest, checkpoint, steps, returns)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one step; every field is (B,)."""

    reward: Floats
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    left_track: NDArray[np.bool_]


class RacingRules:
    """The task on one track. Its methods neither wait for a device nor branch on values: they can be captured."""

    act_dim = 2
    obs_dim = 11 + len(LOOK_AHEAD) - 1

    def __init__(
        self,
        options: RacingOptions,
        *,
        track: Track | None = None,
        vehicle: Vehicle | None = None,
        xp: Namespace = np,
        convert: Callable[[NDArray[Any]], Any] = np.asarray,
    ) -> None:
        """``xp`` is the library of the cars' arrays; ``convert`` makes its arrays of NumPy's."""
        course = track or make_track(options.track)
        self._xp = xp
        self.track = course.converted(xp, convert)
        self.vehicle = vehicle or Vehicle(xp=xp)
        self._view = View.of(course).converted(xp, convert) if options.observation == "view" else None
        self.obs_space = ObsSpace(len(FELT), (SHAPE,)) if self._view else ObsSpace(self.obs_dim)
        self.action_space = ActionSpace(self.act_dim)
        self._ahead = convert(course.look_ahead(LOOK_AHEAD) / CURVATURE_UNIT)
        self._felt = convert(np.array(FELT))
        self._max_steps = round(options.max_seconds / STEP_SECONDS)
        self._stuck_steps = round(STUCK_SECONDS / STEP_SECONDS)
        self._goal = options.laps * course.length if options.laps else np.inf

    def drive(self, cars: Cars, action: Floats) -> Outcome:
        """Drive ``cars`` for a tenth of a second by ``action`` (B, 2), and judge where they are then."""
        xp, track, state, params = self._xp, self.track, cars.state, self.vehicle.params
        cars.action = action.clip(-1.0, 1.0)
        pedal = cars.action[:, 1]
        acceleration = params.max_drive * pedal.clip(0.0, None) + params.max_brake * pedal.clip(None, 0.0)
        # Constant commands over the step, as the lab's simulator holds them between two actions.
        self.vehicle.advance(state, cars.action[:, 0], acceleration, STEP_SECONDS, SUBSTEPS)

        before, cars.projection = cars.projection, track.project(state.x, state.y, cars.projection.index)
        # The shorter way around: a step across the start line is a small gain, not the loss of a lap.
        half = track.length / 2
        gained = (cars.projection.distance - before.distance + half) % track.length - half
        cars.progress = cars.progress + gained
        cars.farthest = xp.maximum(cars.farthest, cars.progress)
        cars.steps = cars.steps + 1

        offset, index = cars.projection.offset, cars.projection.index
        left_track = (offset > track.left[index]) | (offset < -track.right[index])
        terminated = left_track | (cars.progress < cars.farthest - WRONG_WAY)
        due = cars.steps % self._stuck_steps == 0
        stuck = due & (cars.progress - cars.checkpoint < STUCK)
        cars.checkpoint = xp.where(due, cars.progress, cars.checkpoint)
        truncated = stuck | (cars.steps >= self._max_steps) | (cars.progress >= self._goal)

        fine = terminated * (FINE_PER_SPEED * state.speed).clip(MIN_FINE, None)
        reward = REWARD_PER_METRE * (gained - fine)
        cars.returns = cars.returns + reward
        return Outcome(reward, terminated, truncated & ~terminated, left_track)

    def observe(self, cars: Cars) -> NDArray[Any]:
        """(B, obs_space.width) of the current state."""
        place = self._observe_place(cars)
        if self._view is None:
            return place
        picture = self._view.render(cars.state.x, cars.state.y, cars.state.yaw)
        return self.obs_space.pack(place[:, self._felt], [picture], self._xp)

    def _observe_place(self, cars: Cars) -> NDArray[np.float32]:
        """(B, obs_dim) of the current state."""
        xp, state, place = self._xp, cars.state, cars.projection
        left, right = self.track.left[place.index], self.track.right[place.index]
        error = state.yaw - place.heading
        obs: NDArray[np.float32] = xp.empty((len(error), self.obs_dim), dtype=xp.float32, device=error.device)
        obs[:, 0] = 2.0 * place.offset / (left + right)
        obs[:, 1] = xp.sin(error)
        obs[:, 2] = xp.cos(error)
        obs[:, 3] = state.forward / SPEED_UNIT
        obs[:, 4] = state.sideways / 2.0
        obs[:, 5] = state.yaw_rate
        obs[:, 6] = state.steer / self.vehicle.params.max_steer
        obs[:, 7] = (left - place.offset) / 10.0
        obs[:, 8] = (right + place.offset) / 10.0
        obs[:, 9:11] = cars.action
        obs[:, 11:] = self._ahead[place.index]
        # A spinning car can go past any unit; a bound keeps such a moment from ruling a network's weights.
        bounded: NDArray[np.float32] = xp.clip(obs, -OBS_BOUND, OBS_BOUND, out=obs)
        return bounded

    def start_pose(self, at: Indices, offset: Floats, turned: Floats) -> tuple[Floats, Floats, Floats]:
        """x, y and yaw of cars ``offset`` m to the left of the samples ``at``, ``turned`` rad from the track."""
        track, heading = self.track, self.track.heading[at]
        x = track.centre[at, 0] - offset * self._xp.sin(heading)
        y = track.centre[at, 1] + offset * self._xp.cos(heading)
        return x, y, heading + turned


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
"""Empty metres around the course that a car on its edge can see."""


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
