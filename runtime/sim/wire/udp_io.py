"""Sends actions, receives poses and images: the newest of each, with its number and time of arrival.

One thread of the process reads the pose sockets and cameras of all its simulators. So the newest value is always
available, old ones do not fill the kernel's buffers during an update of the policy, and times of arrival are exact.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtime.base.errors import unexpected_reason
from runtime.sim.wire import protocol
from runtime.sim.wire.errors import SimulatorError, SimulatorSpecError

if TYPE_CHECKING:
    from runtime.sim.wire.camera import CameraReceiver, Cameras, Frame

_FLOAT: Final = struct.Struct("=f")
_WORD: Final = struct.Struct("=I")
_TAG_MASK: Final = (1 << 6) - 1
_MIN_STEERING: Final = 1e-6
CAMERA_POLL_SECONDS: Final = 0.05
"""Interval at which cameras are polled even without an event: ZeroMQ's descriptor is edge-triggered."""


@dataclass(frozen=True, slots=True)
class Pose:
    """One received pose."""

    values: tuple[float, ...]
    """The 30 values of the protocol."""
    sequence: int
    """Number of poses received on this socket."""
    received: float
    """Seconds, monotonic clock."""

    def age_seconds(self) -> float:
        """Return the time since its arrival."""
        return time.monotonic() - self.received


