"""Clients of the simulator's control port, synchronous and asyncio, over the same calls.

A call fails within its timeout, whatever the simulator does, with an error that names the method and its params
(``errors``). The next call skips a late response by its id, and reopens a broken connection; a call that may have
been executed is not repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, Final, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from runtime.sim.wire.errors import (
    BadReplyError,
    CallError,
    CallRefusedError,
    CallTimeoutError,
    ConnectionLostError,
)
from runtime.sim.wire.protocol import CONTROL_PORT, RpcReply, WireError, reply_of, request
from runtime.sim.wire.rpc_methods import Call
from runtime.sim.wire.websocket import MAX_MESSAGE_BYTES, WebSocket, WebSocketError, WebSocketTimeoutError

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""Default timeout of a call."""
MAX_STRAY_REPLIES: Final = 1000
"""Limit for responses to other calls during one call; more means that the peer is not a simulator."""


class _ControlClient:
    def __init__(
        self, host: str = "127.0.0.1", port: int = CONTROL_PORT, *, timeout_seconds: float = CALL_SECONDS
    ) -> None:
        self.host, self.port = host, port
        self._timeout = timeout_seconds
        self._numbers = itertools.count(1)


class Controller(_ControlClient):
    """Synchronous client of the control port. One thread at a time may use it."""

    _socket: WebSocket | None = None
    heard: float | None = None
    """Time of the last response, including late ones (monotonic seconds): a sign of life."""

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


class AsyncController(_ControlClient):
    """Asyncio client of the control port; calls may overlap, each waits for its own response."""

    _connection: ClientConnection | None = None
    _reader: asyncio.Task[None] | None = None

    def __init__(
        self, host: str = "127.0.0.1", port: int = CONTROL_PORT, *, timeout_seconds: float = CALL_SECONDS
    ) -> None:
        super().__init__(host, port, timeout_seconds=timeout_seconds)
        self._waiting: dict[int, tuple[Call[Any], asyncio.Future[RpcReply]]] = {}
        self._connecting = asyncio.Lock()

    async def call(self, call: Call[T], *, timeout_seconds: float | None = None) -> T:
        """Make a call, opening a connection if necessary. Raises CallError within the timeout."""
        number = next(self._numbers)
        future: asyncio.Future[RpcReply] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout if timeout_seconds is None else timeout_seconds):
                connection = await self._connected(call)
                self._waiting[number] = (call, future)
                try:
                    await connection.send(request(number, call.method, call.params))
                except (WebSocketException, OSError) as error:
                    raise ConnectionLostError(call.method, call.params, f"cannot send: {error}") from error
                return _result_of(call, await future)
        except TimeoutError as error:
            raise CallTimeoutError(call.method, call.params, "no answer in time") from error
        finally:
            self._waiting.pop(number, None)
            future.cancel()

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self, call: Call[Any]) -> ClientConnection:
        # Overlapping calls without a connection must open one, not several.
        async with self._connecting:
            if self._connection is not None and self._reader is not None and not self._reader.done():
                return self._connection
            await self.close()
            try:
                self._connection = await connect(
                    f"ws://{self.host}:{self.port}",
                    max_size=MAX_MESSAGE_BYTES,
                    compression=None,
                    ping_interval=None,  # hangs are judged by the supervisor, from calls
                    proxy=None,
                    close_timeout=0.2,
                )
            except (WebSocketException, OSError) as error:
                raise ConnectionLostError(call.method, call.params, f"cannot connect: {error}") from error
            self._reader = asyncio.create_task(self._read(self._connection))
            return self._connection

    async def _read(self, connection: ClientConnection) -> None:
        """Deliver every response to the call that waits for it, until the connection ends."""
        problem = "the simulator closed the connection"
        try:
            async for text in connection:
                reply = reply_of(text)
                if reply.number in self._waiting:
                    future = self._waiting[reply.number][1]
                    if not future.done():
                        future.set_result(reply)
        except WireError as error:
            self._fail(BadReplyError, str(error))
        except (WebSocketException, OSError) as error:
            problem = f"the connection broke: {error}"
        self._fail(ConnectionLostError, problem)

    def _fail(self, kind: type[CallError], problem: str) -> None:
        for call, future in self._waiting.values():
            if not future.done():
                future.set_exception(kind(call.method, call.params, problem))


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
