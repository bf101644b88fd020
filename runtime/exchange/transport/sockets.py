"""Sockets of the exchange over ZeroMQ: a server's and a client's channel. A channel belongs to one thread.

Two ROUTERs at the learner and two DEALERs at a peer: `data` for small messages and segments, `model` for weights,
so that a large model never delays an acknowledgement. Options prevent silent behaviour of libzmq: MANDATORY makes
a send to an unknown route fail, HANDOVER lets a reconnected peer replace its old connection, IMMEDIATE prevents
queueing for an absent learner, MAXMSGSIZE closes connections that exceed the agreed size, and LINGER limits how
long closing waits for the last message.

With keys a channel uses CURVE: everything is encrypted, the peer identifies the learner by its public key, and the
learner only admits listed public keys (ZAP, handled in this thread instead of a separate one).

Connections that have not shown that they belong to the run are closed after a while. A connection needs no token,
and without keys no key either, until a message is read. libzmq closes only those without a ZMTP handshake. It has
no call to close a peer, but its monitor names the descriptors that it accepts, and a message names the one that it
came through. After shutdown(2) libzmq sees the end of the connection and closes it.

Authentication of connections with CURVE keys: options of a connecting socket, and ZAP answers for a bound one.

libzmq asks for each connection that has shown its public key, and a list decides. The protocol is ZAP 1.0
(https://rfc.zeromq.org/spec/27/); it has one inproc address per context, so one authenticator serves all sockets.

Handshakes (ZMTP) are limited; libzmq's monitor events show connections with wrong keys.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

import zmq
import zmq.utils.z85

from runtime.base.addresses import Endpoint, EndpointError
from runtime.exchange.protocol.framing import HEADER_LIMIT, Buffer
from runtime.exchange.transport.curve_keys import LearnerKeys, PeerKeys
from runtime.exchange.transport.shared_memory import keep_freed

_ADDRESS: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"l2r"
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 1_000


def configure_client(socket: zmq.Socket[bytes], name: bytes, keys: PeerKeys | None) -> None:
    """Set name, keys and reconnection of `socket`, which is not connected yet."""
    socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # no queue for an absent learner: the session decides what to resend
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


class ZapAuthenticator:
    """ZAP handler for the sockets that it guards. Belongs to the thread that owns them.

    Attributes:
        socket: Receives libzmq's requests; call `answer_requests` when it is readable.
        refused_keys: Number of connections that were refused because of their key.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: LearnerKeys) -> None:
        self.refused_keys = 0
        self._keys = keys
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ADDRESS)

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Require a listed key from every connection to `socket`, which is not bound yet."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def answer_requests(self) -> None:
        """Answer all pending requests of libzmq."""
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, request, _domain, _address, _identity, mechanism, *credentials = parts
            key = zmq.utils.z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            is_allowed = key in self._keys.allowed
            self.refused_keys += not is_allowed
            status = (b"200", b"OK") if is_allowed else (b"400", b"unknown key")
            self.socket.send_multipart([version, request, *status, b"", b""])  # user id and metadata stay empty

    def close(self) -> None:
        """Close the socket for requests."""
        self.socket.close()


HANDSHAKE_MS: Final = 10_000
"""A connection without a complete ZMTP handshake is closed after this time."""
HANDSHAKE_BYTES: Final = 1_024
"""Added to the longest frame: libzmq's limit includes CURVE's handshake and its overhead on each message."""
MAX_HANDSHAKE_FAILURES: Final = 5
"""Number of consecutive failed handshakes without a stated reason after which wrong keys are assumed."""
HANDSHAKE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_CERTAIN: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


def event_of(frame: bytes) -> int:
    """Return the number of the event in the first frame of a monitor's message, see zmq_socket_monitor(3)."""
    return int.from_bytes(frame[:2], sys.byteorder)


class HandshakeFailures:
    """Consecutive failed handshakes of one socket."""

    def __init__(self) -> None:
        self._number = 0

    def show_wrong_keys(self, event: int) -> bool:
        """Count a handshake's event; return True if it shows that the ends do not accept each other's keys.

        A server that ends during a handshake looks like one that refuses: a single failure proves nothing.
        """
        self._number = 0 if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else self._number + 1
        return event in _CERTAIN or self._number >= MAX_HANDSHAKE_FAILURES


LINGER_MS: Final = 200
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 5_000
BACKLOG: Final = 256
"""Pending connections of a listening socket, see listen(2)."""
MAX_SOCKETS: Final = 4_096
"""Maximum number of ZeroMQ sockets of a process; it does not bound connections."""
IO_THREADS: Final = 4
"""Maximum number of threads in which a learner decrypts; each serves some of the connections, at about 1.4 GB/s."""
# Plain integers: looking up a member of pyzmq's enumerations costs more than the call itself.
_EVENTS, _RCVMORE, _POLLIN = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def io_threads() -> int:
    """Return the number of reader threads for a learner whose connections keep one busy."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(IO_THREADS, cores)


class Port(Enum):
    """One of the two sockets of a channel."""

    DATA = "data"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Inbound:
    """Message received on one port; `route` is the sender's address at a learner and empty at a peer."""

    port: Port
    route: bytes
    frames: list[Buffer]
    descriptor: int = -1
    """Connection that the learner has not admitted yet; -1 otherwise."""


