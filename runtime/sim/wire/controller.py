"""The simulator's control port, as a synchronous and an asyncio client over the same calls.

A call fails with a type (``errors``) that names the method and its params, and within its timeout whatever the
simulator does. An answer that comes too late is left out by its id when the next call waits for its own. A broken
connection is made anew by the next call; a call that may have been carried out is not repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from runtime.sim.calls import Call
from runtime.sim.errors import (
    BadReplyError,
    CallError,
    CallTimeoutError,
    ConnectionLostError,
    RefusedError,
)
from runtime.sim.protocol import CONTROL_PORT, Reply, WireError, reply_of, request
from runtime.sim.websocket import MAX_MESSAGE_BYTES, WebSocket, WebSocketError, WebSocketTimeoutError

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""Time allowed for a call unless told otherwise."""
MAX_STRAY_REPLIES: Final = 1000
"""Answers that belong to no call, during one call: more is no simulator that can be talked to."""


class Controller:
    """The control port for code that waits. One thread at a time may use it."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = CONTROL_PORT, *, timeout_seconds: float = CALL_SECONDS
    ) -> None:
        self.host = host
        self.port = port
        self._timeout = timeout_seconds
        self._numbers = itertools.count(1)
        self._socket: WebSocket | None = None
        self.heard: float | None = None
        """When anything came that was an answer, late ones included (monotonic seconds): the sign of life."""

    def call(self, call: Call[T], *, timeout_seconds: float | None = None) -> T:
        """Make a call, connecting first where there is no connection. Raises CallError within the timeout."""
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
                    return _meaning(call, reply)
        except WebSocketTimeoutError as error:
            raise CallTimeoutError(call.method, call.params, f"no answer in time ({error})") from error
        except WebSocketError as error:
            self.close()
            raise ConnectionLostError(call.method, call.params, str(error)) from error
        except BadReplyError:
            self.close()
            raise
        self.close()
        raise BadReplyError(call.method, call.params, "only answers to other calls came")

    def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class AsyncController:
    """The control port for asyncio; calls may overlap, each waits for its own answer."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = CONTROL_PORT, *, timeout_seconds: float = CALL_SECONDS
    ) -> None:
        self.host = host
        self.port = port
        self._timeout = timeout_seconds
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Call[Any], asyncio.Future[Reply]]] = {}
        self._connecting = asyncio.Lock()
        self._connection: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def call(self, call: Call[T], *, timeout_seconds: float | None = None) -> T:
        """Make a call, connecting first where there is no connection. Raises CallError within the timeout."""
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout if timeout_seconds is None else timeout_seconds):
                connection = await self._connected(call)
                self._waiting[number] = (call, future)
                try:
                    await connection.send(request(number, call.method, call.params))
                except (WebSocketException, OSError) as error:
                    raise ConnectionLostError(call.method, call.params, f"cannot send: {error}") from error
                return _meaning(call, await future)
        except TimeoutError as error:
            raise CallTimeoutError(call.method, call.params, "no answer in time") from error
        finally:
            self._waiting.pop(number, None)
            future.cancel()

    async def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        reader, self._reader = self._reader, None
        connection, self._connection = self._connection, None
        if reader is not None:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self, call: Call[Any]) -> ClientConnection:
        async with self._connecting:
            if self._connection is not None and self._reader is not None and not self._reader.done():
                return self._connection
            await self.close()
            try:
                self._connection = await connect(
                    f"ws://{self.host}:{self.port}",
                    max_size=MAX_MESSAGE_BYTES,
                    compression=None,
                    ping_interval=None,
                    proxy=None,
                    close_timeout=0.2,
                )
            except (WebSocketException, OSError) as error:
                raise ConnectionLostError(call.method, call.params, f"cannot connect: {error}") from error
            self._reader = asyncio.create_task(self._read(self._connection))
            return self._connection

    async def _read(self, connection: ClientConnection) -> None:
        """Hand every answer to the call that waits for it, until the connection ends."""
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


def _decoded(call: Call[Any], text: bytes) -> Reply:
    try:
        return reply_of(text)
    except WireError as error:
        raise BadReplyError(call.method, call.params, str(error)) from error


def _meaning(call: Call[T], reply: Reply) -> T:
    if reply.error is not None:
        raise RefusedError(call.method, call.params, reply.error)
    try:
        return call.read(reply.result)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        problem = f"the answer cannot be read: {error}"
        raise BadReplyError(call.method, call.params, problem) from error
