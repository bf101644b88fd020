"""The racing task over running simulators: the same course, rewards and observations, but the wire moves the cars.

What trains on `racing` trains on this and the other way round: an agent sees its place relative to the track, which
is worked out from the pose and the track's map; or, with cameras, what it feels and sees. Each copy drives a
simulator of its own. One that crashes or hangs costs the episode, which is neither learned from nor counted, and no
more: the next begins in a fresh one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.base import StepResult
from runtime.rl.envs.l2r_options import L2ROptions, LatestPictures, Picture
from runtime.rl.envs.racing import RacingVectorEnv
from runtime.rl.envs.racing_rules import FELT, RacingOptions, RacingRules
from runtime.rl.spaces import ActionSpace
from runtime.sim.control import control_socket
from runtime.sim.control.simulator_session import SimulatorSession, simulator_metrics
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import LostError
from runtime.sim.wire.udp_io import Pose, Receiver
from runtime.tracks.maps import TrackMap
from runtime.tracks.track import Floats
from runtime.tracks.vehicle import Vehicle, VehicleParams, VehicleState


def local_position(course: TrackMap, pose: Pose) -> tuple[float, float, float]:
    """East, north and up in metres about the track's reference point."""
    latitude, longitude, altitude = protocol.LATITUDE, protocol.LONGITUDE, protocol.ALTITUDE
    return course.frame.to_local(pose.values[latitude], pose.values[longitude], pose.values[altitude])


class _WireState(VehicleState):
    """The state of cars that simulators move: putting one somewhere is a matter of its simulator."""

    __slots__ = ("put",)
    put: Callable[[NDArray[np.intp]], None]
    """Moves the cars of these rows to where the state says; unset until there are simulators to ask."""

    def set_pose(self, rows: NDArray[np.intp], *, x: Floats, y: Floats, yaw: Floats, forward: Floats) -> None:
        """Put cars somewhere, standing: the protocol cannot set a speed."""
        VehicleState.set_pose(self, rows, x=x, y=y, yaw=yaw, forward=np.zeros_like(forward))
        if hasattr(self, "put"):
            self.put(rows)


class _WireVehicle(Vehicle):
    """The equations of motion, answered by simulators."""

    def __init__(self, cars: L2RVectorEnv, params: VehicleParams) -> None:
        super().__init__(params)
        self._cars = cars

    def advance(
        self, state: VehicleState, steering: Floats, acceleration: Floats, seconds: float, substeps: int = 5
    ) -> None:
        """Let every simulator carry out the actions."""
        del state, substeps
        p = self.params
        pedal = np.where(acceleration < 0, acceleration / p.max_brake, acceleration / p.max_drive)
        self._cars.drive_on(steering, pedal, seconds)


