"""Client of the simulator's control port.

A call fails within its timeout, whatever the simulator does, with an error that names the method and its params
(``errors``). The next call skips a late response by its id, and reopens a broken connection; a call that may have
been executed is not repeated.
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final, Self, TypeVar

from runtime.sim.wire.errors import (
    BadReplyError,
    CallRefusedError,
    CallTimeoutError,
    ConnectionLostError,
)
from runtime.sim.wire.protocol import CONTROL_PORT, RpcReply, WireError, reply_of, request
from runtime.sim.wire.rpc_methods import Call
from runtime.sim.wire.websocket import WebSocket, WebSocketError, WebSocketTimeoutError

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
