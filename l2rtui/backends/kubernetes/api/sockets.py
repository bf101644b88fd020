"""TCP sockets of a connection, with keep-alive; also closes sockets that aiohttp no longer tracks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from typing import Any

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))
"""A peer that vanished is detected after 30 + 3 x 15 s; Linux's default is two hours."""
_CLOSE_SECONDS = 1.0
"""Longest wait for connections that were closed on this side; normally a few turns of the event loop."""


class OpenSockets:
    """Sockets of one connection, including those that aiohttp forgets with an abandoned response."""

    def __init__(self) -> None:
        # Weak references; otherwise no socket would be freed.
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: tuple[Any, ...]) -> socket.socket:
        """Create a socket for an address of ``getaddrinfo``."""
        return self.adopt(make_socket(address))

    def adopt(self, tcp_socket: socket.socket) -> socket.socket:
        """Set the options of a socket and track it."""
        set_options(tcp_socket)
        self._sockets.add(tcp_socket)
        return tcp_socket

    async def close(self) -> None:
        """Shut down the sockets that aiohttp no longer tracks, and wait until they are closed.

        aiohttp does not wait for a connection whose response was abandoned, nor for one that is still being
        established. The former stays open for up to 30 s, until the server has answered the TLS close_notify; an
        event loop that ends earlier leaks the socket.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while left := [open_socket for open_socket in self._sockets if open_socket.fileno() >= 0]:
                    for open_socket in left:
                        with contextlib.suppress(OSError):  # not connected yet, or no longer
                            open_socket.shutdown(socket.SHUT_RDWR)
                    await asyncio.sleep(0.001)


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Create a TCP socket for an address of ``getaddrinfo``."""
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


def set_options(tcp_socket: socket.socket) -> None:
    """Let the kernel probe a silent peer, and send small writes without delay."""
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # macOS has no TCP_KEEPIDLE: set the options that exist.
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
