"""Sockets and clock of the reference simulator, in one asyncio loop.

In real time the world advances by 10 ms a hundred times per second. With ``--fast`` it runs in lock-step: each
action for the first car advances the world by 0.1 s, and the pose follows immediately. So it runs as fast as both
sides allow, and the same actions give the same poses.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from runtime.sim.reference.rpc import ControlMethods
from runtime.sim.reference.world import VEHICLE_PORT_STEP, ParameterError, WireAddresses, World
from runtime.sim.wire import protocol
from runtime.tracks.maps import TrackMap

if TYPE_CHECKING:
    from runtime.sim.reference.render import CameraRig


KINDS: Final = {
    "hang": "stops doing anything, and ignores SIGTERM as a hung process does",
    "deaf": "stops answering on the control port, poses go on",
    "freeze": "stops sending poses, the control port still answers",
    "crash": "dies of SIGSEGV",
    "killed": "dies of SIGKILL, as if sent by another program",
    "exit": "ends with code 3",
    "slow": "answers control calls after 3 s",
    "refuse": "never listens on the control port",
    "garbage": "malformed answers, poses and frames",
    "ignore-sigterm": "ignores SIGTERM, from the start",
    "grandchild": "leaves behind a process in a session of its own that ignores SIGTERM, from the start on",
}
"""Description of each kind. Unless it says "from the start on", a fault begins some seconds after a level was
opened.
"""
_AT_START: Final = frozenset({"refuse", "ignore-sigterm", "grandchild"})
DEFAULT_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 3.0
EXIT_CODE: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault and the seconds after which it begins."""

    kind: str
    seconds: float = DEFAULT_SECONDS

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Parse ``KIND`` or ``KIND@SECONDS``. Raises ValueError with the allowed kinds."""
        kind, at, after = text.partition("@")
        if kind not in KINDS:
            raise ValueError(f"unknown fault {kind!r}; the faults are {', '.join(KINDS)}")
        try:
            seconds = float(after) if at else DEFAULT_SECONDS
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e6:
            raise ValueError(f"fault {kind}: {after!r} is not a number of seconds")
        return cls(kind, seconds)


class Faults:
    """Set of faults that have begun or will begin."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._waiting = [fault for fault in faults if fault.kind not in _AT_START]
        self._present = {fault.kind for fault in faults if fault.kind in _AT_START}

    def has(self, kind: str) -> bool:
        """Return True if a fault has begun."""
        return kind in self._present

    def begin(self) -> None:
        """Begin the faults of the process start."""
        if self.has("grandchild"):
            _leave_grandchild()

    def begin_due(self, seconds_open: float) -> None:
        """Begin the faults that are due; some do not return."""
        for fault in [fault for fault in self._waiting if fault.seconds <= seconds_open]:
            self._waiting.remove(fault)
            self._present.add(fault.kind)
            if fault.kind == "crash":
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # a handler such as faulthandler's would run first
                os.kill(os.getpid(), signal.SIGSEGV)
            elif fault.kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "exit":
                os._exit(EXIT_CODE)
            elif fault.kind == "hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                while True:
                    time.sleep(3600)


def _leave_grandchild() -> None:
    """Fork twice and change the session: a process outside the tree and the session, which a plain kill misses."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(BaseException):
        while True:
            time.sleep(3600)
    os._exit(0)


TICK_SECONDS: Final = 0.01
STEP_SECONDS: Final = 0.1
"""Simulated time of one action in lock-step, with the substeps of the racing environment."""
SUBSTEPS: Final = 5
IDLE_SECONDS: Final = 0.25
"""Interval at which the last pose is repeated in lock-step, as a sign of life."""
LATE_SECONDS: Final = 0.25
"""A clock that is further behind skips the missed ticks: a burst of poses would be useless."""
MAX_REQUEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Options of a reference simulator."""

    addresses: WireAddresses = field(default_factory=WireAddresses)
    vehicles: int = 1
    fast: bool = False
    fps: float = 30.0
    """Frames per camera and second of simulated time."""
    seed: int = 0
    maps: Mapping[str, TrackMap] = field(default_factory=dict)
    level: str = ""
    """Level to open at the start; empty for the main menu."""
    faults: Sequence[Fault] = ()


