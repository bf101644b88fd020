"""Access control of the server: token, session cookie, Host and Origin, and a limit for strangers' connections.

The loopback address is not a protection: every user of a login node reaches it, and so does every web page that is
open in a browser on that machine. The token protects against other users; it opens one session and is invalid
afterwards, so an address in a history or a log does no harm. Against web pages there is a cookie that other sites
cannot send (SameSite=Strict), and a check of Host and Origin: a foreign name that resolves to 127.0.0.1 (DNS
rebinding) is refused, and a page of another origin cannot open a WebSocket (cross-site WebSocket hijacking).

A connection that sends no whole request within `HEADER_SECONDS` is dropped, and beyond `MOST_STRANGERS`
connections without the session's cookie the oldest is. So descriptors are left for the owner, whose browser has
the cookie.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Host names, with any port: the far end of a tunnel often has another one."""
_TOKEN_BYTES = 32
_FOREIGN = "Another site's page may not speak to this server.\n"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self' data:; connect-src 'self' {sockets}; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A page, not a redirect: a browser does not send a strict cookie with a redirect that another site started.
_WELCOME = (
    '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>l2rtui</title>'
    '<link rel="icon" type="image/svg+xml" href="/icon.svg"><body style="background:#12161b">'
)


class Guard:
    """Guard of one server: one token, which opens one session.

    Attributes:
        token: Secret in the address; invalid after its first use.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._session = secrets.token_urlsafe(_TOKEN_BYTES)
        # Cookies do not distinguish ports (RFC 6265, 8.5): two servers on a host need different names.
        self._cookie = f"l2rtui-{secrets.token_hex(4)}"
        self._is_used = False

    def has_session(self, head: bytes) -> bool:
        """Say whether the head of a request has the session's cookie."""
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() != b"cookie":
                continue
            for pair in value.decode("latin-1").split(";"):
                cookie, _, secret = pair.strip().partition("=")
                if cookie == self._cookie and _is_same(secret, self._session):
                    return True
        return False

    def middleware(self) -> Middleware:
        """Return the middleware before every handler, including those of the WebSocket and of files."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_names(request)
            if request.path == "/" and "token" in request.query:
                return self._welcome(request)
            self._check_session(request)
            return await handler(request)

        return guarded

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the security headers to a response; a handler of aiohttp's `on_response_prepare`."""
        if not _is_same(request.cookies.get(self._cookie, ""), self._session):
            # The next request may have the cookie, on a connection that counts as the owner's.
            response.force_close()
        host = request.host if _name_of(request.host) in _LOOPBACK else ""
        for name, value in _HEADERS.items():
            response.headers[name] = value.format(sockets=f"ws://{host}" if host else "")

    def _check_names(self, request: web.Request) -> None:
        if _name_of(request.host) not in _LOOPBACK:
            raise web.HTTPMisdirectedRequest(text="This server only answers to 127.0.0.1 and localhost.\n")
        # A link on another page may open ours (navigate), but its scripts must not fetch from it.
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none") and request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPForbidden(text=_FOREIGN)
        origin = request.headers.get("Origin")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if origin is None and not is_socket:
            return  # browsers send no Origin with a plain navigation
        if origin is None or origin != f"http://{request.host}":
            raise web.HTTPForbidden(text=_FOREIGN)

    def _check_session(self, request: web.Request) -> None:
        if not _is_same(request.cookies.get(self._cookie, ""), self._session):
            raise web.HTTPForbidden(
                text="Open the address that `l2rtui serve` printed. It opens one browser; for another one, start "
                "`l2rtui serve` again.\n"
            )

    def _welcome(self, request: web.Request) -> web.StreamResponse:
        """Exchange the token for the cookie, once."""
        if _is_same(request.cookies.get(self._cookie, ""), self._session):
            return web.Response(text=_WELCOME, content_type="text/html")  # the same browser, from its history
        is_known = _is_same(request.query["token"], self.token)
        if not is_known or self._is_used or request.method != "GET":
            raise web.HTTPForbidden(
                text="This address was used before, or is not whole. Start `l2rtui serve` again for a new one.\n"
            )
        self._is_used = True
        response = web.Response(text=_WELCOME, content_type="text/html")
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response


def _is_same(received: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(received.encode("utf-8", "surrogateescape"), expected.encode())


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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
