"""Port sets for many simulators on one node: each leased once, and free again when its owner dies.

A lease is a bound TCP socket: the last port of its set, which has no other use. Its owner and the simulator's shim
hold the descriptor, and the kernel releases it when the last of them has ended for any reason. That needs no files
and no clean-up, and it works in exactly the network namespace in which ports can clash, across users and
containers.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable
from typing import Final

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
