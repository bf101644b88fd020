"""A car in a simulator, ready to be driven: simulator, control port, action and observations as one.

Whoever drives puts the car somewhere (`begin`), sends an action (`act`) and waits for what came of it (`observe`).
A simulator that fails is started anew by `begin`; `act` and `observe` raise LostError, since the episode is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from runtime.sim import calls, protocol
from runtime.sim.calls import Call
from runtime.sim.controller import Controller
from runtime.sim.errors import CallError, LostError, RefusedError
from runtime.sim.handle import External, Handle
from runtime.sim.health import Cause, Failure, State
from runtime.sim.interfaces import ActionBounds, ActionSender, Observations, Pose, Receiver
from runtime.sim.spec import SimulatorSpec
from runtime.sim.supervisor import Supervisor

if TYPE_CHECKING:
    from runtime.sim.camera import Frame

T = TypeVar("T")

FIRST_POSE_SECONDS: Final = 10.0
"""From the start of an episode to its first pose."""
CHECK_SECONDS: Final = 0.25
"""While a pose is waited for, the simulator is looked at this often."""
STALE_SECONDS: Final = 0.02
"""A pose that comes so soon after the car was put somewhere may have been sent before."""
NEWS_SECONDS: Final = 2.0
"""Longest wait for the news that a simulator has ended, once its connection is broken; a container's come late."""
OBSERVE_SECONDS: Final = 0.1
"""From an action to its observation, as Learn-to-Race has it."""


def starter(folder: Path | None = None) -> Callable[[SimulatorSpec], Handle]:
    """What starts a simulator of any kind."""

    def start(spec: SimulatorSpec) -> Handle:
        if spec.kind == "external":
            external: Handle = External(spec.host)
            return external
        if spec.kind == "container":
            from runtime.sim.container import SimulatorContainer

            return SimulatorContainer(spec)
        if spec.kind == "sidecar":
            from runtime.sim.sidecar import SimulatorSidecar

            return SimulatorSidecar()
        from runtime.sim.process import SimulatorProcess, log_folder

        return SimulatorProcess(spec, folder or log_folder())

    return start