class _Actions(asyncio.DatagramProtocol):
    """UDP socket for the actions of one car."""

    def __init__(self, simulator: ReferenceSimulator, number: int) -> None:
        self._simulator = simulator
        self._number = number

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Apply an action; malformed datagrams are dropped, since UDP has no response."""
        del addr
        with contextlib.suppress(protocol.WireError):
            self._simulator.apply_action(self._number, protocol.Action.unpack(data))


class ReferenceSimulator:
    """One simulator: world, control methods, faults and sockets."""

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self.world = World(options.vehicles, options.seed, options.maps)
        self.methods = ControlMethods(self.world, options.addresses, self._sensors_changed)
        self._faults = Faults(options.faults)
        self._cameras: CameraRig | None = None
        self._loop = asyncio.get_running_loop()
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._posed = 0.0
        self._next_frame = 0.0
        """Simulated time of the next frames, s."""
        self._opened: float | None = None
        self._transports: list[asyncio.DatagramTransport] = []
        self._targets: list[tuple[str, int]] = []
        self._sensors_changed()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. Raises OSError if an address is in use."""
        self._faults.begin()
        addresses = self._options.addresses
        try:
            for number in range(self._options.vehicles):
                port = addresses.action + VEHICLE_PORT_STEP * number
                transport, _ = await self._loop.create_datagram_endpoint(
                    lambda number=number: _Actions(self, number),  # type: ignore[misc]  # mypy has no such lambda
                    local_addr=(addresses.host, port),
                )
                self._transports.append(transport)
            if self._options.level:
                self.world.open(self._options.level)
                self._sensors_changed()
            async with contextlib.AsyncExitStack() as stack:
                if not self._faults.has("refuse"):
                    settings: dict[str, Any] = {"max_size": MAX_REQUEST_BYTES, "compression": None}
                    server = serve(self._control, addresses.host, addresses.control, ping_interval=None, **settings)
                    await stack.enter_async_context(server)
                print(f"simulator: control at port {addresses.control}", flush=True)
                clock = self._loop.create_task(self._clock())
                try:
                    await _first(clock, stop)
                finally:
                    clock.cancel()
        finally:
            for transport in self._transports:
                transport.close()
            if self._cameras is not None:
                self._cameras.close()
            self._sender.close()

    def apply_action(self, number: int, action: protocol.Action) -> None:
        """Apply an action to a car; in lock-step an action of the first car advances the world."""
        if self.world.map is None or not self.world.cars[number].is_ai:
            return
        self.world.cars[number].action = action
        if self._options.fast and number == 0:
            self._begin_faults()
            self.world.advance(STEP_SECONDS, SUBSTEPS)
            self._send()

    async def _clock(self) -> None:
        """Advance the world in real time; in lock-step only repeat the last pose."""
        now = due = self._loop.time()
        while True:
            period = IDLE_SECONDS / 5 if self._options.fast else TICK_SECONDS
            # From the last due time, not from now: delays of the loop would add up to a slow clock.
            due = max(due + period, now - LATE_SECONDS)
            await asyncio.sleep(max(0.0, due - now))
            now = self._loop.time()
            self._begin_faults()
            if self.world.map is None:
                continue
            if not self._options.fast:
                self.world.advance(TICK_SECONDS)
                self._send()
            elif now - self._posed >= IDLE_SECONDS:
                self._send(again=True)

    def _begin_faults(self) -> None:
        if self.world.map is not None:
            if self._opened is None:
                self._opened = self._loop.time()
            self._faults.begin_due(self._loop.time() - self._opened)

    def _send(self, *, again: bool = False) -> None:
        """Send the pose of every car, and due frames; with ``again`` repeat all of them."""
        self._posed = self._loop.time()
        if not self._faults.has("freeze"):
            garbage = self._faults.has("garbage")
            for number, target in enumerate(self._targets):
                datagram = b"\xff" * 100 if garbage else self.world.pose(number)
                with contextlib.suppress(OSError):  # a full or broken network loses a pose, as UDP may
                    self._sender.sendto(datagram, target)
        if self._cameras is None or not self._cameras.is_on:
            return
        if again or self.world.seconds >= self._next_frame:
            period = 1.0 / self._options.fps
            self._next_frame = max(self._next_frame + period, self.world.seconds - period)
            self._cameras.publish_frames(garbage=self._faults.has("garbage"))

    def _sensors_changed(self) -> None:
        """Apply the sensors' settings: targets of the poses, publishers of the cameras."""
        targets = []
        for number, sensors in enumerate(self.methods.sensors):
            address_text = str(sensors[protocol.DRIVER].parameters["DriverAPI_UDP_SendAddress"])
            host, colon, port = address_text.rpartition(":")
            # Clients give the address at which they listen; for us their "all addresses" means this machine.
            host = (host if colon else address_text).replace("0.0.0.0", "127.0.0.1") or "127.0.0.1"  # noqa: S104
            default = self._options.addresses.pose + VEHICLE_PORT_STEP * number
            try:
                address = socket.gethostbyname(host)  # once: each pose would wait for the name server
            except (OSError, UnicodeError) as error:
                raise ParameterError(f"poses cannot be sent to {host!r}: {error}") from error
            targets.append((address, int(port) if colon and port.isdigit() else default))
        self._targets = targets
        cameras = (sensor for of_car in self.methods.sensors for sensor in of_car.values() if sensor.is_camera)
        if self._cameras is None and any(camera.enabled for camera in cameras):
            from runtime.sim.reference.render import CameraRig  # its libraries are only needed for images

            self._cameras = CameraRig(self.world, self._options.seed)
        if self._cameras is not None:
            self._cameras.follow(self.methods.sensors)
        self._next_frame = min(self._next_frame, self.world.seconds)
        if self.world.map is not None:
            self._send()

    async def _control(self, connection: ServerConnection) -> None:
        """Serve one client, call by call."""
        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                self._begin_faults()
                if self._faults.has("deaf"):
                    continue
                if self._faults.has("slow"):
                    await asyncio.sleep(SLOW_SECONDS)
                response = self.methods.respond(text)
                if self._faults.has("garbage"):
                    response = '{"jsonrpc": "2.0", "id": "' + "\x7f" * 8 + '"'
                if response is not None:
                    await connection.send(response)


async def _first(clock: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for ``stop``; raise a failure of the clock, which would otherwise stop silently."""
    waiter = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait({clock, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if clock in done:
        clock.result()


def run(options: SimulatorOptions) -> None:
    """Serve until SIGTERM or SIGINT. Raises OSError if an address is in use."""

    async def serve_until_signalled() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stubborn = any(fault.kind == "ignore-sigterm" for fault in options.faults)
        ignored = functools.partial(print, "simulator: SIGTERM is ignored", file=sys.stderr, flush=True)
        loop.add_signal_handler(signal.SIGTERM, ignored if stubborn else stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        await ReferenceSimulator(options).run(stop)

    asyncio.run(serve_until_signalled())
