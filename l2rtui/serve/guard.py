"""Who may speak to the server: whoever was given the address with the token, in the browser that opened it.

The loopback address is no border: every user of a login node reaches it, and so does every web page that a browser
on that machine has open. Against the first there is a token; it opens one session and is worth nothing after, so an
address in a history, a log or on a screen that somebody looks at does not matter. Against the second there is the
cookie that other sites cannot send along (SameSite), and a look at Host and Origin: a name that was made to resolve
to 127.0.0.1 (DNS rebinding) is none of ours, and a page of another origin opens no WebSocket.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Any port: the far end of a tunnel often has another one."""
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
# A page, no redirect: a browser that follows a redirect from elsewhere would not send the strict cookie along.
_WELCOME = (
    '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>l2rtui</title>'
    "<body style='background:#0c181f'>"
)


class Guard:
    """One token, one session.

    Attributes:
        token: What the address carries until it was used.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._session = secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = (
            f"l2rtui-{secrets.token_hex(4)}"  # cookies know no ports: two servers must not share one name
        )
        self._is_used = False

    def middleware(self) -> Middleware:
        """What stands before every handler, the WebSocket's and the files' too."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._check_names(request)
            if request.path == "/" and "token" in request.query:
                return self._welcome(request)
            self._check_session(request)
            return await handler(request)

        return guarded

    @staticmethod
    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        """Say to the browser what the page may do; a signal handler for each response before it begins."""
        host = request.host if _name_of(request.host) in _LOOPBACK else ""
        for name, value in _HEADERS.items():
            response.headers[name] = value.format(sockets=f"ws://{host}" if host else "")

    def _check_names(self, request: web.Request) -> None:
        if _name_of(request.host) not in _LOOPBACK:
            raise web.HTTPMisdirectedRequest(text="This server answers to 127.0.0.1 and localhost alone.\n")
        site = request.headers.get("Sec-Fetch-Site", "none")
        if site not in ("same-origin", "none") and request.headers.get("Sec-Fetch-Mode") != "navigate":
            raise web.HTTPForbidden(text=_FOREIGN)
        origin = request.headers.get("Origin")
        is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
        if origin is None and not is_socket:
            return  # browsers send none when they open a page of their own accord
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
            return web.Response(text=_WELCOME, content_type="text/html")  # the same browser, by its history
        is_known = _is_same(request.query["token"], self.token)
        if not is_known or self._is_used or request.method != "GET":
            raise web.HTTPForbidden(
                text="This address was used before, or is not whole. Start `l2rtui serve` again for a new one.\n"
            )
        self._is_used = True
        response = web.Response(text=_WELCOME, content_type="text/html")
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Strict", path="/")
        return response


def _is_same(given: str, right: str) -> bool:
    """Compare without telling by the time how much was right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


def _name_of(host: str) -> str:
    """The name in a Host header, without the port; empty where it is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
