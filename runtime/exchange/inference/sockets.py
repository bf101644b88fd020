"""Sockets of remote inference: a third pair, so that neither segments nor weights delay a question.

One ROUTER at the learner and one DEALER at a worker, with the rules of the exchange: frame sizes are bounded before
anything is read, lingering is bounded, CURVE and its list of keys apply as in the rest of the run. A channel
belongs to one thread. Answers that a worker does not read are dropped; it asks again.
"""

from __future__ import annotations

import math
from typing import Final, Self

import zmq

from runtime.base.addresses import Endpoint, EndpointError
from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys
from runtime.exchange.transport.sockets import io_threads
from runtime.exchange.transport.zap_auth import HANDSHAKE_BYTES, HANDSHAKE_MS, ZapAuthenticator, configure_client

PORT_OFFSET: Final = 3
"""Distance from the data port; between them are the model port and the status port."""
SOCKET_NAME: Final = "asks.sock"
LINGER_MS: Final = 0
BACKLOG: Final = 256
MAX_QUEUED_ANSWERS: Final = 64
"""Maximum number of queued answers to one worker, which waits for one answer at a time: the others are obsolete."""
LARGE_BYTES: Final = 64 * 1024
"""Questions above this size are read by several threads."""


def address_of(endpoint: Endpoint) -> str:
    """Return the address for questions. Raises EndpointError if its port number would be too large."""
    if endpoint.folder is not None:
        return f"ipc://{endpoint.folder / SOCKET_NAME}"
    if endpoint.port + PORT_OFFSET > 65535:
        raise EndpointError(
            f"remote inference listens {PORT_OFFSET} ports behind the learner's, and {endpoint.port} has no such"
        )
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"tcp://{host}:{endpoint.port + PORT_OFFSET}"


class _Channel:
    def __init__(self, kind: int, largest: int, *, ipv6: bool, num_threads: int = 1) -> None:
        # A separate context: closing a context waits for all its sockets, and the exchange's sockets live longer.
        self._context = zmq.Context(num_threads)
        self._kind, self._largest, self._ipv6 = kind, largest, ipv6
        self._socket = self._new()

    def _new(self) -> zmq.Socket[bytes]:
        self._timeout_seconds = -1.0
        """Current timeout of the socket; setting it costs a call, so it is set only when it changes."""
        socket = self._context.socket(self._kind)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_ANSWERS)
        socket.setsockopt(zmq.MAXMSGSIZE, self._largest + HANDSHAKE_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, int(self._ipv6))
        return socket

    def _set_timeout(self, timeout_seconds: float) -> None:
        """Set the longest wait of `recv`."""
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self._socket.setsockopt(zmq.RCVTIMEO, math.ceil(timeout_seconds * 1000))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AnswerChannel(_Channel):
    """Learner's end, bound next to `endpoint`. Raises EndpointError if the address cannot be used."""

    def __init__(self, endpoint: Endpoint, largest_bytes: int, keys: LearnerKeys | None = None) -> None:
        address = address_of(endpoint.bound())
        # Images of a dozen workers are gigabytes per second, more than one libzmq thread can read or decrypt.
        num_threads = io_threads() if keys is not None or largest_bytes > LARGE_BYTES else 1
        super().__init__(zmq.ROUTER, largest_bytes, ipv6="[" in address, num_threads=num_threads)
        self._zap = None if keys is None else ZapAuthenticator(self._context, keys)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        # A worker that reconnects under its name replaces its old connection, which may not have timed out yet.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self._zap is not None:
            self._poller.register(self._zap.socket, zmq.POLLIN)
            self._zap.guard(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"the learner cannot listen at {address}: {error}") from error

    @property
    def refused_keys(self) -> int:
        """Number of connections that were refused because of their key."""
        return self._zap.refused_keys if self._zap is not None else 0

    def receive(self, timeout_seconds: float, most: int) -> list[tuple[bytes, memoryview]]:
        """Return waiting questions, at most `most`, as (address of the sender, frame)."""
        questions: list[tuple[bytes, memoryview]] = []
        # Without ZAP there is one socket: a blocking recv waits and reads in one call, a poller needs two.
        if self._zap is None:
            self._set_timeout(timeout_seconds)
            try:
                self._read(self._socket.recv(), questions)
            except zmq.Again:
                return questions
        else:
            ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
            if self._zap.socket in ready:
                self._zap.answer_requests()
        while len(questions) < most and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._read(self._socket.recv(), questions)
        return questions

    def _read(self, route: bytes, questions: list[tuple[bytes, memoryview]]) -> None:
        """Read the rest of a message after its address; a message of several parts is discarded, as it is no
        question.
        """
        frame = self._socket.recv(copy=False)  # never blocks: libzmq delivers all parts of a message together
        is_single = not frame.more
        while frame.more:
            frame = self._socket.recv(copy=False)
        if is_single:
            questions.append((route, frame.buffer))

    def send(self, route: bytes, frame: bytes) -> None:
        """Send an answer; it is dropped if the worker is gone or does not read it."""
        # No ROUTER_MANDATORY, unlike in the exchange: a lost answer is requested again, so dropping it is harmless.
        try:
            self._socket.send(route, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Close the sockets."""
        if self._zap is not None:
            self._zap.close()
        super().close()


class QuestionChannel(_Channel):
    """Worker's end; libzmq connects and reconnects in the background. `name` as in the exchange."""

    def __init__(self, endpoint: Endpoint, name: bytes, largest_bytes: int, keys: PeerKeys | None = None) -> None:
        self._address = address_of(endpoint)
        self._name, self._keys = name, keys
        super().__init__(zmq.DEALER, largest_bytes, ipv6="[" in self._address)
        self._connect()

    def _connect(self) -> None:
        socket = self._socket
        configure_client(socket, self._name, self._keys)
        socket.connect(self._address)

    def reopen(self) -> None:
        """Replace the socket: libzmq permanently stops reconnecting after a protocol error, such as a damaged
        byte.
        """
        self._socket.close()
        self._socket = self._new()
        self._connect()

    def send(self, frame: bytes) -> bool:
        """Send a question; return false without a connection."""
        try:
            self._socket.send(frame, zmq.NOBLOCK, copy=len(frame) < zmq.COPY_THRESHOLD)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_seconds: float) -> memoryview | None:
        """Return the next answer, or None if none comes in time or it has several parts."""
        self._set_timeout(timeout_seconds)
        try:
            frames = [self._socket.recv(copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        return frames[0].buffer if len(frames) == 1 else None