class Receiver:
    """Thread that reads all sockets. A source is added with a callback that reads without waiting.

    An error of a callback only ends the reading of its source; an error of the thread itself ends all.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._edges: dict[int, Callable[[], None]] = {}
        self._on_error: dict[int, Callable[[Exception], None]] = {}
        """Error callback of each source that is read."""
        self._problem = ""
        """Error that has ended the thread."""
        self._waker, self._wake = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._waker, selectors.EVENT_READ, self._drain)
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="l2r-receiver", daemon=True)
        self._thread.start()

    def add(
        self,
        fileno: int,
        on_ready: Callable[[], None],
        on_error: Callable[[Exception], None],
        *,
        edge: bool = False,
    ) -> None:
        """Call ``on_ready`` in the reading thread whenever ``fileno`` is readable, up to its first error.

        With ``edge``, readiness is edge-triggered: the callback is also called regularly without an event.
        ``on_error`` gets the error that ends the reading. Raises SimulatorError if the thread itself has ended with
        an error.
        """

        def read() -> None:
            try:
                on_ready()
            except Exception as error:  # noqa: BLE001  (only of this source)
                self._fail(fileno, error)

        with self._lock:
            if self._problem:
                raise SimulatorError(self._problem)
            self._selector.register(fileno, selectors.EVENT_READ, read)
            self._on_error[fileno] = on_error
            if edge:
                self._edges[fileno] = read
        self._wake_thread()

    def remove(self, fileno: int) -> None:
        """Stop reading a source; after this returns, its callback no longer runs."""
        with self._lock:
            self._forget(fileno)
        self._wake_thread()

    def close(self) -> None:
        """End the thread; further calls have no effect."""
        if self._ends:
            return
        self._ends = True
        self._wake_thread()
        self._thread.join()
        self._selector.close()
        os.close(self._wake)
        os.close(self._waker)

    def _wake_thread(self) -> None:
        os.write(self._wake, b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._waker, 4096)

    def _forget(self, fileno: int) -> None:
        """Stop reading a source, unless an error already did; call it with the lock held."""
        if self._on_error.pop(fileno, None) is not None:
            self._selector.unregister(fileno)
            self._edges.pop(fileno, None)

    def _fail(self, fileno: int, error: Exception) -> None:
        """Stop reading a failed source, which would stay ready, and notify its owner; call it with the lock
        held.
        """
        on_error = self._on_error[fileno]
        self._forget(fileno)
        on_error(error)

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # noqa: BLE001  (the owners of the sources raise it)
            reason = unexpected_reason(error)
            with self._lock:
                self._problem = f"poses and images can no longer be received ({reason}); restart this process"
                for fileno in [*self._on_error]:
                    self._fail(fileno, error)

    def _read_all(self) -> None:
        while not self._ends:
            ready = self._selector.select(CAMERA_POLL_SECONDS if self._edges else None)
            # With the lock, which `remove` takes too: a source may have been removed since select() returned, and
            # its descriptor may already be another file.
            with self._lock:
                current = self._selector.get_map()
                callbacks = [current[key.fd].data for key, _ in ready if key.fd in current]
                for callback in dict.fromkeys([*callbacks, *self._edges.values()]):
                    callback()


@dataclass(frozen=True, slots=True)
class ActionBounds:
    """Limits of an agent's actions, within the protocol's limits. Raises SimulatorSpecError beyond them."""

    min_steering: float = -1.0
    max_steering: float = 1.0
    min_acceleration: float = protocol.MIN_ACCELERATION
    max_acceleration: float = protocol.MAX_ACCELERATION

    def __post_init__(self) -> None:
        if not (
            -1.0 <= self.min_steering <= 0.0 <= self.max_steering <= 1.0
            and protocol.MIN_ACCELERATION <= self.min_acceleration <= 0.0
            and 0.0 <= self.max_acceleration <= protocol.MAX_ACCELERATION
        ):
            raise SimulatorSpecError(
                f"action bounds {self} must be within steering [-1, 1] and acceleration "
                f"[{protocol.MIN_ACCELERATION:g}, {protocol.MAX_ACCELERATION:g}] m/s^2, and contain 0"
            )

    def scaled(self, steering: float, acceleration: float) -> tuple[float, float]:
        """Scale an agent's action in [-1, 1] to the protocol's units; each sign has its own limit."""
        steering, acceleration = (max(-1.0, min(1.0, value)) for value in (steering, acceleration))
        return (
            steering * (self.max_steering if steering > 0 else -self.min_steering),
            acceleration * (self.max_acceleration if acceleration > 0 else -self.min_acceleration),
        )


class ActionSender:
    """Sender of one car's actions.

    The lowest 6 bits of the steering's mantissa carry a sequence number, which changes the value by a relative
    error below 1e-5. The simulator echoes the steering in its poses, so a pose identifies the action that it
    follows, without a change of the protocol.
    """

    def __init__(self, host: str, port: int, bounds: ActionBounds | None = None) -> None:
        self.bounds = bounds or ActionBounds()
        self._to = (host, port)
        self._number = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def begin(self) -> None:
        """Restart the sequence numbers: with the same actions, an episode sends the same bytes."""
        self._number = 0

    def send(self, steering: float, acceleration: float, gear: int = protocol.DRIVE) -> float:
        """Send an action in the protocol's units; return the steering that poses will echo.

        Raises WireError for a value outside the protocol's limits, OSError if it cannot be sent.
        """
        self._number = (self._number + 1) & _TAG_MASK
        tagged = _tagged(steering, self._number)
        self._socket.sendto(protocol.Action(tagged, acceleration, gear).pack(), self._to)
        return tagged

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def untagged(steering: float) -> float:
    """Remove the number from a steering: the original value with a relative error below 1e-5."""
    (word,) = _WORD.unpack(_FLOAT.pack(steering))
    (plain,) = _FLOAT.unpack(_WORD.pack(word & ~_TAG_MASK))
    return 0.0 if abs(plain) < 2 * _MIN_STEERING else float(plain)


def _tagged(steering: float, number: int) -> float:
    """Write ``number`` into the last bits of a steering; the result stays within [-1, 1]."""
    # At 0 the number would make a denormal float, which many programs flush to 0.
    if abs(steering) < _MIN_STEERING:
        steering = _MIN_STEERING
    packed = _FLOAT.pack(steering)
    (rounded,) = _FLOAT.unpack(packed)
    (word,) = _WORD.unpack(packed)
    if abs(rounded) >= 1.0:  # 1.0 has no larger neighbour in range: take the bits of the next smaller floats
        word -= _TAG_MASK + 1
    (tagged,) = _FLOAT.unpack(_WORD.pack((word & ~_TAG_MASK) | number))
    return float(tagged)


class Observations:
    """Newest pose and images of one car; any thread may read them.

    ``pose_port`` is the UDP port to bind; ``cameras`` are ZeroMQ addresses by name.
    """

    def __init__(
        self, receiver: Receiver, *, pose_port: int, pose_host: str = "", cameras: Mapping[str, str] | None = None
    ) -> None:
        self.garbage = 0
        """Number of datagrams that were not a pose."""
        self.problem = ""
        """Sentence on the error that has ended the reading of poses or images; otherwise empty."""
        self._receiver = receiver
        self._changed = threading.Condition()
        self._pose: Pose | None = None
        self._count = 0
        self._context: Cameras | None = None
        self._cameras: dict[str, CameraReceiver] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((pose_host, pose_port))
            self._socket.setblocking(False)
            receiver.add(self._socket.fileno(), self._read_poses, functools.partial(self._note, "poses"))
        except (OSError, SimulatorError):
            self._socket.close()
            raise
        if cameras:
            self._connect(cameras)

    @property
    def pose(self) -> Pose | None:
        """The newest pose; None before the first."""
        return self._pose

    def frame(self, camera: str) -> Frame | None:
        """Return the newest frame of a camera; None before the first."""
        return self._cameras[camera].newest

    def wait(self, matches: Callable[[Pose], bool], timeout_seconds: float) -> Pose | None:
        """Wait until the newest pose matches, and return it; None at the timeout."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._pose is None or not matches(self._pose):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    newest = self._pose
                    return newest if newest is not None and matches(newest) else None
            return self._pose

    def wait_frames(self, matches: Callable[[Frame], bool], timeout_seconds: float) -> dict[str, Frame] | None:
        """Wait until the newest frame of every camera matches, and return them; None at the timeout."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                newest = {name: camera.newest for name, camera in self._cameras.items()}
                frames = {name: frame for name, frame in newest.items() if frame is not None and matches(frame)}
                if len(frames) == len(newest):
                    return frames
                if (left := deadline - time.monotonic()) <= 0:
                    return None
                self._changed.wait(left)

    def close(self) -> None:
        """Close all sockets."""
        self._receiver.remove(self._socket.fileno())
        self._socket.close()
        for camera in self._cameras.values():
            self._receiver.remove(camera.fileno())
            camera.close()
        if self._context is not None:
            self._context.close()

    def _connect(self, cameras: Mapping[str, str]) -> None:
        from runtime.sim.wire.camera import CameraReceiver, Cameras

        self._context = Cameras()
        for name, address in cameras.items():
            camera = self._cameras[name] = CameraReceiver(self._context, address)
            on_ready = functools.partial(self._read_frame, camera)
            on_error = functools.partial(self._note, f"images of {name}")
            self._receiver.add(camera.fileno(), on_ready, on_error, edge=True)

    def _note(self, source: str, error: Exception) -> None:
        """Record that a source can no longer be read: its newest value would never change again."""
        self.problem = self.problem or f"the simulator's {source} can no longer be read: {unexpected_reason(error)}"

    def _read_frame(self, camera: CameraReceiver) -> None:
        if camera.receive():
            with self._changed:
                self._changed.notify_all()

    def _read_poses(self) -> None:
        newest, now = None, time.monotonic()
        # Read the whole queue and use only the last pose: an agent acts on the current state.
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram = self._socket.recv(2048)
                try:
                    newest = protocol.unpack_pose(datagram)
                    self._count += 1
                except protocol.WireError:
                    self.garbage += 1
        if newest is not None:
            with self._changed:
                self._pose = Pose(newest, self._count, now)
                self._changed.notify_all()
