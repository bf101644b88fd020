"""One car in one simulator: combines process, control port, actions and observations.

The driver starts an episode (`begin`), sends an action (`act`) and waits for its observation (`observe`). `begin`
restarts a failed simulator; `act` and `observe` raise LostError instead, since the episode has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from runtime.sim.control.supervisor import SimulatorSupervisor, State
from runtime.sim.launchers.simulator_process import Cause, ExternalSimulator, Failure, SimulatorHandle
from runtime.sim.spec import SimulatorSpec
from runtime.sim.wire import protocol, rpc_methods
from runtime.sim.wire.controller import Controller
from runtime.sim.wire.errors import CallError, CallRefusedError, LostError
from runtime.sim.wire.rpc_methods import Call
from runtime.sim.wire.udp_io import ActionBounds, ActionSender, Observations, Pose, Receiver

if TYPE_CHECKING:
    from runtime.sim.wire.camera import Frame

T = TypeVar("T")

FIRST_POSE_SECONDS: Final = 10.0
"""Timeout from the start of an episode to its first pose."""
CHECK_SECONDS: Final = 0.25
"""Interval at which the simulator is checked while a pose is awaited."""
STALE_SECONDS: Final = 0.02
"""A pose that arrives this soon after a change of position may have been sent before it."""
NEWS_SECONDS: Final = 2.0
"""Longest wait for the cause after a connection broke; a container's end is reported late."""
OBSERVE_SECONDS: Final = 0.1
"""Time from an action to its observation, as in Learn-to-Race."""


def starter(folder: Path | None = None) -> Callable[[SimulatorSpec], SimulatorHandle]:
    """Return the function that starts a simulator of any kind."""

    def start(spec: SimulatorSpec) -> SimulatorHandle:
        if spec.kind == "external":
            return ExternalSimulator(spec.host)
        if spec.kind == "container":
            from runtime.sim.launchers.container import SimulatorContainer

            return SimulatorContainer(spec)
        if spec.kind == "sidecar":
            from runtime.sim.launchers.sidecar import SimulatorSidecar

            return SimulatorSidecar()
        from runtime.sim.launchers.process import SimulatorProcess, log_folder

        return SimulatorProcess(spec, folder or log_folder())

    return start