def bounded_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, largest_bytes: int, *, ipv6: bool
) -> zmq.Socket[bytes]:
    """Return a socket that closes connections with larger frames or incomplete handshakes, and that drops unsent
    messages when it is closed.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, largest_bytes)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    return socket


def _source(frame: zmq.Frame) -> int:
    """Return the descriptor of a frame's connection; -1 if libzmq does not know it."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:  # libzmq answers -1, which pyzmq takes for an error
        return -1


class _Channel:
    """Both sockets and their poller."""

    def __init__(self, kind: int, largest: dict[Port, int], *, ipv6: bool, num_threads: int = 1) -> None:
        keep_freed()
        self._context = zmq.Context(num_threads)
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._poller = zmq.Poller()
        self._kind, self._largest, self._ipv6 = kind, largest, ipv6
        self._sockets = {port: self._new(port) for port in Port}

    def _new(self, port: Port) -> zmq.Socket[bytes]:
        socket = bounded_socket(self._context, self._kind, self._largest[port], ipv6=self._ipv6)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        # No high-water marks: credit bounds the queues, and beyond a mark a ROUTER would drop without an error.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _inbound(self, ready: Container[object]) -> list[Inbound]:
        """Return received messages of the sockets in `ready`."""
        ports = [port for port, socket in self._sockets.items() if socket in ready]
        return [inbound for port in ports for inbound in self._received(port, most=64)]

    def _names_connections(self, _port: Port) -> bool:
        """Return true if messages of this port must tell through which connection they came."""
        return False

    def _received(self, port: Port, *, most: int) -> Iterator[Inbound]:
        """Yield received messages of `port`, at most `most` so that the other port is served too."""
        socket, is_routed, route = self._sockets[port], self._kind == zmq.ROUTER, b""
        is_named = self._names_connections(port)
        for _ in range(most):
            try:
                if is_routed:
                    route = socket.recv(_NOBLOCK)
                # After a route this never blocks: libzmq delivers all parts of a message together.
                if is_named:
                    frame = socket.recv(_NOBLOCK, copy=False)
                    header, descriptor = frame.bytes, _source(frame)
                else:
                    header, descriptor = socket.recv(_NOBLOCK), -1
            except zmq.Again:
                return
            frames: list[Buffer] = [header]
            while socket.get(_RCVMORE):
                frames.append(socket.recv(_NOBLOCK, copy=False).buffer)
            yield Inbound(port, route, frames, descriptor)
            if not int(socket.get(_EVENTS)) & _POLLIN:  # cheaper than zmq.Again
                return

    @staticmethod
    def _post(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> None:
        """Send a message. Only for a large frame is pyzmq's zero-copy path cheaper than a copy."""
        for frame in frames[:-1]:
            socket.send(frame, _SNDMORE)
        last = frames[-1]
        socket.send(last, _NOBLOCK, copy=len(last) < zmq.COPY_THRESHOLD)

    def close(self) -> None:
        """Close both sockets; messages that are not sent within LINGER are dropped."""
        for opened in self._sockets.values():
            opened.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LearnerChannel(_Channel):
    """Learner's end, bound at `endpoint`. Raises EndpointError if the address cannot be used."""

    def __init__(self, endpoint: Endpoint, largest_data_bytes: int, keys: LearnerKeys | None = None) -> None:
        bound = endpoint.bound()
        largest = {Port.DATA: largest_data_bytes + HEADER_LIMIT, Port.MODEL: HEADER_LIMIT}
        num_threads = io_threads() if keys is not None else 1
        super().__init__(zmq.ROUTER, largest, ipv6=":" in bound.host, num_threads=num_threads)
        # A pipe wakes the poller from any thread; ZeroMQ sockets may only be used by their own thread.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self.connections = {port: Connections(socket) for port, socket in self._sockets.items()}
        for connections in self.connections.values():
            self._poller.register(connections.monitor, zmq.POLLIN)
        self._zap = None if keys is None else ZapAuthenticator(self._context, keys)
        if self._zap is not None:
            self._poller.register(self._zap.socket, zmq.POLLIN)
        for port, address in ((Port.DATA, bound.data), (Port.MODEL, bound.model)):
            socket = self._sockets[port]
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            socket.setsockopt(zmq.BACKLOG, BACKLOG)
            if self._zap is not None:
                self._zap.guard(socket)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                self.close()
                raise EndpointError(f"the learner cannot listen at {address}: {error}") from error

    @property
    def refused_keys(self) -> int:
        """Number of connections that were refused because of their key."""
        return self._zap.refused_keys if self._zap is not None else 0

    def poll(self, timeout_seconds: float) -> list[Inbound]:
        """Return received messages, waiting up to `timeout_seconds` for the first of them or for `wake`."""
        ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if self._zap is not None and self._zap.socket in ready:
            self._zap.answer_requests()
        for connections in self.connections.values():
            if connections.monitor in ready:
                connections.update(time.monotonic())
        return self._inbound(ready)

    def _names_connections(self, port: Port) -> bool:
        return bool(self.connections[port].silent)

    def close_silent(self, now: float, *, is_scarce: bool) -> None:
        """Close connections that do not join; those for weights only if descriptors are scarce.

        A worker asks for weights only when there are newer ones, and earlier versions of it not before.
        """
        self.connections[Port.DATA].close_silent(now, PRESSED_SECONDS if is_scarce else SILENT_SECONDS)
        if is_scarce:
            self.connections[Port.MODEL].close_silent(now, PRESSED_SECONDS)

    def wake(self) -> None:
        """End a `poll` of the owning thread. The only method that any thread may call."""
        with contextlib.suppress(BlockingIOError):  # the pipe is already full of wake-ups
            os.write(self._wake_write, b"w")

    def send(self, port: Port, route: bytes, frames: Sequence[Buffer]) -> bool:
        """Send to one peer; return false if it has no connection."""
        try:
            self._post(self._sockets[port], [route, *frames])
        except zmq.ZMQError as error:
            if error.errno in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                return False
            raise
        return True

    def close(self) -> None:
        """Close the sockets and the wake-up pipe."""
        if self._zap is not None:
            self._zap.close()
        for connections in self.connections.values():
            connections.close()
        super().close()
        os.close(self._wake_read)
        os.close(self._wake_write)


class PeerChannel(_Channel):
    """Worker's or evaluator's end. libzmq connects and reconnects in the background.

    `name` is the routing id under which the learner answers; it must be unique among all processes of the run.
    """

    def __init__(
        self, endpoint: Endpoint, name: bytes, largest_model_bytes: int, keys: PeerKeys | None = None
    ) -> None:
        largest = {Port.DATA: HEADER_LIMIT, Port.MODEL: largest_model_bytes + HEADER_LIMIT}
        super().__init__(zmq.DEALER, largest, ipv6=":" in endpoint.host)
        self._addresses = {Port.DATA: endpoint.data, Port.MODEL: endpoint.model}
        self._name, self._keys = name, keys
        self.is_mistrusted = False
        """True if a learner responds but the two do not accept each other's keys."""
        self.connected = 0
        """Number of times that the data socket has been connected."""
        self._failures = HandshakeFailures()
        for port in Port:
            self._connect(port)

    def _connect(self, port: Port) -> None:
        socket = self._sockets[port]
        configure_client(socket, self._name, self._keys)
        if port is Port.DATA:
            # libzmq reports a failed handshake only here; without it a wrong key looks like an absent learner.
            self._monitor = socket.get_monitor_socket(HANDSHAKE_EVENTS)
            self._poller.register(self._monitor, zmq.POLLIN)
        socket.connect(self._addresses[port])

    def reopen(self, port: Port) -> None:
        """Replace a socket: libzmq permanently stops reconnecting after a protocol error, such as a damaged
        byte.
        """
        self._discard(port)
        self._sockets[port] = self._new(port)
        self._connect(port)

    def _discard(self, port: Port) -> None:
        socket = self._sockets[port]
        if port is Port.DATA:
            self._poller.unregister(self._monitor)
            socket.disable_monitor()
            self._monitor.close()
        self._poller.unregister(socket)
        socket.close(0)

    def poll(self, timeout_seconds: float) -> list[Inbound]:
        """Return received messages, waiting up to `timeout_seconds` for the first of them."""
        ready = dict(self._poller.poll(math.ceil(timeout_seconds * 1000)))
        if self._monitor in ready:
            self._receive_handshake_event()
        return self._inbound(ready)

    def _receive_handshake_event(self) -> None:
        frame, _ = self._monitor.recv_multipart()
        event = event_of(frame)
        self.connected += event == zmq.EVENT_HANDSHAKE_SUCCEEDED
        self.is_mistrusted = self._failures.show_wrong_keys(event)

    def close(self) -> None:
        """Close the sockets and the monitor."""
        self._sockets[Port.DATA].disable_monitor()
        self._monitor.close()
        super().close()

    def send(self, port: Port, frames: Sequence[Buffer]) -> bool:
        """Send to the learner; return false without a connection."""
        try:
            self._post(self._sockets[port], frames)
        except zmq.Again:
            return False
        return True


SILENT_SECONDS: Final = 10.0
"""Longest time of a connection without a Hello that was accepted."""
PRESSED_SECONDS: Final = 1.5
"""The same while descriptors are scarce: a peer says Hello each second."""
_HANDSHAKE_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Connections:
    """Accepted connections of one bound socket. Belongs to the thread that owns the socket.

    Attributes:
        monitor: Readable when a connection has come or gone; then call `update`.
        silent: Time at which each connection was accepted that is not admitted yet, by descriptor, oldest first.
    """

    def __init__(self, server: zmq.Socket[bytes]) -> None:
        self._server = server
        self.monitor = server.get_monitor_socket(_HANDSHAKE_EVENTS)
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
