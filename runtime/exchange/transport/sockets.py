"""The sockets of the exchange; the only file that knows ZeroMQ. One channel belongs to one thread.

Two ROUTERs at the learner and two DEALERs at a peer: `data` for everything small and for segments, `model` for
weights, so that a large model never stands in front of an acknowledgement. What libzmq does silently is turned
off or made visible: MANDATORY makes a send to nobody fail, HANDOVER lets a reconnected peer in under its old
name, IMMEDIATE keeps messages from queueing for a learner that is not there, MAXMSGSIZE cuts off whoever sends
more than was agreed, LINGER bounds how long closing waits for the last message to get out.

With keys a channel speaks CURVE: everything is encrypted, the peer knows the learner by its public key, and the
learner lets in the public keys on its list and nobody else (ZAP, answered here and not in a thread of its own).
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Self

import zmq

from runtime.admission import Admission, introduce
from runtime.endpoint import Endpoint, EndpointError
from runtime.framing import HEADER_LIMIT, Buffer
from runtime.keys import LearnerKeys, PeerKeys
from runtime.memory import keep_freed

LINGER_MS: Final = 200
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 5_000
BACKLOG: Final = 256
"""Connections that may wait to be taken in."""
HANDSHAKE_MS: Final = 10_000
"""A stranger who connects and says nothing is cut off after this."""
FAILURES: Final = 5
"""Handshakes that fail one after the other without a reason until the keys are blamed."""
SOCKETS: Final = 4_096
"""Most connections of a learner, strangers included."""
IO_THREADS: Final = 4
"""Most threads in which a learner decrypts; each serves a share of the connections, about 1.4 GB/s of it."""
_HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# Plain integers: pyzmq's enumerations cost more than a call that takes one.
_EVENTS, _RCVMORE, _POLLIN = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Port(Enum):
    """Which of the two sockets."""

    DATA = "data"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Inbound:
    """What came in on one port; `route` is the sender's address at a learner and empty at a peer."""

    port: Port
    route: bytes
    frames: list[Buffer]


