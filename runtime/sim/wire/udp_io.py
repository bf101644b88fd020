"""Action out, pose and images in: the newest of each, with its number and how old it is.

One thread of the process reads all pose sockets and cameras of all its simulators, so that the newest is always at
hand, nothing piles up in the kernel while nobody looks, and the time of arrival is the true one.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtime.sim import protocol
from runtime.sim.errors import SpecError

if TYPE_CHECKING:
    from runtime.sim.camera import CameraReceiver, Cameras, Frame

_FLOAT: Final = struct.Struct("=f")
_WORD: Final = struct.Struct("=I")
_TAG_BITS: Final = 6
_LEAST_STEERING: Final = 1e-6
LOOK_SECONDS: Final = 0.05
"""Cameras are looked at this often even if their descriptor says nothing: ZeroMQ's is triggered by edges."""


@dataclass(frozen=True, slots=True)
class Pose:
    """One pose as it came."""

    values: tuple[float, ...]
    """The 30 values of the protocol."""
    sequence: int
    """Count of poses received on this socket."""
    received: float
    """Seconds, monotonic clock."""

    def age_seconds(self) -> float:
        """How long ago it came."""
        return time.monotonic() - self.received


class Receiver:
    """The one thread that reads. Sources are added with a callback that reads without waiting."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._edges: dict[int, Callable[[], None]] = {}
        self._waker, self._wake = os.pipe()
        os.set_blocking(self._waker, False)
        self._selector.register(self._waker, selectors.EVENT_READ, self._drain)
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="l2r-receiver", daemon=True)
        self._thread.start()

    def add(self, fileno: int, on_ready: Callable[[], None], *, edge: bool = False) -> None:
        """Call ``on_ready`` in the reading thread whenever ``fileno`` can be read."""
        with self._lock:
            self._selector.register(fileno, selectors.EVENT_READ, on_ready)
            if edge:
                self._edges[fileno] = on_ready
        self._rouse()

    def remove(self, fileno: int) -> None:
        """No longer read it; after this returns, no callback of it runs."""
        with self._lock:
            self._selector.unregister(fileno)
            self._edges.pop(fileno, None)
        self._rouse()

    def close(self) -> None:
        """End the thread; once is enough, twice does no harm."""
        if self._ends:
            return
        self._ends = True
        self._rouse()
        self._thread.join()
        self._selector.close()
        os.close(self._wake)
        os.close(self._waker)

    def _rouse(self) -> None:
        os.write(self._wake, b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._waker, 4096)

    def _run(self) -> None:
        while not self._ends:
            ready = self._selector.select(LOOK_SECONDS if self._edges else None)
            with self._lock:
                current = self._selector.get_map()
                callbacks = [key.data for key, _ in ready if key.fd in current]
                for callback in dict.fromkeys([*callbacks, *self._edges.values()]):
                    callback()


@dataclass(frozen=True, slots=True)
class ActionBounds:
    """What an agent may ask for, within what the protocol has. SpecError beyond it."""

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
            raise SpecError(
                f"action bounds {self} must lie within steering [-1, 1] and acceleration "
                f"[{protocol.MIN_ACCELERATION:g}, {protocol.MAX_ACCELERATION:g}] m/s^2, and contain 0"
            )

    def scaled(self, steering: float, acceleration: float) -> tuple[float, float]:
        """Turn an agent's action in [-1, 1] into the protocol's units, each half to its own bound."""
        steering, acceleration = (max(-1.0, min(1.0, each)) for each in (steering, acceleration))
        return (
            steering * (self.max_steering if steering > 0 else -self.min_steering),
            acceleration * (self.max_acceleration if acceleration > 0 else -self.min_acceleration),
        )


class ActionSender:
    """Sends actions of one car.

    Each carries a running number in the last bits of its steering, less than a hundred-thousandth of the value: the
    simulator echoes the steering in the pose, so a pose tells which action it answers, on the protocol as it is.
    """

    def __init__(self, host: str, port: int, bounds: ActionBounds | None = None) -> None:
        self.bounds = bounds or ActionBounds()
        self._to = (host, port)
        self._number = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def begin(self) -> None:
        """Count anew: with the same actions, an episode sends the same bytes."""
        self._number = 0

    def send(self, steering: float, acceleration: float, gear: int = protocol.DRIVE) -> float:
        """Send an action in the protocol's units; returns the steering of its echo. Raises WireError, OSError."""
        self._number = (self._number + 1) % (1 << _TAG_BITS)
        tagged = _tagged(steering, self._number)
        self._socket.sendto(protocol.Action(tagged, acceleration, gear).pack(), self._to)
        return tagged

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def untagged(steering: float) -> float:
    """Return a steering without its number: what was asked for, to a hundred-thousandth."""
    (word,) = _WORD.unpack(_FLOAT.pack(steering))
    (plain,) = _FLOAT.unpack(_WORD.pack(word & ~((1 << _TAG_BITS) - 1)))
    return 0.0 if abs(plain) < 2 * _LEAST_STEERING else float(plain)


