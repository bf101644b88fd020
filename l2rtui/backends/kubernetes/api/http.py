"""Requests, streams and websockets to one API server: logins renewed, a busy server waited for, errors as ApiError.

``transport`` sends them: lean reads, or the official client library's session. Responses are read as bytes. Renewal
after 401 and repetition after 429 are our own: the library does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from l2rtui import __version__
from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import (
    PROXY,
    ApiError,
    MissingRight,
    RequestInfo,
    response_error,
    unanswered_error,
)
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.library_import import import_session, imported_session
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.backends.kubernetes.api.sockets import OpenSockets, check_proxy, environment_proxy
from l2rtui.backends.kubernetes.api.transport import (
    Answer,
    HandshakeError,
    LeanTransport,
    NoAnswerError,
    RedirectError,
    TimeLimits,
    closed_error,
)
from runtime.base import bounded_json

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

    from l2rtui.backends.kubernetes.api.session import LibrarySession

_log = logging.getLogger(__name__)

Query = Mapping[str, str] | Sequence[tuple[str, str]]
JSON: Final = "application/json"
FIELD_MANAGER: Final = "l2rtui"
"""Owner of the fields that we write (server-side apply), and the product in the ``User-Agent`` header."""
_CONNECT_SECONDS = 10.0
_BUSY_SECONDS: Final = 1.0
"""Pause after 429 without Retry-After, as load balancers send it; API servers ask for this second themselves."""
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_REVIEWS: Final = "/apis/authorization.k8s.io/"
"""POSTs that ask for a permission and change nothing."""
_MOST_OF_ERROR: Final = 1 << 20
"""Bytes of an error that are read, which is enough for a proxy's page."""