class _Channel:
    """Both sockets, their poller, and their end."""

    def __init__(self, kind: int, largest: dict[Port, int], *, ipv6: bool, io_threads: int = 1) -> None:
        keep_freed()
        self._context = zmq.Context(io_threads)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS)
        self._poller = zmq.Poller()
        self._kind, self._largest, self._ipv6 = kind, largest, ipv6
        self._sockets = {port: self._new(port) for port in Port}

    def _new(self, port: Port) -> zmq.Socket[bytes]:
        socket = self._context.socket(self._kind)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)  # credits bound what is on its way, so that nothing is dropped
        socket.setsockopt(zmq.MAXMSGSIZE, self._largest[port])
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.IPV6, int(self._ipv6))
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _received(self, port: Port, *, most: int, routed: bool) -> Iterator[Inbound]:
        """Yield what waits on `port`, `most` messages at most so that the other port gets its turn."""
        socket = self._sockets[port]
        route = b""
        for _ in range(most):
            try:
                if routed:
                    route = socket.recv(_NOBLOCK)
                frames: list[Buffer] = [socket.recv(_NOBLOCK)]  # libzmq gives the parts of a message at once
            except zmq.Again:
                return
            while socket.get(_RCVMORE):
                frames.append(socket.recv(_NOBLOCK, copy=False).buffer)
            yield Inbound(port, route, frames)
            if not int(socket.get(_EVENTS)) & _POLLIN:  # cheaper than the exception
                return

    @staticmethod
    def _post(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
        """Send a message; only an arena is worth the price of not being copied."""
        for frame in frames[:-1]:
            socket.send(frame, _SNDMORE)
        last = frames[-1]
        socket.send(last, _NOBLOCK, copy=len(last) < zmq.COPY_THRESHOLD)

    def close(self) -> None:
        """Close both sockets; what has not got out in a moment is dropped."""
        for socket in self._sockets.values():
            socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LearnerChannel(_Channel):
    """The learner's end: bound at `endpoint`; raises EndpointError if that cannot be."""

    def __init__(self, endpoint: Endpoint, largest_data_bytes: int, keys: LearnerKeys | None = None) -> None:
        bound = endpoint.bound()
        largest = {Port.DATA: largest_data_bytes + HEADER_LIMIT, Port.MODEL: HEADER_LIMIT}
        threads = min(IO_THREADS, _cores()) if keys is not None else 1
        super().__init__(zmq.ROUTER, largest, ipv6=":" in bound.host, io_threads=threads)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._admission = None if keys is None else Admission(self._context, keys)
        if self._admission is not None:
            self._poller.register(self._admission.socket, zmq.POLLIN)
        for port, address in ((Port.DATA, bound.data), (Port.MODEL, bound.model)):
            socket = self._sockets[port]
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            socket.setsockopt(zmq.BACKLOG, BACKLOG)
            if self._admission is not None:
                self._admission.guard(socket)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                self.close()
                raise EndpointError(f"the learner cannot listen at {address}: {error}") from error

    @property
    def strangers(self) -> int:
        """Connections that were refused for their key."""
        return self._admission.strangers if self._admission is not None else 0

    def poll(self, timeout_seconds: float) -> list[Inbound]:
        """Return what has come in, waiting at most `timeout_seconds` for the first message or a `wake`."""
        ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if self._admission is not None and self._admission.socket in ready:
            self._admission.answer()
        return [
            each
            for port, socket in self._sockets.items()
            if socket in ready
            for each in self._received(port, most=64, routed=True)
        ]

    def wake(self) -> None:
        """End a `poll` of the owning thread now. The one method that any thread may call."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._wake_write, b"w")

    def send(self, port: Port, route: bytes, frames: Sequence[Buffer]) -> bool:
        """Send to one peer and say whether it is still there to be sent to."""
        try:
            self._post(self._sockets[port], [route, *frames])
        except zmq.ZMQError as error:
            if error.errno in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                return False
            raise
        return True

    def close(self) -> None:
        """Close the sockets and the wake-up pipe."""
        if self._admission is not None:
            self._admission.close()
        super().close()
        os.close(self._wake_read)
        os.close(self._wake_write)


class PeerChannel(_Channel):
    """A worker's or an evaluator's end: connects, and connects again, for as long as it lives.

    `name` is the address under which the learner answers; it must be unique among all processes of the run.
    """

    def __init__(
        self, endpoint: Endpoint, name: bytes, largest_model_bytes: int, keys: PeerKeys | None = None
    ) -> None:
        largest = {Port.DATA: HEADER_LIMIT, Port.MODEL: largest_model_bytes + HEADER_LIMIT}
        super().__init__(zmq.DEALER, largest, ipv6=":" in endpoint.host)
        self._addresses = {Port.DATA: endpoint.data, Port.MODEL: endpoint.model}
        self._name, self._keys = name, keys
        self.is_mistrusted = False
        """Whether a learner answers and the two do not agree on keys."""
        self._failures = 0
        for port in Port:
            self._connect(port)

    def _connect(self, port: Port) -> None:
        socket = self._sockets[port]
        introduce(socket, self._name, self._keys)
        if port is Port.DATA:
            # libzmq tells of a failed handshake only here; without it a wrong key looks like an absent learner.
            self._monitor = socket.get_monitor_socket(_HANDSHAKES)
            self._poller.register(self._monitor, zmq.POLLIN)
        socket.connect(self._addresses[port])

    def reopen(self, port: Port) -> None:
        """Begin again with a new socket: libzmq gives a connection up for good when a byte of it was damaged."""
        self._end(port)
        self._sockets[port] = self._new(port)
        self._connect(port)

    def _end(self, port: Port) -> None:
        socket = self._sockets[port]
        if port is Port.DATA:
            self._poller.unregister(self._monitor)
            socket.disable_monitor()
            self._monitor.close()
        self._poller.unregister(socket)
        socket.close(0)

    def poll(self, timeout_seconds: float) -> list[Inbound]:
        """Return what has come in, waiting at most `timeout_seconds` for the first message."""
        ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
        if self._monitor in ready:
            self._see_handshake()
        return [
            each
            for port, socket in self._sockets.items()
            if socket in ready
            for each in self._received(port, most=64, routed=False)
        ]

    def _see_handshake(self) -> None:
        """A learner that ends amid a handshake looks like one that does not like us; once is no proof."""
        frames, _ = self._monitor.recv_multipart()
        event = int.from_bytes(frames[:2], sys.byteorder)
        self._failures = 0 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._failures + 1
        is_told = event in {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}
        self.is_mistrusted = is_told or self._failures >= FAILURES

    def close(self) -> None:
        """Close the sockets and the monitor."""
        self._sockets[Port.DATA].disable_monitor()
        self._monitor.close()
        super().close()

    def send(self, port: Port, frames: Sequence[Buffer]) -> bool:
        """Send to the learner and say whether there is a connection to send on."""
        try:
            self._post(self._sockets[port], frames)
        except zmq.Again:
            return False
        return True
