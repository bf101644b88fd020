"""The sockets of remote inference: a third pair beside `data` and `model`, so that no segment and no weights ever
stand in front of a question.

One ROUTER at the learner, one DEALER at a worker, with the exchange's own rules: sizes capped before anything is
read, lingering bounded, CURVE and its list of keys wherever the rest of the run has them. A channel belongs to one
thread. What a peer that does not read leaves unsent is dropped: it asks again.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Final, Self

import zmq

from runtime.admission import Admission, introduce
from runtime.endpoint import Endpoint, EndpointError
from runtime.keys import LearnerKeys, PeerKeys

PORT_OFFSET: Final = 3
"""Behind the port of the data socket; between them are the model socket's and the status port."""
SOCKET_NAME: Final = "asks.sock"
LINGER_MS: Final = 0
BACKLOG: Final = 256
MOST_QUEUED: Final = 64
"""Answers that wait for one worker; it never has more than one question that it still wants answered."""
HANDSHAKE_MS: Final = 10_000
HANDSHAKE_BYTES: Final = 1_024
"""Beyond the longest frame: libzmq counts CURVE's own messages and what it adds to each of ours."""


def address_of(endpoint: Endpoint) -> str:
    """Return where questions go. Raises EndpointError if there is no room behind the learner's port."""
    if endpoint.folder is not None:
        return f"ipc://{endpoint.folder / SOCKET_NAME}"
    if endpoint.port + PORT_OFFSET > 65535:
        raise EndpointError(
            f"remote inference listens {PORT_OFFSET} ports behind the learner's, and {endpoint.port} has no such"
        )
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"tcp://{host}:{endpoint.port + PORT_OFFSET}"


class _Channel:
    def __init__(self, kind: int, largest: int, *, ipv6: bool) -> None:
        self._context = zmq.Context()
        self._kind, self._largest, self._ipv6 = kind, largest, ipv6
        self._socket = self._new()

    def _new(self) -> zmq.Socket[bytes]:
        self._timeout_seconds = -1.0
        """For which the socket is set."""
        socket = self._context.socket(self._kind)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.SNDHWM, MOST_QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, self._largest + HANDSHAKE_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, int(self._ipv6))
        return socket

    def _waits(self, timeout_seconds: float) -> None:
        """Let reading wait so long at most."""
        if timeout_seconds != self._timeout_seconds:
            self._timeout_seconds = timeout_seconds
            self._socket.setsockopt(zmq.RCVTIMEO, math.ceil(timeout_seconds * 1000))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AnswerChannel(_Channel):
    """The learner's end: bound behind `endpoint`; raises EndpointError if that cannot be."""

    def __init__(self, endpoint: Endpoint, largest_bytes: int, keys: LearnerKeys | None = None) -> None:
        address = address_of(endpoint.bound())
        super().__init__(zmq.ROUTER, largest_bytes, ipv6="[" in address)
        self._admission = None if keys is None else Admission(self._context, keys)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self._admission is not None:
            self._poller.register(self._admission.socket, zmq.POLLIN)
            self._admission.guard(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(f"the learner cannot listen at {address}: {error}") from error

    @property
    def strangers(self) -> int:
        """Connections that were refused for their key."""
        return self._admission.strangers if self._admission is not None else 0

    def receive(self, timeout_seconds: float, most: int) -> list[tuple[bytes, memoryview]]:
        """Return the questions that wait, `most` at most, each behind its sender's address."""
        found: list[tuple[bytes, memoryview]] = []
        if self._admission is None:  # nobody to be let in: one call waits and reads, where a poller would take two
            self._waits(timeout_seconds)
            try:
                self._read(self._socket.recv(), found)
            except zmq.Again:
                return found
        else:
            ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
            if self._admission.socket in ready:
                self._admission.answer()
        while len(found) < most and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._read(self._socket.recv(), found)
        return found

    def _read(self, route: bytes, found: list[tuple[bytes, memoryview]]) -> None:
        """Read what follows an address: one part, or it is no question and is thrown away whole."""
        frame = self._socket.recv(copy=False)  # libzmq gives the parts of a message at once
        is_whole = not frame.more
        while frame.more:
            frame = self._socket.recv(copy=False)
        if is_whole:
            found.append((route, frame.buffer))

    def send(self, route: bytes, frame: bytes) -> None:
        """Answer; whoever has gone meanwhile gets nothing."""
        try:
            self._socket.send(route, zmq.NOBLOCK | zmq.SNDMORE)
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Close the sockets."""
        if self._admission is not None:
            self._admission.close()
        super().close()


class QuestionChannel(_Channel):
    """A worker's end: connects, and connects again, for as long as it lives; `name` as in the exchange."""

    def __init__(self, endpoint: Endpoint, name: bytes, largest_bytes: int, keys: PeerKeys | None = None) -> None:
        self._address = address_of(endpoint)
        self._name, self._keys = name, keys
        super().__init__(zmq.DEALER, largest_bytes, ipv6="[" in self._address)
        self._connect()

    def _connect(self) -> None:
        socket = self._socket
        introduce(socket, self._name, self._keys)
        socket.connect(self._address)

    def reopen(self) -> None:
        """Begin again with a new socket: libzmq gives a connection up for good when a byte of it was damaged."""
        self._socket.close()
        self._socket = self._new()
        self._connect()

    def send(self, frame: bytes) -> bool:
        """Ask, and say whether there is a connection to ask on."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, timeout_seconds: float) -> memoryview | None:
        """Return the next answer, or None if none comes in time or it is in pieces."""
        self._waits(timeout_seconds)
        try:
            frames = [self._socket.recv(copy=False)]
        except zmq.Again:
            return None
        while frames[-1].more:
            frames.append(self._socket.recv(copy=False))
        return frames[0].buffer if len(frames) == 1 else None
