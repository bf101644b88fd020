"""Port sets for many simulators on one node: never two on the same, and none lost with a dead owner.

A lease is a bound TCP socket: the last port of its set, which nothing else uses. Its owner and the simulator's shim
hold the descriptor, and the kernel lets go of it when the last of them has ended, however it ended. That needs no
files and no clean-up, and it counts in exactly the network namespace in which ports can clash, whoever the users
and containers are.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

FIRST_PORT: Final = 20_000
END_PORT: Final = 32_000
"""Sets lie between these: above the services, below the ports that Linux hands out by itself (from 32768)."""
SET_SIZE: Final = 80
VEHICLES: Final = 4
"""Cars that a set has ports for; action and pose ports lie 10 apart, cameras 8 a car."""


class PortsError(OSError):
    """There is no free port set on this node."""


@dataclass(frozen=True, slots=True)
class PortSet:
    """The ports of one simulator."""

    base: int

    @property
    def control(self) -> int:
        """TCP, WebSocket."""
        return self.base

    @property
    def action(self) -> int:
        """UDP, of the first car."""
        return self.base + 1

    @property
    def pose(self) -> int:
        """UDP, of the first car; bound by the client."""
        return self.base + 2

    @property
    def camera(self) -> int:
        """TCP, the first of 8 a car."""
        return self.base + 40

    @property
    def lock(self) -> int:
        """TCP, held by the lease."""
        return self.base + SET_SIZE - 1

    @property
    def fields(self) -> dict[str, int]:
        """What a command line can name in braces: ``{control}``."""
        return {"control": self.control, "action": self.action, "pose": self.pose, "camera": self.camera}


class PortLease:
    """A port set, ours while this or a copy of its descriptor is open."""

    def __init__(self, ports: PortSet, lock: socket.socket) -> None:
        self.ports = ports
        self._lock = lock

    @classmethod
    def take(cls, choose: Callable[[int], int] = random.randrange) -> PortLease:
        """Take a free set, trying them from a random one on. Raises PortsError."""
        count = (END_PORT - FIRST_PORT) // SET_SIZE
        first = choose(count)
        for number in range(count):
            ports = PortSet(FIRST_PORT + SET_SIZE * ((first + number) % count))
            lock = _bound(socket.SOCK_STREAM, ports.lock)
            if lock is None:
                continue
            if _are_free(ports):
                return cls(ports, lock)
            lock.close()
        raise PortsError(f"all {count} port sets from {FIRST_PORT} to {END_PORT - 1} are taken on this node")

    def fileno(self) -> int:
        """The descriptor that holds the set; whoever is to hold it too inherits it."""
        return self._lock.fileno()

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


def _bound(kind: socket.SocketKind, port: int) -> socket.socket | None:
    """Return a socket bound on all addresses, or None where something else is there."""
    sock = socket.socket(socket.AF_INET, kind)
    try:
        sock.bind(("", port))
    except OSError:
        sock.close()
        return None
    return sock


def _are_free(ports: PortSet) -> bool:
    """Whether nobody without a lease uses a port of the set."""
    with contextlib.ExitStack() as stack:
        for kind, wanted in (
            (socket.SOCK_STREAM, (ports.control, *range(ports.camera, ports.camera + 8 * VEHICLES))),
            (socket.SOCK_DGRAM, (at + 10 * car for car in range(VEHICLES) for at in (ports.action, ports.pose))),
        ):
            for port in wanted:
                sock = _bound(kind, port)
                if sock is None:
                    return False
                stack.enter_context(sock)
    return True
