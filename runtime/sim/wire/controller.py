"""Client of the simulator's control port, over a WebSocket without threads in which each call has a deadline.

A call fails within its timeout, whatever the simulator does, with an error that names the method and its params
(``errors``). The next call skips a late response by its id, and reopens a broken connection; a call that may have
been executed is not repeated.

The library `websockets` provides handshake and frames; its protocol core does no I/O. This module adds socket and
clock: a simulator may hang in the middle of a handshake or a frame, and its client must not hang with it. The
library's synchronous client is unsuitable: its ``send`` has no deadline, and it starts a thread for each
connection.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from typing import Any, Final, Self, TypeVar

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from runtime.sim.wire.errors import BadReplyError, CallRefusedError, CallTimeoutError, ConnectionLostError
from runtime.sim.wire.protocol import CONTROL_PORT, RpcReply, WireError, reply_of, request
from runtime.sim.wire.rpc_methods import Call

MAX_MESSAGE_BYTES: Final = 4 << 20


class WebSocketError(OSError):
    """The connection cannot be opened or has broken."""


class WebSocketTimeoutError(WebSocketError):
    """No data arrived before the deadline."""


class WebSocket:
    """One connection to ``ws://host:port``. Raises WebSocketError if it cannot be opened within the timeout."""

    def __init__(self, host: str, port: int, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        self._messages: deque[bytes] = deque()
        self._parts: list[bytes] = []
        try:
            self._socket = socket.create_connection((host, port), timeout_seconds)
        except TimeoutError as error:
            raise WebSocketTimeoutError(f"{host}:{port} does not take a connection") from error
        except OSError as error:
            raise WebSocketError(f"{host}:{port}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            uri = parse_uri(f"ws://{host}:{port}")
            self._protocol = ClientProtocol(uri, max_size=MAX_MESSAGE_BYTES)
            self._protocol.send_request(self._protocol.connect())
            self._flush(deadline)
            while self._protocol.state is State.CONNECTING:
                self._receive(deadline)
        except (InvalidURI, InvalidHandshake) as error:
            self._socket.close()
            raise WebSocketError(f"{host}:{port} is no WebSocket: {error}") from error
        except BaseException:
            self._socket.close()
            raise
        if self._protocol.state is not State.OPEN:
            self._socket.close()
            raise WebSocketError(f"{host}:{port} is no WebSocket: {self._protocol.handshake_exc}")

    def send(self, text: str, deadline: float) -> None:
        """Send one text message by ``deadline`` (monotonic seconds). Raises WebSocketError."""
        if self._protocol.state is not State.OPEN:
            raise WebSocketError("the connection is closed")
        self._protocol.send_text(text.encode())
        self._flush(deadline)

    def receive(self, deadline: float) -> bytes:
        """Return the next message, waiting at most until ``deadline``. Raises WebSocketError."""
        while not self._messages:
            self._receive(deadline)
        return self._messages.popleft()

    def close(self) -> None:
        """Send a close frame without waiting for its reply, and close the socket."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            try:
                self._flush(time.monotonic() + 0.05)
            except WebSocketError:
                pass  # the connection is already closed
        self._socket.close()

    def _flush(self, deadline: float) -> None:
        """Send the bytes that the protocol core has ready."""
        for data in self._protocol.data_to_send():
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                if data:
                    self._socket.sendall(data)
                else:
                    self._socket.shutdown(socket.SHUT_WR)
            except TimeoutError as error:
                raise WebSocketTimeoutError("nothing is taken") from error
            except OSError as error:
                raise WebSocketError(f"the connection broke: {error}") from error

    def _receive(self, deadline: float) -> None:
        """Read once and pass the bytes to the protocol core."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise WebSocketTimeoutError("nothing came")
        try:
            self._socket.settimeout(left)
            data = self._socket.recv(65_536)
        except TimeoutError as error:
            raise WebSocketTimeoutError("nothing came") from error
        except OSError as error:
            raise WebSocketError(f"the connection broke: {error}") from error
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._parts.append(bytes(event.data))
                if event.fin:
                    self._messages.append(b"".join(self._parts))
                    self._parts.clear()
        self._flush(deadline)
        closed = self._protocol.state in (State.CLOSING, State.CLOSED) or self._protocol.parser_exc is not None
        if closed and not self._messages:
            reason = self._protocol.parser_exc or self._protocol.handshake_exc or "the simulator closed it"
            raise WebSocketError(f"the connection broke: {reason}")


T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""Default timeout of a call."""
MAX_STRAY_REPLIES: Final = 1000
"""Limit for responses to other calls during one call; more means that the peer is not a simulator."""


class Controller:
    """Client of the control port. One thread at a time may use it."""

    _socket: WebSocket | None = None
    heard: float | None = None
    """Time of the last response, late ones included (monotonic seconds): a sign of life."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = CONTROL_PORT, *, timeout_seconds: float = CALL_SECONDS
    ) -> None:
        self.host, self.port = host, port
        self._timeout = timeout_seconds
        self._numbers = itertools.count(1)

    def call(self, call: Call[T], *, timeout_seconds: float | None = None) -> T:
        """Make a call, opening a connection if necessary. Raises CallError within the timeout."""
        deadline = time.monotonic() + (self._timeout if timeout_seconds is None else timeout_seconds)
        number = next(self._numbers)
        try:
            if self._socket is None:
                self._socket = WebSocket(self.host, self.port, deadline - time.monotonic())
            self._socket.send(request(number, call.method, call.params), deadline)
            for _ in range(MAX_STRAY_REPLIES):
                reply = _decoded(call, self._socket.receive(deadline))
                self.heard = time.monotonic()
                if reply.number == number:
                    return _result_of(call, reply)
        except WebSocketTimeoutError as error:
            # The connection stays: a late response is skipped by its id, and closing would lose the sign of life.
            raise CallTimeoutError(call.method, call.params, f"no answer in time ({error})") from error
        except WebSocketError as error:
            self.close()
            raise ConnectionLostError(call.method, call.params, str(error)) from error
        except BadReplyError:  # the stream may be out of step
            self.close()
            raise
        self.close()
        raise BadReplyError(call.method, call.params, "only answers to other calls came")

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _decoded(call: Call[Any], text: bytes) -> RpcReply:
    try:
        return reply_of(text)
    except WireError as error:
        raise BadReplyError(call.method, call.params, str(error)) from error


def _result_of(call: Call[T], reply: RpcReply) -> T:
    if reply.error is not None:
        raise CallRefusedError(call.method, call.params, reply.error)
    try:
        return call.read(reply.result)
    # Any of these: `read` unpacks JSON that a foreign program has made.
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise BadReplyError(call.method, call.params, f"the answer cannot be read: {error}") from error