def _tagged(steering: float, number: int) -> float:
    """Write ``number`` into the last bits of a steering, never beyond its size."""
    if abs(steering) < _LEAST_STEERING:
        steering = _LEAST_STEERING
    packed = _FLOAT.pack(steering)
    (rounded,) = _FLOAT.unpack(packed)
    (word,) = _WORD.unpack(packed)
    mask = (1 << _TAG_BITS) - 1
    if abs(rounded) >= 1.0:  # the bits below 1.0 are those of the next smaller numbers
        word -= mask + 1
    (tagged,) = _FLOAT.unpack(_WORD.pack((word & ~mask) | number))
    return float(tagged)


class Observations:
    """Pose and images of one car, newest first; any thread may ask.

    Args:
        receiver: The thread that reads.
        pose_port: UDP port to bind; 0 picks one.
        cameras: Name to ZeroMQ address.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        pose_port: int,
        pose_host: str = "",
        cameras: Mapping[str, str] | None = None,
    ) -> None:
        self.garbage = 0
        """Datagrams that were no pose."""
        self._receiver = receiver
        self._changed = threading.Condition()
        self._pose: Pose | None = None
        self._count = 0
        self._context: Cameras | None = None
        self._cameras: dict[str, CameraReceiver] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((pose_host, pose_port))
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        receiver.add(self._socket.fileno(), self._read_poses)
        if cameras:
            self._connect(cameras)

    @property
    def pose_port(self) -> int:
        """Where poses are expected."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def pose(self) -> Pose | None:
        """The newest pose; None before the first."""
        return self._pose

    def frame(self, camera: str) -> Frame | None:
        """The newest frame of a camera; None before the first."""
        return self._cameras[camera].newest

    @property
    def frames(self) -> int:
        """Frames received, of all cameras."""
        return sum(each.frames for each in self._cameras.values())

    def wait(self, is_wanted: Callable[[Pose], bool], timeout_seconds: float) -> Pose | None:
        """Return the first newest pose that is wanted, the present one included; None when none came in time."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._pose is None or not is_wanted(self._pose):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    found = self._pose
                    return found if found is not None and is_wanted(found) else None
            return self._pose

    def wait_frames(self, is_wanted: Callable[[Frame], bool], timeout_seconds: float) -> dict[str, Frame] | None:
        """Return the newest frame of every camera, as soon as all are wanted; None when they are not in time."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                found = {name: camera.newest for name, camera in self._cameras.items()}
                frames = {name: frame for name, frame in found.items() if frame is not None and is_wanted(frame)}
                if len(frames) == len(found):
                    return frames
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)

    def close(self) -> None:
        """Let go of all sockets."""
        self._receiver.remove(self._socket.fileno())
        self._socket.close()
        for camera in self._cameras.values():
            self._receiver.remove(camera.fileno())
            camera.close()
        if self._context is not None:
            self._context.close()

    def _connect(self, cameras: Mapping[str, str]) -> None:
        from runtime.sim.camera import Cameras

        self._context = Cameras()
        for name, address in cameras.items():
            camera = self._context.receiver(address)
            self._cameras[name] = camera
            self._receiver.add(camera.fileno(), self._drained(camera), edge=True)

    def _drained(self, camera: CameraReceiver) -> Callable[[], None]:
        def read() -> None:
            if camera.receive():
                with self._changed:
                    self._changed.notify_all()

        return read

    def _read_poses(self) -> None:
        newest, now = None, time.monotonic()
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
