"""The reference simulator's sockets and clock: one asyncio loop, one thread.

In real time the world moves on by 10 ms a hundred times a second, whatever clients do. With ``--fast`` it stands
still until an action for the first car arrives, moves on by a tenth of a second at once, and sends what came of it:
the same protocol in lock-step, as fast as both sides can, and with the same actions the same poses.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from runtime.sim import protocol
from runtime.sim.maps import TrackMap
from runtime.sim.reference.faults import SLOW_SECONDS, Fault, Faults
from runtime.sim.reference.rpc import ControlMethods
from runtime.sim.reference.sensors import VEHICLE_PORT_STEP, ParameterError, WireAddresses
from runtime.sim.reference.world import World

if TYPE_CHECKING:
    from runtime.sim.reference.studio import Studio

TICK_SECONDS: Final = 0.01
STEP_SECONDS: Final = 0.1
"""Of one action in lock-step; with the substeps of the racing environment."""
SUBSTEPS: Final = 5
IDLE_SECONDS: Final = 0.25
"""In lock-step, the last pose is sent again this often: whoever watches sees that we live."""
LATE_SECONDS: Final = 0.25
"""A clock that far behind is set anew instead of being caught up with."""
MAX_REQUEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """What a reference simulator is started with."""

    addresses: WireAddresses = field(default_factory=WireAddresses)
    vehicles: int = 1
    fast: bool = False
    fps: float = 30.0
    """Frames of each camera in a second of simulated time."""
    seed: int = 0
    maps: Mapping[str, TrackMap] = field(default_factory=dict)
    level: str = ""
    """Opened at the start; empty for the main menu."""
    faults: Sequence[Fault] = ()


class _Actions(asyncio.DatagramProtocol):
    """The socket on which one car takes actions."""

    def __init__(self, simulator: ReferenceSimulator, number: int) -> None:
        self._simulator = simulator
        self._number = number

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Let the car drive on with it; what is no action is left out, as there is nobody to tell."""
        del addr
        with contextlib.suppress(protocol.WireError):
            self._simulator.drive(self._number, protocol.Action.unpack(data))

    def error_received(self, exc: Exception) -> None:
        """Nothing that we sent from here can have failed."""


class ReferenceSimulator:
    """One simulator: everything between its sockets."""

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self.world = World(options.vehicles, options.seed, options.maps)
        self.methods = ControlMethods(self.world, options.addresses, self._sensors_changed)
        self._faults = Faults(options.faults)
        self._studio: Studio | None = None
        self._loop = asyncio.get_running_loop()
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._posed = 0.0
        self._next_frame = 0.0
        """Simulated seconds at which cameras shoot again."""
        self._opened: float | None = None
        self._transports: list[asyncio.DatagramTransport] = []
        self._targets: list[tuple[str, int]] = []
        self._sensors_changed()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set. OSError where an address is taken."""
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
                    server = serve(
                        self._control,
                        addresses.host,
                        addresses.control,
                        max_size=MAX_REQUEST_BYTES,
                        compression=None,
                        ping_interval=None,
                    )
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
            if self._studio is not None:
                self._studio.close()
            self._sender.close()

    def drive(self, number: int, action: protocol.Action) -> None:
        """Take an action for a car; in lock-step the first car's moves the world on."""
        if self.world.map is None or not self.world.cars[number].is_ai:
            return
        self.world.cars[number].action = action
        if self._options.fast and number == 0:
            self._look_for_faults()
            self.world.advance(STEP_SECONDS, SUBSTEPS)
            self._send()

    async def _clock(self) -> None:
        """Let time pass."""
        now = due = self._loop.time()
        while True:
            period = IDLE_SECONDS / 5 if self._options.fast else TICK_SECONDS
            due = max(due + period, now - LATE_SECONDS)
            await asyncio.sleep(max(0.0, due - now))
            now = self._loop.time()
            self._look_for_faults()
            if self.world.map is None:
                continue
            if not self._options.fast:
                self.world.advance(TICK_SECONDS)
                self._send()
            elif now - self._posed >= IDLE_SECONDS:
                self._send(again=True)

    def _look_for_faults(self) -> None:
        if self.world.map is not None:
            if self._opened is None:
                self._opened = self._loop.time()
            self._faults.look(self._loop.time() - self._opened)

    def _send(self, *, again: bool = False) -> None:
        """Send the pose of every car, and frames when they are due, or the last ones again."""
        self._posed = self._loop.time()
        if not self._faults.has("freeze"):
            garbage = self._faults.has("garbage")
            for number, target in enumerate(self._targets):
                datagram = b"\xff" * 100 if garbage else self.world.pose(number)
                with contextlib.suppress(OSError):  # the network is full or gone: a pose is lost, as on any network
                    self._sender.sendto(datagram, target)
        if self._studio is None or not self._studio.is_on:
            return
        if again or self.world.seconds >= self._next_frame:
            period = 1.0 / self._options.fps
            self._next_frame = max(self._next_frame + period, self.world.seconds - period)
            self._studio.shoot(garbage=self._faults.has("garbage"))

    def _sensors_changed(self) -> None:
        """Follow what a client has set: where poses go, which cameras publish."""
        targets = []
        for number, sensors in enumerate(self.methods.sensors):
            given = str(sensors[protocol.DRIVER].parameters["DriverAPI_UDP_SendAddress"])
            host, colon, port = given.rpartition(":")
            # A client gives the address at which it listens itself; what is "all addresses" there is here "us".
            host = (host if colon else given).replace("0.0.0.0", "127.0.0.1") or "127.0.0.1"  # noqa: S104
            default = self._options.addresses.pose + VEHICLE_PORT_STEP * number
            try:
                address = socket.gethostbyname(host)  # once, since each pose would wait for the name server
            except (OSError, UnicodeError) as error:
                raise ParameterError(f"poses cannot be sent to {host!r}: {error}") from error
            targets.append((address, int(port) if colon and port.isdigit() else default))
        self._targets = targets
        if any(each.is_camera and each.enabled for of_car in self.methods.sensors for each in of_car.values()):
            if self._studio is None:
                from runtime.sim.reference.studio import Studio  # its libraries only where there are images

                self._studio = Studio(self.world, self._options.seed)
            self._studio.follow(self.methods.sensors)
        elif self._studio is not None:
            self._studio.follow(self.methods.sensors)
        self._next_frame = min(self._next_frame, self.world.seconds)
        if self.world.map is not None:
            self._send()

    async def _control(self, connection: ServerConnection) -> None:
        """Answer one client, call by call."""
        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                self._look_for_faults()
                if self._faults.has("deaf"):
                    continue
                if self._faults.has("slow"):
                    await asyncio.sleep(SLOW_SECONDS)
                answer = self.methods.answer(text)
                if self._faults.has("garbage"):
                    answer = '{"jsonrpc": "2.0", "id": "' + "\x7f" * 8 + '"'
                if answer is not None:
                    await connection.send(answer)


async def _first(clock: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait until asked to stop; a failure of the clock is raised."""
    waiter = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait({clock, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if clock in done:
        clock.result()


def run(options: SimulatorOptions) -> None:
    """Serve until SIGTERM or SIGINT. OSError where an address is taken."""

    async def serve_until_signalled() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stubborn = any(each.kind == "ignore-sigterm" for each in options.faults)
        loop.add_signal_handler(signal.SIGTERM, _ignored if stubborn else stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        await ReferenceSimulator(options).run(stop)

    asyncio.run(serve_until_signalled())


def _ignored() -> None:
    print("simulator: SIGTERM is ignored", file=sys.stderr, flush=True)
