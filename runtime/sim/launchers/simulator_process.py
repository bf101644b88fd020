"""Interface of a running simulator of any kind: addresses, end, signals, stop, log, and its loss with the cause.

Port sets for many simulators on one node: each leased once, and free again when its owner dies.

A lease is a bound TCP socket: the last port of its set, which has no other use. Its owner and the simulator's shim
hold the descriptor, and the kernel releases it when the last of them has ended for any reason. That needs no files
and no clean-up, and it works in exactly the network namespace in which ports can clash, across users and
containers.
"""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runtime.sim.wire import protocol

FIRST_PORT: Final = 20_000
END_PORT: Final = 32_000
"""Range of the sets: above common services, below the ports that Linux assigns automatically (from 32768)."""
SET_SIZE: Final = 80
VEHICLES: Final = 4
"""Number of cars per set; action and pose ports are 10 apart, and each car has 8 cameras."""


class PortsError(OSError):
    """No port set is free on this node."""


class PortSet:
    """The ports of one simulator, from ``base`` on."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.control = base
        """TCP, WebSocket."""
        self.action = base + 1
        """UDP, of the first car."""
        self.pose = base + 2
        """UDP, of the first car; bound by the client."""
        self.camera = base + 40
        """TCP, the first of 8 per car."""
        self.lock = base + SET_SIZE - 1
        """TCP, held by the lease."""


class PortLease:
    """Lease of a port set; held while this socket or an inherited copy of it is open.

    Without a set it represents the lab's own ports, which cannot be chosen and are not leased: a second simulator
    fails to bind them.
    """

    def __init__(self, ports: PortSet | None = None, lock: socket.socket | None = None) -> None:
        self.ports = ports
        self._lock = lock

    @classmethod
    def acquire(cls, choose: Callable[[int], int] = random.randrange) -> PortLease:
        """Lease a free set; ``choose`` returns the index of the first one to try. Raises PortsError."""
        # Start at a random set: many workers that start together would otherwise all try the same sets in turn.
        count = (END_PORT - FIRST_PORT) // SET_SIZE
        first = choose(count)
        for number in range(count):
            ports = PortSet(FIRST_PORT + SET_SIZE * ((first + number) % count))
            if (lock := _bound(socket.SOCK_STREAM, ports.lock)) is None:
                continue
            # The lock is not enough: a program without a lease may use a port of the set.
            if _are_free(ports):
                return cls(ports, lock)
            lock.close()
        raise PortsError(f"all {count} port sets from {FIRST_PORT} to {END_PORT - 1} are taken on this node")

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptor that holds the lease, if any; a process that inherits it holds the lease too."""
        return (self._lock.fileno(),) if self._lock is not None else ()

    def close(self) -> None:
        """Release it, unless another process holds a copy."""
        if self._lock is not None:
            self._lock.close()


def _bound(kind: socket.SocketKind, port: int) -> socket.socket | None:
    """Return a socket bound to a port on all addresses; None if the port is in use."""
    sock = socket.socket(socket.AF_INET, kind)
    try:
        sock.bind(("", port))
    except OSError:
        sock.close()
        return None
    return sock