class Drive:
    """One simulator with one car that we drive.

    Args:
        level: Name of the level to open.
        cameras: Names of the cameras to switch on, with parameters to set.
        receiver: The thread that reads; shared by all drives of a process.
    """

    def __init__(
        self,
        spec: SimulatorSpec,
        level: str,
        *,
        receiver: Receiver,
        cameras: Mapping[str, Mapping[str, object]] | None = None,
        bounds: ActionBounds | None = None,
        start: Callable[[SimulatorSpec], Handle] | None = None,
    ) -> None:
        self.is_stopping: Callable[[], bool] = lambda: False
        self.supervisor = Supervisor(spec, start or starter(), self._pose_time)
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
        """Actions in this episode."""
        self._poses_before = 0
        """Poses received by earlier incarnations."""

    @property
    def is_lockstep(self) -> bool:
        """Whether the world waits for our actions."""
        return self._spec.lockstep or (self._spec.is_reference and self._spec.fast)

    @property
    def observations(self) -> Observations:
        """Newest pose and images. LostError while there is no simulator."""
        if self._observations is None:
            raise LostError("the simulator is not running")
        return self._observations

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras that are switched on."""
        return tuple(self._cameras)

    @property
    def poses(self) -> int:
        """Poses received, over all incarnations."""
        pose = self._observations.pose if self._observations is not None else None
        return self._poses_before + (pose.sequence if pose is not None else 0)

    def begin(self, place: tuple[float, float, float] | None) -> Pose:
        """Start an episode: the car at (x, y, yaw in degrees from the north), or on the grid. Its first pose.

        A simulator that is not there, fails or hangs is started anew, within its budget. Raises BudgetError when
        that is spent, and StartError when we are to stop.
        """
        limit = 60.0 * self._spec.restart_minutes
        if limit and self.supervisor.uptime_seconds > limit:
            self._disconnect()
            self.supervisor.restart(self._is_wanted)
        while True:
            try:
                self._connect()
                return self._place(place)
            except RefusedError:
                raise  # it is well, but cannot do that: no restart will help
            except (LostError, CallError, OSError) as error:
                failure = Failure(Cause.HUNG, f"the simulator does not begin an episode: {error}")
                self.supervisor.lose(failure, news_seconds=NEWS_SECONDS)
                self._disconnect()
                self.supervisor.restart(self._is_wanted)

    def act(self, steering: float, acceleration: float) -> None:
        """Send an action, each in [-1, 1]. Raises LostError."""
        if self._sender is None:
            raise LostError("the simulator is not running")
        self.supervisor.check()
        try:
            self._echo = self._sender.send(*self._sender.bounds.scaled(steering, acceleration))
        except OSError as error:
            failure = Failure(Cause.HUNG, f"the simulator takes no action: {error}")
            raise self.supervisor.lose(failure, news_seconds=NEWS_SECONDS) from error
        self._steps += 1
        now = self._acted = time.monotonic()
        # A tenth of a second after the last observation was due; a driver that is late is not hurried.
        self._due = max(self._due + OBSERVE_SECONDS, now)

    def observe(self) -> Pose:
        """Return the pose that follows the last action. Raises LostError."""
        if self.is_lockstep:
            return self._await(lambda pose: pose.values[protocol.STEERING] == self._echo, self._spec.pose_seconds)
        time.sleep(max(0.0, self._due - time.monotonic()))
        return self._await(lambda pose: pose.received >= self._acted, self._spec.pose_seconds)

    def images(self) -> dict[str, Frame]:
        """Return the newest frame of every camera: in lock-step, those after the last action. Raises LostError."""
        if not self._cameras:
            return {}
        wanted_ns = round((self._steps - 0.5) * OBSERVE_SECONDS * 1e9) if self.is_lockstep else 0
        deadline = time.monotonic() + self._spec.pose_seconds
        while time.monotonic() < deadline:
            frames = self.observations.wait_frames(
                lambda frame: frame.time_ns >= wanted_ns and frame.received >= self._began, CHECK_SECONDS
            )
            if frames is not None:
                return frames
            self.supervisor.check()
        sentence = f"the simulator hangs: no images followed an action within {self._spec.pose_seconds:g} s"
        raise self.supervisor.lose(Failure(Cause.HUNG, sentence))

    def close(self) -> int:
        """End everything; how many processes could not be ended."""
        self._disconnect()
        return self.supervisor.stop()

    def _is_wanted(self) -> bool:
        return not self.is_stopping()

    def _pose_time(self) -> float | None:
        observations = self._observations
        pose = observations.pose if observations is not None else None
        return pose.received if pose is not None else None

    def _await(self, is_wanted: Callable[[Pose], bool], timeout_seconds: float) -> Pose:
        observations, deadline = self.observations, time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            pose = observations.wait(is_wanted, min(left, CHECK_SECONDS))
            if pose is not None:
                return pose
            self.supervisor.check()
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
        """Have a simulator with an open level, a driver that listens and cameras that send."""
        if self._controller is not None:
            self.supervisor.check()
            return
        if self.supervisor.state is not State.READY:
            self.supervisor.start(self._is_wanted)
        at = self.supervisor.addresses
        self._controller = Controller(at.host, at.control, timeout_seconds=self._spec.call_seconds)
        self._call(calls.open_level(self._level))
        for name, parameters in self._cameras.items():
            self._call(calls.enable_sensor(name))
            self._call(calls.set_sensor_params(name, {**parameters}))
        images = {name: f"tcp://{at.host}:{at.camera_port(name)}" for name in self._cameras}
        self._observations = Observations(self._receiver, pose_port=at.pose, cameras=images)
        self._call(calls.use_udp(at.pose_target))
        self._call(calls.set_mode_ai())
        self._sender = ActionSender(at.host, at.action, self._bounds)

    def _place(self, place: tuple[float, float, float] | None) -> Pose:
        seen = self.observations.pose
        before = seen.sequence if seen is not None else 0
        self._call(calls.reset_level())
        if place is not None:
            x, y, yaw = place
            self._call(calls.set_vehicle_position(x, y, 0.0, yaw=yaw))
        placed = time.monotonic() + STALE_SECONDS
        # An action that asks for nothing is echoed, which proves that what is observed is what is driven, as every
        # client of the protocol makes sure of.
        if self._sender is not None:
            self._sender.begin()
        self._steps, self._began = 0, time.monotonic()
        self.act(0.0, 0.0)
        self._due = time.monotonic()
        echo = self._echo
        if self.is_lockstep:
            return self._await(
                lambda pose: pose.sequence > before and pose.values[protocol.STEERING] == echo, FIRST_POSE_SECONDS
            )
        return self._await(
            lambda pose: pose.received >= placed and abs(pose.values[protocol.STEERING] - echo) < 1e-3,
            FIRST_POSE_SECONDS,
        )

    def _disconnect(self) -> None:
        if self._controller is not None:
            self._controller.close()
            self._controller = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        observations, self._observations = self._observations, None
        if observations is not None:
            pose = observations.pose
            self._poses_before += pose.sequence if pose is not None else 0
            observations.close()


def states(drives: Sequence[Drive]) -> dict[str, object]:
    """Sum up drives for a metric record: the state of the worst, restarts and the newest error of all."""
    reports = [drive.supervisor.report() for drive in drives]
    order = (State.GIVEN_UP, State.LOST, State.STARTING, State.STOPPED, State.READY)
    worst = min((report.state for report in reports), key=order.index, default=State.STOPPED)
    errors = [report.last_error for report in reports if report.last_error]
    return {
        "simulator_state": str(worst),
        "simulator_restarts": sum(report.restarts for report in reports),
        "simulator_error": errors[-1] if errors else None,
    }