class SimulatorSession:
    """One simulator with one car that this process drives.

    ``cameras`` are the names of the cameras to enable, with parameters to set. All sessions of a process share the
    ``receiver``, the thread that reads.
    """

    def __init__(
        self,
        spec: SimulatorSpec,
        level: str,
        *,
        receiver: Receiver,
        cameras: Mapping[str, Mapping[str, object]] | None = None,
        bounds: ActionBounds | None = None,
        start: Callable[[SimulatorSpec], SimulatorHandle] | None = None,
    ) -> None:
        self.is_stopping: Callable[[], bool] = lambda: False
        self.supervisor = SimulatorSupervisor(spec, start or starter(), self._pose_time)
        self._spec = spec
        self._level = level
        self._cameras = dict(cameras or {})
        self._bounds = bounds
        self._receiver = receiver
        self._controller: Controller | None = None
        self._sender: ActionSender | None = None
        self._observations: Observations | None = None
        self._echo = 0.0
        self._acted = 0.0
        self._began = 0.0
        self._due = 0.0
        self._steps = 0
        """Number of actions in this episode."""
        self._poses_before = 0
        """Number of poses received before the last restart."""

    @property
    def is_lockstep(self) -> bool:
        """True if only our actions advance simulated time."""
        return self._spec.lockstep or (self._spec.is_reference and self._spec.fast)

    @property
    def observations(self) -> Observations:
        """Newest pose and images. Raises LostError while no simulator is running."""
        if self._observations is None:
            raise LostError("the simulator is not running")
        return self._observations

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the enabled cameras."""
        return tuple(self._cameras)

    @property
    def poses(self) -> int:
        """Number of poses received, over all restarts."""
        pose = self._pose()
        return self._poses_before + (pose.sequence if pose is not None else 0)

    def begin(self, place: tuple[float, float, float] | None) -> Pose:
        """Start an episode and return its first pose.

        A simulator that is not running, fails or hangs is restarted within its budget. ``place`` is east and north
        in m, and yaw in degrees from north; None for the starting grid. Raises BudgetError if the restart budget is
        exhausted, StartError if this process is asked to stop.
        """
        limit = 60.0 * self._spec.restart_minutes
        if limit and self.supervisor.uptime_seconds > limit:
            self._disconnect()
            self.supervisor.restart(self._is_wanted)
        while True:
            try:
                self._connect()
                return self._place(place)
            except CallRefusedError:
                raise  # the simulator is healthy and refuses the call: a restart would not help
            except (LostError, CallError, OSError) as error:
                failure = Failure(Cause.HUNG, f"the simulator does not begin an episode: {error}")
                self.supervisor.lose(failure, news_seconds=NEWS_SECONDS)
                self._disconnect()
                self.supervisor.restart(self._is_wanted)

    def act(self, steering: float, acceleration: float) -> None:
        """Send an action, each in [-1, 1]. Raises LostError."""
        if self._sender is None:
            raise LostError("the simulator is not running")
        self._check()
        try:
            self._echo = self._sender.send(*self._sender.bounds.scaled(steering, acceleration))
        except OSError as error:
            failure = Failure(Cause.HUNG, f"the simulator takes no action: {error}")
            raise self.supervisor.lose(failure, news_seconds=NEWS_SECONDS) from error
        self._steps += 1
        now = self._acted = time.monotonic()
        # A tenth of a second after the last observation was due; a late driver does not catch up.
        self._due = max(self._due + OBSERVE_SECONDS, now)

    def observe(self) -> Pose:
        """Return the pose that follows the last action. Raises LostError."""
        if self.is_lockstep:
            # The simulator echoes the steering in the pose, and ActionSender makes each action's steering unique.
            return self._await(lambda pose: pose.values[protocol.STEERING] == self._echo, self._spec.pose_seconds)
        time.sleep(max(0.0, self._due - time.monotonic()))
        return self._await(lambda pose: pose.received >= self._acted, self._spec.pose_seconds)

    def images(self) -> dict[str, Frame]:
        """Return the newest frame of every camera; in lock-step, the frames after the last action. Raises
        LostError.
        """
        if not self._cameras:
            return {}
        # Half a step of tolerance: frame times are floats of the simulation, rounded to nanoseconds.
        earliest_ns = round((self._steps - 0.5) * OBSERVE_SECONDS * 1e9) if self.is_lockstep else 0
        deadline = time.monotonic() + self._spec.pose_seconds
        while time.monotonic() < deadline:
            frames = self.observations.wait_frames(
                lambda frame: frame.time_ns >= earliest_ns and frame.received >= self._began, CHECK_SECONDS
            )
            if frames is not None:
                return frames
            self._check()
        sentence = f"the simulator hangs: no images followed an action within {self._spec.pose_seconds:g} s"
        raise self.supervisor.lose(Failure(Cause.HUNG, sentence))

    def close(self) -> int:
        """Stop the simulator; return how many of its processes could not be ended."""
        self._disconnect()
        return self.supervisor.stop()

    def _is_wanted(self) -> bool:
        return not self.is_stopping()

    def _check(self) -> None:
        """Raise LostError if the simulator has ended, hangs, or can no longer be read."""
        self.supervisor.check()
        if problem := self.observations.problem:
            raise self.supervisor.lose(Failure(Cause.UNWATCHED, problem))

    def _pose(self) -> Pose | None:
        observations = self._observations  # read once: the driver's thread sets it to None
        return observations.pose if observations is not None else None

    def _pose_time(self) -> float | None:
        pose = self._pose()
        return pose.received if pose is not None else None

    def _await(self, is_wanted: Callable[[Pose], bool], timeout_seconds: float) -> Pose:
        observations, deadline = self.observations, time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            if (pose := observations.wait(is_wanted, min(left, CHECK_SECONDS))) is not None:
                return pose
            self._check()
        sentence = f"the simulator hangs: no pose followed an action within {timeout_seconds:g} s"
        if observations.garbage:
            sentence += f", and {observations.garbage} datagrams were none"
        raise self.supervisor.lose(Failure(Cause.HUNG, sentence))

    def _call(self, call: Call[T]) -> T:
        if self._controller is None:
            raise LostError("the simulator is not connected")
        result = self._controller.call(call)
        if call.is_slow and self._spec.settle_seconds:
            time.sleep(self._spec.settle_seconds)
        return result

    def _connect(self) -> None:
        """Start the simulator if necessary, open the level, and enable the driver and the cameras."""
        if self._controller is not None:
            self.supervisor.check()
            return
        if self.supervisor.state is not State.READY:
            self.supervisor.start(self._is_wanted)
        at = self.supervisor.addresses
        self._controller = Controller(at.host, at.control, timeout_seconds=self._spec.call_seconds)
        self._call(rpc_methods.open_level(self._level))
        for name, parameters in self._cameras.items():
            # Enabled before it is set: the order of every client of the protocol.
            self._call(rpc_methods.enable_sensor(name))
            self._call(rpc_methods.set_sensor_params(name, {**parameters}))
        images = {name: f"tcp://{at.host}:{at.camera_port(name)}" for name in self._cameras}
        self._observations = Observations(self._receiver, pose_port=at.pose, cameras=images)
        self._call(rpc_methods.use_udp(at.pose_target))
        self._call(rpc_methods.set_mode_ai())
        self._sender = ActionSender(at.host, at.action, self._bounds)

    def _place(self, place: tuple[float, float, float] | None) -> Pose:
        newest = self._pose()
        before = newest.sequence if newest is not None else 0
        self._call(rpc_methods.reset_level())
        if place is not None:
            x, y, yaw = place
            self._call(rpc_methods.set_vehicle_position(x, y, 0.0, yaw=yaw))
        placed = time.monotonic() + STALE_SECONDS
        # A neutral action is echoed in the poses, which proves that the observed car is the driven one. Every
        # client of the protocol starts an episode like this.
        if self._sender is not None:
            self._sender.begin()
        self._steps, self._began = 0, time.monotonic()
        self.act(0.0, 0.0)
        self._due = time.monotonic()
        echo = self._echo

        def follows(pose: Pose) -> bool:
            steering = pose.values[protocol.STEERING]
            if self.is_lockstep:
                return pose.sequence > before and steering == echo
            return pose.received >= placed and abs(steering - echo) < 1e-3

        return self._await(follows, FIRST_POSE_SECONDS)

    def _disconnect(self) -> None:
        self._poses_before, observations, self._observations = self.poses, self._observations, None
        for channel in (self._controller, self._sender, observations):
            if channel is not None:
                channel.close()
        self._controller = self._sender = None


def simulator_metrics(sessions: Sequence[SimulatorSession]) -> dict[str, object]:
    """Return fields of a metric record: the worst state, the sum of restarts and the newest error."""
    supervisors = [session.supervisor for session in sessions]
    order = (State.GIVEN_UP, State.LOST, State.STARTING, State.STOPPED, State.READY)
    worst = min((supervisor.state for supervisor in supervisors), key=order.index, default=State.STOPPED)
    errors = [supervisor.last_error for supervisor in supervisors if supervisor.last_error]
    return {
        "simulator_state": str(worst),
        "simulator_restarts": sum(supervisor.restarts for supervisor in supervisors),
        "simulator_error": errors[-1] if errors else None,
    }
