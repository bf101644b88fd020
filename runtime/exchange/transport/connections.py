"""Connections of a learner that have not shown that they belong to the run: watched, and closed after a while.

A connection needs no token, and without keys no key either, until a message is read. libzmq closes only those
without a ZMTP handshake. It has no call to close a peer, but its monitor names the descriptors that it accepts, and
a message names the one that it came through. After shutdown(2) libzmq sees the end of the connection and closes it.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections import OrderedDict
from typing import Final

import zmq

SILENT_SECONDS: Final = 10.0
"""Longest time of a connection without a Hello that was accepted."""
PRESSED_SECONDS: Final = 1.5
"""The same while descriptors are scarce: a peer says Hello each second."""
_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Connections:
    """Accepted connections of one bound socket. Belongs to the thread that owns the socket.

    Attributes:
        monitor: Readable when a connection has come or gone; then call `update`.
        silent: Time at which each connection was accepted that is not admitted yet, by descriptor, oldest first.
    """

    def __init__(self, server: zmq.Socket[bytes]) -> None:
        self._server = server
        self.monitor = server.get_monitor_socket(_EVENTS)
        self.silent: OrderedDict[int, float] = OrderedDict()

    def update(self, now: float) -> None:
        """Read libzmq's events."""
        while True:
            try:
                frame, *_ = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            event, descriptor = (int.from_bytes(part, sys.byteorder) for part in (frame[:2], frame[2:6]))
            self.silent.pop(descriptor, None)
            if event == zmq.EVENT_ACCEPTED:
                self.silent[descriptor] = now

    def admit(self, descriptor: int) -> None:
        """Keep the connection through which a member's message came."""
        self.silent.pop(descriptor, None)

    def close_silent(self, now: float, seconds: float) -> None:
        """Close connections that were accepted more than `seconds` ago and are not admitted."""
        while self.silent:
            descriptor, accepted = next(iter(self.silent.items()))
            if now - accepted <= seconds:
                return
            del self.silent[descriptor]
            self._shut_down(descriptor)

    def _shut_down(self, descriptor: int) -> None:
        # libzmq may just have closed the descriptor, and another file may have its number: it must be a connection
        # to this server.
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                if _is_at(connection.getsockname(), bytes(self._server.get(zmq.LAST_ENDPOINT))):
                    connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()

    def close(self) -> None:
        """Close the monitor."""
        self._server.disable_monitor()
        self.monitor.close()


def _is_at(name: object, endpoint: bytes) -> bool:
    """Return True if the local address of a connection is the one that `endpoint` binds."""
    place = endpoint.rstrip(b"\0").decode()
    if isinstance(name, tuple):
        return place.startswith("tcp://") and place.rpartition(":")[2] == str(name[1])
    return place == f"ipc://{name}"
