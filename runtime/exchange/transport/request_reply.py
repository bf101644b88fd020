"""Requests and replies over ZeroMQ, for small services of a run such as a rendezvous.

A ROUTER answers, DEALERs request. With keys both ends authenticate by CURVE before a byte of a request is read:
each message is encrypted and authenticated with keys of that connection, so a recorded message is worthless in
another. Every request has a number, and a reply with another number (to an abandoned request) is dropped.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final, Self

import zmq

from runtime.base.addresses import EndpointError
from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys
from runtime.exchange.transport.sockets import (
    HANDSHAKE_BYTES,
    HANDSHAKE_EVENTS,
    HandshakeFailures,
    ZapAuthenticator,
    bounded_socket,
    configure_client,
    event_of,
)

BACKLOG: Final = 256
HEARTBEAT_MS: Final = 2_000
HEARTBEAT_TIMEOUT_MS: Final = 10_000
CONNECT_SECONDS: Final = 3.0
MOST_AT_ONCE: Final = 256
Answer = Callable[[Sequence[bytes]], Sequence[bytes]]
"""Creates the frames of a reply from the frames of a request; must not raise."""


class RefusedKeysError(OSError):
    """Both ends are connected but do not accept each other's keys."""


def _new(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, largest_bytes: int, *, ipv6: bool
) -> zmq.Socket[bytes]:
    socket = bounded_socket(context, kind, largest_bytes + HANDSHAKE_BYTES, ipv6=ipv6)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    return socket


class ReplySocket:
    """Answering end, bound at a ZeroMQ address. Belongs to one thread. Raises EndpointError if it cannot listen."""

    def __init__(self, address: str, largest_bytes: int, keys: LearnerKeys | None) -> None:
        self._context = zmq.Context()
        self._socket = _new(self._context, zmq.ROUTER, largest_bytes, ipv6="[" in address)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._zap = None if keys is None else ZapAuthenticator(self._context, keys)
        if self._zap is not None:
            self._zap.guard(self._socket)
            self._poller.register(self._zap.socket, zmq.POLLIN)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"cannot listen at {address}: {error.strerror}") from error
        self.address = self._socket.get_string(zmq.LAST_ENDPOINT)
        """Address including the port that the system chose, if `address` left it open."""

    @property
    def refused_keys(self) -> int:
        """Number of connections that were refused because of their key."""
        return self._zap.refused_keys if self._zap is not None else 0

    def serve(self, timeout_seconds: float, answer: Answer) -> None:
        """Answer waiting requests, at most `MOST_AT_ONCE`; wait up to `timeout_seconds` for the first."""
        ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
        if self._zap is not None and self._zap.socket in ready:
            self._zap.answer_requests()
        for _ in range(MOST_AT_ONCE):
            try:
                route, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not frames:
                continue
            number, *request = frames
            # A client that has disconnected meanwhile is not an error: a ROUTER drops undeliverable messages.
            self._socket.send_multipart([route, number, *answer(request)], zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets."""
        if self._zap is not None:
            self._zap.close()
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RequestSocket:
    """Requesting end. Belongs to one thread at a time; libzmq connects and reconnects in the background."""

    def __init__(self, address: str, largest_bytes: int, keys: PeerKeys | None) -> None:
        self._address, self._number, self._failures = address, 0, HandshakeFailures()
        self._context = zmq.Context()
        self._socket = _new(self._context, zmq.DEALER, largest_bytes, ipv6="[" in address)
        configure_client(self._socket, b"r" + uuid.uuid4().bytes, keys)
        # libzmq reports a failed handshake only here; without it a wrong key looks like an absent server.
        self._monitor = self._socket.get_monitor_socket(HANDSHAKE_EVENTS | zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(address)

    def request(self, frames: Sequence[bytes], timeout_seconds: float) -> list[bytes]:
        """Return the reply to a request. Raises OSError if there is none in time, or RefusedKeysError."""
        self._number += 1
        number = self._number.to_bytes(8, "big")
        self._wait(zmq.POLLOUT, CONNECT_SECONDS, f"nobody answers at {self._address}")
        try:
            self._socket.send_multipart([number, *frames], zmq.NOBLOCK)
        except zmq.Again as error:  # the connection ended since the poll
            raise OSError(f"{self._address} has closed the connection") from error
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            self._wait(zmq.POLLIN, left, f"{self._address} does not answer within {timeout_seconds:g} s")
            reply = self._socket.recv_multipart(zmq.NOBLOCK)
            if reply[0] == number:
                return reply[1:]

    def _wait(self, event: int, seconds: float, sentence: str) -> None:
        """Wait until the socket can send or has received; raise OSError with the sentence if it never can."""
        deadline = time.monotonic() + seconds
        self._poller.register(self._socket, event)
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(math.ceil(left * 1000)))
            is_lost = self._monitor in ready and self._read_events()
            if self._socket in ready:
                return
            # While connecting, libzmq replaces a lost connection; afterwards the request was lost with it.
            if is_lost and event == zmq.POLLIN:
                raise OSError(f"{self._address} has closed the connection")
            if time.monotonic() >= deadline:
                raise OSError(sentence)

    def _read_events(self) -> bool:
        """Read libzmq's events and return whether a connection was lost. Raises RefusedKeysError."""
        is_lost = False
        while self._monitor.poll(0):
            event = event_of(self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_DISCONNECTED:
                is_lost = True
            elif self._failures.show_wrong_keys(event):
                raise RefusedKeysError(f"{self._address} and this process do not accept each other's keys")
        return is_lost

    def close(self) -> None:
        """Close the socket and its monitor."""
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