class L2RVectorEnv:
    """``num_envs`` simulators, each with one car; see ``runtime.rl.envs.base.VectorEnv`` and ``HoldsProcesses``."""

    obs_dim = RacingRules.obs_dim
    act_dim = 2
    action_space = ActionSpace(act_dim)
    step_seconds = 0.1

    def __init__(self, num_envs: int, options: L2ROptions) -> None:
        self.num_envs = num_envs
        self._map = options.map()
        self.track = self._map.track
        self._receiver = Receiver()
        spec, level = options.spec, options.level_name(self._map)
        if spec.is_alone and num_envs > 1:
            what = f"num_envs (of an evaluator: eval_episodes) is {num_envs}"
            raise ValueError(f"l2r: {what}, and of kind {spec.kind} there is one simulator: make it 1")
        self.obs_space = options.obs_space
        self._numbers = list(FELT) if options.is_felt else slice(None)
        self._pictures = LatestPictures(options.pictures, num_envs)
        self._driven: list[Picture] = []
        """Pictures behind the latest step, before cars that ended were put elsewhere."""
        cameras = {picture.name: picture.parameters for picture in options.pictures}
        self.drives = [
            SimulatorSession(spec, level, receiver=self._receiver, cameras=cameras, bounds=options.bounds)
            for _ in range(num_envs)
        ]
        self._leave = control_socket.serve_sessions(self.drives)
        self._pool = ThreadPoolExecutor(num_envs, thread_name_prefix="l2r-begin") if num_envs > 1 else None
        self._lost = np.zeros(num_envs, dtype=np.bool_)
        self._rate = (time.monotonic(), 0)
        self._fps = 0.0
        self._state = _WireState(*(np.zeros(num_envs) for _ in fields(VehicleState)))
        racing = RacingOptions(start=options.start, max_seconds=options.max_seconds, laps=options.laps)  # type: ignore[arg-type]  # checked
        vehicle = _WireVehicle(self, VehicleParams())
        self._cars = RacingVectorEnv(num_envs, racing, track=self._map.track, vehicle=vehicle, state=self._state)
        self._state.put = self._put  # from here on; the cars' own first reset needs no simulators

    def reset(self, seed: int) -> NDArray[Any]:
        """Reset every car, and simulators where there are none. Raises BudgetError."""
        return self._rows(self._cars.reset(seed), self._pictures.arrays)

    def step(self, action: NDArray[np.float32]) -> StepResult:
        """Drive all cars for a tenth of a second. Raises BudgetError when a simulator fails too often."""
        self._lost[:] = False
        driven = self._cars.step(action)
        final_obs = self._rows(driven.final_obs, self._driven)
        is_same = driven.obs is driven.final_obs
        obs = final_obs if is_same else self._rows(driven.obs, self._pictures.arrays)
        result = replace(driven, obs=obs, final_obs=final_obs)
        if not self._lost.any():
            return result
        # A lost car stands where it was; unless the task has just ended its episode, it is cut here.
        rows = np.flatnonzero(self._lost & ~(result.terminated | result.truncated))
        obs = self._rows(self._cars.restart(rows), self._pictures.arrays) if len(rows) else result.obs
        episodes = tuple(episode for episode in result.episodes if not self._lost[episode.env])
        return replace(result, obs=obs, episodes=episodes, is_lost=True)

    @property
    def state(self) -> VehicleState:
        """Pose and motion of the cars."""
        return self._state

    def drive_on(self, steering: Floats, pedal: Floats, seconds: float) -> None:
        """Send the actions, wait for the poses that follow."""
        for row, drive in enumerate(self.drives):
            try:
                drive.act(float(steering[row]), float(pedal[row]))
            except LostError:
                self._lost[row] = True
        for row, drive in enumerate(self.drives):
            if self._lost[row]:
                continue
            try:
                self._set_state(row, drive.observe(), float(steering[row]), seconds)
                self._pictures.take(row, drive.images())
            except LostError:
                self._lost[row] = True
        self._driven = self._pictures.copy()

    def close(self) -> None:
        """End all simulators."""
        self._leave()
        if self._pool is not None:
            self._pool.shutdown()
        for drive in self.drives:
            drive.close()
        self._receiver.close()

    def report(self) -> dict[str, Any]:
        """State, restarts, poses a second and newest error of the simulators."""
        now, count = time.monotonic(), sum(drive.poses for drive in self.drives)
        then, before = self._rate
        if now > then:
            self._fps = (count - before) / (now - then)
        self._rate = (now, count)
        return {**simulator_metrics(self.drives), "simulator_fps": self._fps}

    def measure(self) -> None:
        """Fill the summaries' metrics with those of Learn-to-Race, from the next reset on."""
        self._cars.measure()

    def heed(self, is_stopping: Callable[[], bool]) -> None:
        """Ask this while a simulator starts."""
        for drive in self.drives:
            drive.is_stopping = is_stopping

    def _put(self, rows: NDArray[np.intp]) -> None:
        """Begin an episode in each of the simulators, where the state says."""

        def begin(row: int) -> None:
            state = self._state
            place = float(state.x[row]), float(state.y[row]), math.degrees(float(state.yaw[row])) - 90.0
            while True:
                self._set_state(row, self.drives[row].begin(place), 0.0, 0.0)
                with contextlib.suppress(
                    LostError
                ):  # then `begin` starts another, or says that the budget is spent
                    return self._pictures.take(row, self.drives[row].images())

        if self._pool is not None and len(rows) > 1:  # starting takes seconds, so they start together
            for done in [self._pool.submit(begin, int(row)) for row in rows]:
                done.result()
        else:
            for row in rows:
                begin(int(row))

    def _rows(self, place: NDArray[np.float32], pictures: Sequence[Picture]) -> NDArray[Any]:
        """(B, obs_space.width) of observations of the place, and of pictures."""
        if not pictures:
            return place
        return self.obs_space.pack(np.ascontiguousarray(place[:, self._numbers]), pictures)

    def _set_state(self, row: int, pose: Pose, steering: float, seconds: float) -> None:
        values, state = pose.values, self._state
        east, north, _ = local_position(self._map, pose)
        forward, sideways, _ = values[protocol.VELOCITY]
        if not all(abs(value) < 1e5 for value in (east, north, forward, sideways)):
            raise LostError("the simulator's pose is not on the track's map")
        state.x[row], state.y[row] = east, north
        state.yaw[row] = values[protocol.YAW] + math.pi / 2
        state.forward[row], state.sideways[row] = forward, sideways
        state.yaw_rate[row] = values[protocol.ANGULAR_VELOCITY][2]
        # The wire does not say how far the road wheels have turned: they follow the request as ours do.
        params = self._cars.vehicle.params
        reach = params.steer_rate * seconds if seconds else math.inf
        turned = steering * params.max_steer - state.steer[row]
        state.steer[row] += min(reach, max(-reach, turned))
