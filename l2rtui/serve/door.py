"""Connections before they have proved anything: few, for a short time, and without a word for each.

The loopback address is open to every user of a machine. A connection that sends no whole request within
`HEADER_SECONDS` is dropped, and beyond `MOST_STRANGERS` connections without the session's cookie the oldest is. So
descriptors are left for the owner, whose browser has the cookie.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from l2rtui.serve.guard import Guard

HEADER_SECONDS: Final = 10.0
MOST_STRANGERS: Final = 64
_MOST_HEADER_BYTES: Final = 32 * 1024
LOG_SECONDS: Final = 60.0
"""Time between two lines about connections that cannot be accepted."""


class Strangers:
    """Connections without the cookie, the oldest first.

    Args:
        make_handler: Makes aiohttp's protocol for a connection that has sent a request.
    """

    def __init__(self, guard: Guard, make_handler: Callable[[], asyncio.BaseProtocol]) -> None:
        self.guard = guard
        self.make_handler = make_handler
        self._doors: OrderedDict[_Door, None] = OrderedDict()

    def connection(self) -> asyncio.Protocol:
        """Return the protocol of a connection that has just been accepted."""
        return _Door(self)

    def add(self, door: _Door) -> None:
        """Count a connection, and drop the oldest beyond the bound."""
        self._doors[door] = None
        while len(self._doors) > MOST_STRANGERS:
            oldest, _ = self._doors.popitem(last=False)
            oldest.drop()

    def remove(self, door: _Door) -> None:
        """Remove a connection from the count."""
        self._doors.pop(door, None)


class _Door(asyncio.Protocol):
    """One connection until it has sent the head of a request, which then goes to the handler."""

    def __init__(self, strangers: Strangers) -> None:
        self._strangers = strangers
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give it `HEADER_SECONDS`."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (of a server's socket)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.drop)
        self._strangers.add(self)

    def data_received(self, data: bytes) -> None:
        """Gather the head of the first request."""
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _MOST_HEADER_BYTES:
                self.drop()
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._strangers.guard.has_session(bytes(self._head[:end])):
            self._forget()
        # A connection without the cookie is closed when its time is over.
        handler: Any = self._strangers.make_handler()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(bytes(self._head))

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        del exc
        self._forget()

    def drop(self) -> None:
        """Cut the connection off."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _forget(self) -> None:
        self._strangers.remove(self)
        if self._deadline is not None:
            self._deadline.cancel()


class QuietLoop:
    """Exception handler of a loop that says at most once a minute that no connection can be accepted."""

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle errors that the loop reports."""
        if not isinstance(context.get("exception"), OSError) or "accept" not in str(context.get("message", "")):
            loop.default_exception_handler(context)
            return
        if self._clock() - self._said >= LOG_SECONDS:
            self._said = self._clock()
            self._say(f"No connection can be accepted: {context['exception']}. Close some, or raise `ulimit -n`.")
