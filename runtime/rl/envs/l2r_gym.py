"""Learn-to-Race as a Gymnasium environment: one car in a running simulator, ``gymnasium.make("l2r/L2R-v0")``.

Importing this module registers the id; ``gymnasium.make("runtime.rl.envs.l2r_gym:l2r/L2R-v0")`` imports it by
itself. A simulator that is lost in the midst of an episode truncates it, with ``info["simulator_lost"]`` and no
reward; the next reset starts another, and the counts of episodes, respawns and infractions go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from runtime.rl.envs.l2r import local_position
from runtime.rl.envs.l2r_options import CAMERA, L2ROptions
from runtime.rl.envs.l2r_task import CarPose, Race
from runtime.sim.control import control_socket
from runtime.sim.control.simulator_session import OBSERVE_SECONDS, SimulatorSession, simulator_metrics
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import LostError
from runtime.sim.wire.udp_io import Pose, Receiver, untagged

L2R_ID: Final = "l2r/L2R-v0"
POSE_BOUND: Final = 1e6
"""Far beyond what any value of a pose is; spaces have to be bounded."""

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]


class L2REnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """One car.

    Observation: ``pose``, the 30 values with north, east and up in metres at 15, 16 and 17 as Learn-to-Race has
    them, and an RGB image for each camera under its name. Action: steering and acceleration, each in [-1, 1].

    Args:
        cameras: Names of cameras, or name to parameters (``Width``, ``Height``, ``FOVAngle``).
        start: ``line``, ``random``, or ``segment``: where the segment begins that follows the one where the last
            episode ended, as evaluation respawns.
        options: Others of ``L2ROptions``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]  # the base has it per instance

    def __init__(
        self,
        *,
        cameras: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        start: str = "line",
        laps: int = 1,
        max_steps: int = 5000,
        **options: Any,
    ) -> None:
        if start not in ("line", "random", "segment"):
            raise ValueError(f"l2r: start is {start!r}; it may be line, random or segment")
        camera_params = cameras if isinstance(cameras, Mapping) else dict.fromkeys(cameras, CAMERA)
        for name in camera_params:
            if name not in protocol.CAMERA_PORTS:
                raise ValueError(f"l2r: there is no camera {name!r}; there are {', '.join(protocol.CAMERA_PORTS)}")
        self.episodes = 0
        """Episodes begun."""
        self.respawns = 0
        """Episodes that ended before all laps were driven."""
        checked = L2ROptions.from_mapping(options)
        if checked.observation:
            raise ValueError("l2r/L2R-v0 has no option 'observation'; it shows the pose")
        self._options = replace(checked, laps=laps)
        self._start = start
        self._map = checked.map()
        self._cameras = {name: {**CAMERA, **params} for name, params in camera_params.items()}
        self._race = Race(self._map.track, laps=laps, max_steps=max_steps, step_seconds=OBSERVE_SECONDS)
        self._next_segment = 0
        self._receiver = Receiver()
        level = checked.level_name(self._map)
        self.drive = SimulatorSession(
            checked.spec, level, receiver=self._receiver, cameras=self._cameras, bounds=checked.bounds
        )
        self._leave = control_socket.serve_sessions([self.drive])
        self._last: Observation | None = None
        self._pose: Pose | None = None
        spaces: dict[str, gymnasium.Space[Any]] = {
            "pose": gymnasium.spaces.Box(-POSE_BOUND, POSE_BOUND, (protocol.POSE_VALUES,), np.float32)
        }
        for name, params in self._cameras.items():
            shape = (int(params["Height"]), int(params["Width"]), 3)
            spaces[name] = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = gymnasium.spaces.Dict(spaces)  # type: ignore[assignment]  # a dict of arrays it is
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start an episode, and the simulator where there is none. Raises BudgetError when that cannot be had."""
        super().reset(seed=seed, options=options)
        self.episodes += 1
        while True:
            pose = self.drive.begin(self._start_pose())
            try:
                self._last = self._observe(pose)
            except LostError:
                continue
            self._pose = pose
            self._race.begin(self._car(pose))
            return self._last, {"progress_metres": 0.0, "segment": self._race.segment}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Drive for a tenth of a second."""
        if self._last is None:
            raise gymnasium.error.ResetNeeded("reset comes before the first step")
        try:
            self.drive.act(float(action[0]), float(action[1]))
            pose = self.drive.observe()
            self._last = self._observe(pose)
        # The transition is not the policy's doing: truncated without reward, and marked for the learner.
        except LostError as error:
            return self._last, 0.0, False, True, {"simulator_lost": str(error)}
        outcome = self._race.step(self._car(pose))
        if outcome.terminated or outcome.truncated:
            self.respawns += not outcome.info["success"]
            self._next_segment = self._race.segment + 1
        self._pose = pose
        return self._last, outcome.reward, outcome.terminated, outcome.truncated, outcome.info

    def report(self) -> dict[str, Any]:
        """Return ages, counts and the simulator's state: they differ between equal runs, so info has none."""
        return {
            "episodes": self.episodes,
            "respawns": self.respawns,
            "pose_age_seconds": self._pose.age_seconds() if self._pose is not None else None,
            "pose_sequence": self._pose.sequence if self._pose is not None else 0,
            **simulator_metrics([self.drive]),
        }

    def close(self) -> None:
        """End the simulator."""
        self._leave()
        self.drive.close()
        self._receiver.close()

    def _start_pose(self) -> tuple[float, float, float] | None:
        """Return x, y and yaw (degrees) of the next start; None for the simulator's own grid."""
        if self._start == "line":
            return None
        if self._start == "segment":
            x, y, yaw = self._race.segment_start(self._next_segment)
        else:
            track = self._map.track
            sample = int(self.np_random.integers(len(track.heading)))
            (x, y), yaw = track.centre[sample].tolist(), float(track.heading[sample])
        return x, y, math.degrees(yaw) - 90.0

    def _observe(self, pose: Pose) -> Observation:
        values = np.array(pose.values)
        # Learn-to-Race puts east where latitude was, and north where longitude was.
        values[[protocol.LATITUDE, protocol.LONGITUDE, protocol.ALTITUDE]] = local_position(self._map, pose)
        # The last bits of the steering carry the action's number, which a pose echoes; a policy must not see it.
        values[protocol.STEERING] = untagged(float(values[protocol.STEERING]))
        obs = {"pose": np.clip(values, -POSE_BOUND, POSE_BOUND).astype(np.float32)}
        for name, frame in self.drive.images().items():
            shape = self.observation_space[name].shape  # type: ignore[index]  # see above
            if frame.image.shape != shape:
                raise LostError(f"{name} sends images of {frame.image.shape}, not {shape}")
            # The wire is BGR, Learn-to-Race's observations are RGB.
            obs[name] = np.ascontiguousarray(frame.image[..., ::-1])
        return obs

    def _car(self, pose: Pose) -> CarPose:
        east, north, _ = local_position(self._map, pose)
        yaw, velocity = pose.values[protocol.YAW] + math.pi / 2, pose.values[protocol.VELOCITY]
        acceleration = pose.values[protocol.ACCELERATION]
        return CarPose(east, north, yaw, math.hypot(*velocity), math.hypot(*acceleration))


gymnasium.register(L2R_ID, entry_point=f"{__name__}:L2REnv")