def _are_free(ports: PortSet) -> bool:
    """Return whether no process uses a port of the set."""
    with contextlib.ExitStack() as stack:
        for kind, candidates in (
            (socket.SOCK_STREAM, (ports.control, *range(ports.camera, ports.camera + 8 * VEHICLES))),
            (socket.SOCK_DGRAM, (at + 10 * car for car in range(VEHICLES) for at in (ports.action, ports.pose))),
        ):
            for port in candidates:
                if (sock := _bound(kind, port)) is None:
                    return False
                stack.enter_context(sock)
    return True


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a simulator's channels, and the address to which it sends poses."""

    control: int
    action: int
    pose: int
    camera_base: int | None
    """Port of the first camera, followed by the others; None for the lab's own ports."""
    host: str = "127.0.0.1"
    pose_target: str = "127.0.0.1"
    """Target address of its poses: the address of this process from the simulator's side."""

    @classmethod
    def of(cls, ports: PortSet | None, host: str = "127.0.0.1", pose_target: str = "127.0.0.1") -> Addresses:
        """Return the addresses of a leased port set, or of the lab's own ports."""
        if ports is None:
            return cls(protocol.CONTROL_PORT, protocol.ACTION_PORT, protocol.POSE_PORT, None, host, pose_target)
        return cls(ports.control, ports.action, ports.pose, ports.camera, host, pose_target)

    @property
    def ports(self) -> Mapping[str, int]:
        """Values of a command's placeholders."""
        camera = self.camera_base or protocol.CAMERA_PORTS["CameraFrontRGB"]
        return {"control": self.control, "action": self.action, "pose": self.pose, "camera": camera}

    def camera_port(self, name: str) -> int:
        """Return the port of a camera of the first car."""
        return protocol.camera_port(name, self.camera_base)


class SimulatorHandle:
    """One started simulator. The defaults are for a simulator whose process is not ours: they do nothing."""

    addresses: Addresses

    def ended(self) -> Failure | None:
        """Return its end as a failure; None while it is running. Does not wait."""
        return None

    def signal(self, number: int) -> None:
        """Send it a signal; no effect after its end."""

    def stop(self, grace_seconds: float) -> int:  # noqa: ARG002  (there is nothing to wait for)
        """Stop it and release its ports; return how many of its processes could not be ended."""
        return 0

    def tail(self, lines: int = 20) -> list[str]:  # noqa: ARG002  (there are none)
        """Return the last lines of its output; empty if the output goes elsewhere."""
        return []


class ExternalSimulator(SimulatorHandle):
    """Simulator that is started and supervised elsewhere; its end is only noticed on the wire."""

    def __init__(self, host: str) -> None:
        target = "127.0.0.1" if host in ("127.0.0.1", "localhost") else own_address(host)
        self.addresses = Addresses.of(None, host, target)


def own_address(peer: str) -> str:
    """Return the address of this process as a peer sees it."""
    # connect() of a UDP socket chooses the route and sends nothing; the port does not matter.
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((peer, 9))
        return str(sock.getsockname()[0])


class Cause(StrEnum):
    """Reason for the loss of a simulator."""

    EXITED = "exited"
    CRASHED = "crashed"
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    HUNG = "hung"
    NOT_READY = "not ready"
    CANNOT_START = "cannot start"
    SUPERVISOR_LOST = "supervisor lost"
    UNWATCHED = "unwatched"
    """This process can no longer watch or read it: an error of our own, and the simulator may be fine."""
    ASKED = "asked"
    """A restart was requested: not a failure of the simulator, so it does not use its budget."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One loss, with its cause and a sentence for display."""

    cause: Cause
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """End of a process, by an exit code or by a signal."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False

    @classmethod
    def of_code(cls, code: int, *, out_of_memory: bool = False) -> ProcessEnd:
        """Decode an exit status of a shell or a container: 128 plus a signal number, or an exit code."""
        if code > 128 and code - 128 <= signal.NSIG:
            return cls(signal=code - 128, out_of_memory=out_of_memory)
        return cls(code=code, out_of_memory=out_of_memory)

    def failure(self) -> Failure:
        """Convert to a failure: a simulator should never end, so even exit code 0 is one."""
        if self.out_of_memory:
            return Failure(Cause.OUT_OF_MEMORY, "the simulator ran out of memory: the kernel ended it")
        if self.signal is None:
            return Failure(Cause.EXITED, f"the simulator exited with code {self.code}")
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        # A program does not send itself these; other signals come from its own faults.
        if self.signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            return Failure(Cause.KILLED, f"the simulator was killed by {name}, which we did not send")
        return Failure(Cause.CRASHED, f"the simulator crashed with {name}")
