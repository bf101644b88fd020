"""WebSocket client without threads, where each call has a deadline.

The library `websockets` provides handshake and frames; its protocol core does no I/O. This module adds socket and
clock: a simulator may hang in the middle of a handshake or a frame, and its client must not hang with it. The
library's synchronous client is unsuitable: its ``send`` has no deadline, and it starts a thread for each
connection.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

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