class Connection:
    """Connection pool to one API server, by its base URL; sockets are opened when they are first needed."""

    def __init__(self, access: Access, credentials: Credentials | None = None) -> None:
        self.access = access
        self.server = access.server
        # The mapping from a permission to its Role belongs to higher layers; the caller that connects passes it in.
        self.advise: Callable[[MissingRight], str] | None = None
        self._credentials = credentials or make_credentials(access)
        # As in client-go: NO_PROXY does not apply to the proxy of a kubeconfig.
        self._proxy = check_proxy(access.proxy_url) if access.proxy_url else environment_proxy(access.server)
        self._sockets = OpenSockets()
        self._lean = LeanTransport(access, self._sockets)
        self.session: LibrarySession | None = None
        self._encoding = "gzip"
        self._is_closed = False
        self._ahead_seconds = 0.0

    def now(self) -> float:
        """Return the time by the server's clock, in seconds since the epoch, exact to a second."""
        return time.time() + self._ahead_seconds

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object | None = None,
        content_type: str = JSON,
        timeout_seconds: float = 30.0,
        on_start: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Send a request and return the body of the response.

        A login that the server refuses is renewed once. After 429 (too many requests) the request is repeated as
        long as the timeout allows, which is safe for every method: the server has not processed it.

        Args:
            body: Dicts, lists and plain values; the library encodes them as JSON.
            timeout_seconds: Timeout of the request including all repetitions.
            on_start: Called with the first bytes of a successful response as soon as they arrive.

        Raises:
            ApiError: No response within the timeout, or a response with an error status.
        """
        until = time.monotonic() + timeout_seconds
        request = RequestInfo(method, path)
        headers = {"Content-Type": content_type} if body is not None else {}
        while True:
            _log.debug("%s %s", method, path)  # no query and no body: a log must not contain user data
            left = max(0.05, until - time.monotonic())
            limits = TimeLimits(left, min(_CONNECT_SECONDS, left))
            try:
                async with self._opened(request, query, limits, headers=headers, body=body) as answer:
                    parts = [await answer.read_some()]
                    if on_start is not None:
                        on_start(parts[0])
                    while parts[-1]:
                        parts.append(await answer.read_some())
                    return b"".join(parts)
            except ApiError as error:
                # No other error is retried here: only the caller knows whether a write may be repeated.
                pause = _BUSY_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
                if not error.is_busy or time.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(max(pause, 0.1))
            except (NoAnswerError, OSError, TimeoutError) as error:
                raise _unanswered(request, self._path_to_server, error, timeout_seconds) from error

    async def get_json(self, path: str, query: Query | None = None) -> Any:
        """GET a path and decode the response. Raises ApiError like request(), and if the body is not JSON (a proxy,
        a log-in page).
        """
        return decode_json(RequestInfo("GET", path), await self.request("GET", path, query=query))

    async def stream(
        self,
        path: str,
        query: Query | None = None,
        *,
        idle_timeout_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes]:
        """GET a path and yield the response in chunks of any size, until the server ends it.

        Args:
            idle_timeout_seconds: Longest silence after which the connection counts as dead.
            on_open: Called when the headers have arrived, which may be long before the first chunk.

        Raises:
            ApiError: An error status, a broken connection, or too long a silence.
        """
        request = RequestInfo("GET", path)
        limits = TimeLimits(None, min(_CONNECT_SECONDS, idle_timeout_seconds), idle_timeout_seconds)
        try:
            async with self._opened(request, query, limits) as answer:
                if on_open is not None:
                    on_open()
                while chunk := await answer.read_some():
                    yield chunk
        except (NoAnswerError, OSError, TimeoutError) as error:
            raise _unanswered(request, self._path_to_server, error, idle_timeout_seconds) from error

    async def websocket(
        self,
        path: str,
        query: Query | None = None,
        *,
        protocols: Sequence[str],
        heartbeat_seconds: float | None = 20.0,
    ) -> ClientWebSocketResponse:
        """Open a websocket (exec, attach, port-forward); the caller closes it.

        Args:
            protocols: Subprotocols, the preferred one first.
            heartbeat_seconds: Interval of pings; None for none.

        Raises:
            ApiError: The server refuses to open it.
        """
        request = RequestInfo("GET", path)
        limits = TimeLimits(None, _CONNECT_SECONDS)
        for is_last in (False, True):
            session = await self._library()
            try:
                return await session.websocket(
                    path, _pairs(query), protocols=protocols, heartbeat_seconds=heartbeat_seconds, limits=limits
                )
            except HandshakeError as error:
                if error.status == 401 and not is_last and await self._is_renewed(error.login):
                    continue
                # aiohttp drops the body of a failed handshake, and with it the server's reason: GET it again.
                raise await self._refusal(request, query, error.status) from error
            except RedirectError as error:
                raise _redirected(request, error) from error
            except (NoAnswerError, OSError, TimeoutError) as error:
                raise _unanswered(request, self._path_to_server, error, _CONNECT_SECONDS) from error
        raise AssertionError  # pragma: no cover  (the last round returns or raises)

    async def choose_encoding(self) -> None:
        """Turn gzip off for a server in a private network: compressing a long list takes longer than sending it."""
        host = urlsplit(self.server).hostname or ""
        with contextlib.suppress(OSError, ValueError):
            addresses = await asyncio.get_running_loop().getaddrinfo(host, None)
            if all(ipaddress.ip_address(address[0]).is_private for *_, address in addresses):
                self._encoding = "identity"

    async def close(self) -> None:
        """Close all connections; open streams and later requests fail with an error."""
        self._is_closed = True
        if self.session is not None:
            await self.session.close()
        await self._lean.close()
        await self._sockets.close()

    @property
    def _path_to_server(self) -> str:
        """The server for messages, with the proxy before it: most failures behind one are the proxy's."""
        if not self._proxy:
            return self.server
        parts = urlsplit(self._proxy)  # without a password
        return f"{self.server} through the proxy {parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    # --- inside ----------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _opened(
        self,
        request: RequestInfo,
        query: Query | None,
        limits: TimeLimits,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> AsyncIterator[Answer]:
        """Open a response with a status below 300, renewing the login once if necessary; ApiError for any other
        status.
        """
        for is_last in (False, True):
            try:
                async with await self._sent(request, _pairs(query), headers or {}, body, limits) as answer:
                    self._read_clock(answer.header("Date"))
                    if answer.status < 300:
                        yield answer
                        return
                    if answer.status != 401 or is_last or not await self._is_renewed(answer.login):
                        raise await self._error(request, answer)
            except RedirectError as error:
                raise _redirected(request, error) from error

    async def _sent(
        self,
        request: RequestInfo,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: object,
        limits: TimeLimits,
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a request by the transport that fits."""
        is_review = request.method == "POST" and request.path.startswith(_REVIEWS)
        is_short_read = limits.total is not None and (request.method == "GET" or is_review)
        if self._is_closed:
            raise closed_error(self.server)
        # One pool at a time: once the session is open, reads share its connections.
        if self.session is not None or self._proxy or not is_short_read:
            session = await self._library()
            return session.opened(request.method, request.path, query, headers, body, limits)
        login = await self._credentials.login()
        sent = [*self._headers(), *headers.items()]
        sent += [("Authorization", login.authorization)] if login.authorization else []
        # As the library does: names are encoded already.
        values = "&".join(f"{name}={quote(value)}" for name, value in query)
        target = f"{request.path}?{values}" if values else request.path
        encoded = b"" if body is None else json.dumps(body).encode()
        return self._lean.opened(request.method, target, sent, encoded, login, limits)

    async def _library(self) -> LibrarySession:
        """Return the session of the client library; the first call imports it, in a thread."""
        return self.session or await self._open_session()

    async def _open_session(self) -> LibrarySession:
        module: Any = imported_session() or await asyncio.to_thread(import_session)
        if self._is_closed:
            raise closed_error(self.server)
        if self.session is None:  # several requests may have waited for the import
            self.session = module.LibrarySession(
                self.access,
                self._credentials,
                proxy=self._proxy,
                sockets=self._sockets,
                headers=self._headers(),
            )
        return self.session

    def _headers(self) -> list[tuple[str, str]]:
        encoding = ("Accept-Encoding", self._encoding)
        agent = ("User-Agent", f"{FIELD_MANAGER}/{__version__}")
        return [*self.access.user.impersonate, ("Accept", JSON), encoding, agent]

    async def _error(self, request: RequestInfo, answer: Answer) -> ApiError:
        body = b""
        while len(body) < _MOST_OF_ERROR and (part := await answer.read_some()):
            body += part
        error = response_error(request, answer.status, body[:_MOST_OF_ERROR], answer.header("Retry-After"))
        error.is_repeated = answer.is_repeated
        if error.missing is not None and self.advise is not None:
            error.hint = self.advise(error.missing)
        return error

    def _read_clock(self, date: str) -> None:
        """Compare the clocks by the Date header of a response (RFC 9110, 6.6.1)."""
        with contextlib.suppress(ValueError):
            self._ahead_seconds = _http_time(date) - time.time()

    async def _is_renewed(self, refused: ApiLogin) -> bool:
        return not (await self._credentials.renew(refused)).is_same_as(refused)

    async def _refusal(self, request: RequestInfo, query: Query | None, status: int) -> ApiError:
        limits = TimeLimits(_CONNECT_SECONDS, _CONNECT_SECONDS)
        with contextlib.suppress(NoAnswerError, OSError, TimeoutError):
            try:
                async with self._opened(request, query, limits):
                    pass
            except ApiError as refusal:
                if refusal.status == status:
                    return refusal
        # Often a kubelet that the server cannot reach: the plain GET then only says that an upgrade is required.
        return response_error(request, status, f"it could not be opened (HTTP {status})".encode())


def decode_json(request: RequestInfo, body: bytes) -> Any:
    """Decode the body of a response; ApiError if it is not JSON."""
    try:
        return bounded_json.decode(body)
    except ValueError as error:
        raise not_understood(request, "JSON") from error


def not_understood(request: RequestInfo, form: str) -> ApiError:
    """Create the error for a successful response that has another form than the API server's."""
    return ApiError(f"The answer to {request} is not {form}.", PROXY)


def _redirected(request: RequestInfo, error: RedirectError) -> ApiError:
    """Create the error for a redirect: API servers send none, but a log-in page in front of one does."""
    where = urlsplit(error.location).hostname or "another address"
    return response_error(request, error.status, f"it was redirected to {where}".encode())


def _unanswered(request: RequestInfo, server: str, error: BaseException, seconds: float) -> ApiError:
    if isinstance(error, TimeoutError):
        return unanswered_error(request, server, f"nothing came for {seconds:.0f} s")
    is_refused = isinstance(error, ConnectionRefusedError) or getattr(error, "is_refused", False)
    # asyncio's own text, "Connect call failed ('10.0.0.1', 6443)", does not say that nothing listens there.
    cause = "the connection was refused" if is_refused else str(error) or type(error).__name__
    return unanswered_error(request, server, cause, is_refused=is_refused)


def _http_time(date: str) -> float:
    """Return an IMF-fixdate in seconds since the epoch: ``Sun, 06 Nov 1994 08:49:37 GMT``. ValueError for another.

    Not by ``email.utils``, whose import takes as long as ten requests.
    """
    _, day, month, year, clock, _ = date.split()
    return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02}-{day:>02}T{clock}+00:00").timestamp()


def _pairs(query: Query | None) -> list[tuple[str, str]]:
    return list(query.items() if isinstance(query, Mapping) else query or ())
