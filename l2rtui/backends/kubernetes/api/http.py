"""HTTP transport to one API server: requests, streams and websockets; logins renewed; errors as ApiError.

The official client library's models are not used: its typed objects take forty times as long to decode, and one
malformed item loses the list. Bodies are bytes here; ``structs`` decodes the kinds that are watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from l2rtui import __version__
from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo, response_error, unanswered_error
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.backends.kubernetes.api.tls import make_socket, make_tls, proxy_for

_log = logging.getLogger(__name__)

Query = Mapping[str, str] | Sequence[tuple[str, str]]
FIELD_MANAGER: Final = "l2rtui"
"""Owner of the fields that we write (server-side apply), and the product of the ``User-Agent`` header."""
JSON: Final = "application/json"
_CONNECT_SECONDS = 10.0
_MAX_SESSIONS = 2
_CLOSE_SECONDS = 1.0
"""Longest wait for connections that were cut on this side; normally a few turns of the event loop."""


class Connection:
    """Connection pool to one API server, by its base URL; sockets are opened when they are first needed."""

    def __init__(self, access: Access, credentials: Credentials | None = None) -> None:
        self.access = access
        self.server = access.server
        self._credentials = credentials or make_credentials(access)
        self._proxy = proxy_for(access)
        self._sessions: dict[tuple[bytes, bytes], aiohttp.ClientSession] = {}
        # Responses whose bodies are being read, by session: close() must wake their readers.
        self._reading: dict[aiohttp.ClientResponse, aiohttp.ClientSession] = {}
        # All sockets, as aiohttp forgets those of abandoned responses; weak references, or none would be freed.
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._encoding = "gzip"

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
        long as the time allows, which is safe for every method: the server has not processed it.

        Args:
            body: Encoded as JSON unless it is bytes.
            timeout_seconds: For the request with all its repetitions.
            on_start: Gets the first bytes of a successful response as soon as they arrive.

        Raises:
            ApiError: no response within the time, or one with an error status.
        """
        until = time.monotonic() + timeout_seconds
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        request = RequestInfo(method, path)
        headers = {"Content-Type": content_type} if data is not None else {}
        while True:
            _log.debug("%s %s", method, path)  # no query and no body: a log is no place for what users wrote
            left = max(0.05, until - time.monotonic())
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=min(_CONNECT_SECONDS, left))
            try:
                async with self._opened(request, query, headers=headers, data=data, timeout=timeout) as response:
                    if on_start is None:
                        return await response.read()
                    head = await response.content.readany()
                    on_start(head)
                    return head + await response.read()
            except ApiError as error:
                # No other error is retried here: whether a write may be repeated, only the caller knows.
                pause = error.retry_after_seconds if error.is_busy else None
                if pause is None or time.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(max(pause, 0.1))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unanswered(request, self.server, error, timeout_seconds) from error

    async def get_json(self, path: str, query: Query | None = None) -> Any:
        """GET a path and decode the response; ApiError as request(), or for no JSON (a proxy, a log-in page)."""
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
            idle_timeout_seconds: Longest silence; then the connection counts as dead.
            on_open: Called when the headers have arrived, which may be long before the first chunk.

        Raises:
            ApiError: an error status, a cut in the middle, or too long a silence.
        """
        request = RequestInfo("GET", path)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(_CONNECT_SECONDS, idle_timeout_seconds),
            sock_read=idle_timeout_seconds,
        )
        try:
            async with self._opened(request, query, timeout=timeout) as response:
                if on_open is not None:
                    on_open()
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unanswered(request, self.server, error, idle_timeout_seconds) from error

    async def websocket(
        self,
        path: str,
        query: Query | None = None,
        *,
        protocols: Sequence[str],
        heartbeat_seconds: float | None = 20.0,
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket (exec, attach, port-forward); the caller closes it.

        Args:
            protocols: Subprotocols, the preferred one first.
            heartbeat_seconds: Interval of pings; None for none.

        Raises:
            ApiError: the server does not open it.
        """
        request = RequestInfo("GET", path)
        for is_last in (False, True):
            login = await self._credentials.login()
            try:
                return await self._session(login).ws_connect(
                    self._url(path, query),
                    protocols=protocols,
                    # Old servers answer 406 to a request for JSON where there is no content type.
                    headers=[*self._headers(login), ("Accept", "*/*")],
                    heartbeat=heartbeat_seconds,
                    max_msg_size=0,  # the server's messages have no limit
                    proxy=self._proxy,
                    server_hostname=self.access.tls_server_name or None,
                    timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                )
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and not is_last and await self._is_renewed(login):
                    continue
                # aiohttp drops the body of a failed handshake, and with it the server's reason: GET it again.
                raise await self._refusal(request, query, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unanswered(request, self.server, error, _CONNECT_SECONDS) from error
        raise AssertionError  # pragma: no cover  (the last round returns or raises)

    async def choose_encoding(self) -> None:
        """Turn gzip off for a server in a private network: compressing a long list takes longer than sending it."""
        host = urlsplit(self.server).hostname or ""
        with contextlib.suppress(OSError, ValueError):
            addresses = await asyncio.get_running_loop().getaddrinfo(host, None)
            if all(ipaddress.ip_address(address[0]).is_private for *_, address in addresses):
                self._encoding = "identity"

    async def close(self) -> None:
        """Close all connections; open streams end with an error."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await self._close(session)
        await self._close_untracked()

    # --- inside ----------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _opened(
        self,
        request: RequestInfo,
        query: Query | None,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's own, with its parts)
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response with a status below 300, renewing the login once if need be; ApiError for any other."""
        login = await self._credentials.login()
        url, is_last = self._url(request.path, query), False
        while True:
            session = self._session(login)
            async with session.request(
                request.method,
                url,
                headers=[*self._headers(login), *(headers or {}).items()],
                data=data,
                timeout=timeout,
                proxy=self._proxy,
                server_hostname=self.access.tls_server_name or None,
                allow_redirects=False,  # a redirect would carry the token to another server
            ) as response:
                if response.status < 300:
                    self._reading[response] = session
                    try:
                        yield response
                    finally:
                        del self._reading[response]
                        _abort_unread(response)
                    return
                if response.status != 401 or is_last or not await self._is_renewed(login):
                    # At most 1 MiB of the body: an error page of a proxy needs no more.
                    retry_after = response.headers.get("Retry-After", "")
                    raise response_error(
                        request, response.status, await response.content.read(1 << 20), retry_after
                    )
            login, is_last = await self._credentials.login(), True

    async def _is_renewed(self, refused: ApiLogin) -> bool:
        return not (await self._credentials.renew(refused)).is_same_as(refused)

    async def _refusal(
        self, request: RequestInfo, query: Query | None, error: aiohttp.WSServerHandshakeError
    ) -> ApiError:
        timeout = aiohttp.ClientTimeout(total=_CONNECT_SECONDS)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            try:
                async with self._opened(request, query, timeout=timeout):
                    pass
            except ApiError as refusal:
                if refusal.status == error.status:
                    return refusal
        # Often a kubelet that the server cannot reach: the plain GET then only says that an upgrade is required.
        return response_error(request, error.status, f"it could not be opened (HTTP {error.status})".encode())

    def _session(self, login: ApiLogin) -> aiohttp.ClientSession:
        """Return the session of a client certificate: TLS binds connections to it, so a renewed one gets others."""
        key = (login.certificate, login.key)
        session = self._sessions.get(key)
        if session is None:
            tls = make_tls(self.access, login)
            connector = aiohttp.TCPConnector(
                ssl=True if tls is None else tls, limit=0, socket_factory=self._socket, keepalive_timeout=60
            )
            session = aiohttp.ClientSession(
                connector=connector,
                read_bufsize=1 << 18,  # four times the default: fewer wake-ups for pages of megabytes
                headers={
                    "User-Agent": f"{FIELD_MANAGER}/{__version__}",
                    "Accept": JSON,
                    "Accept-Encoding": self._encoding,
                },
            )
            self._sessions[key] = session
            for old in list(self._sessions)[:-_MAX_SESSIONS]:
                # Its streams began two certificates ago; their readers reconnect.
                self._spawn_close(self._sessions.pop(old))
        return session

    def _spawn_close(self, session: aiohttp.ClientSession) -> None:
        task = asyncio.get_running_loop().create_task(self._close(session))
        task.add_done_callback(lambda done: done.exception())

    async def _close(self, session: aiohttp.ClientSession) -> None:
        """Close the connections of a session, and wake readers, whom aiohttp itself would let wait for ever."""
        for response, owner in self._reading.items():
            if owner is session:
                response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        await session.close()

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = make_socket(address)
        self._sockets.add(made)
        return made

    async def _close_untracked(self) -> None:
        """Shut down the sockets that aiohttp no longer tracks, and wait until they are closed.

        aiohttp waits neither for a connection whose response was abandoned nor for one that is still being
        established. The former stays open for up to 30 s, until the server has answered the TLS close_notify; an
        event loop that ends before that leaks the socket.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while left := [open_socket for open_socket in self._sockets if open_socket.fileno() >= 0]:
                    for open_socket in left:
                        with contextlib.suppress(OSError):  # not connected yet, or not any more
                            open_socket.shutdown(socket.SHUT_RDWR)
                    await asyncio.sleep(0.001)

    def _headers(self, login: ApiLogin) -> list[tuple[str, str]]:
        authorization = [("Authorization", login.authorization)] if login.authorization else []
        return [*authorization, *self.access.user.impersonate]

    def _url(self, path: str, query: Query | None) -> URL:
        return URL(f"{self.server}{path}{'?' + urlencode(query) if query else ''}", encoded=True)


def _abort_unread(response: aiohttp.ClientResponse) -> None:
    """Abort the connection of a response that was not read to its end: no other request can use it.

    close() instead has no effect if the server has closed while the reader was behind: asyncio's TLS transport then
    takes itself for closing already.
    """
    if (
        not response.content.is_eof()
        and response.connection is not None
        and response.connection.transport is not None
    ):
        response.connection.transport.abort()


def decode_json(request: RequestInfo, body: bytes) -> Any:
    """Decode the body of a response; ApiError when it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise ApiError(
            f"The answer to {request} is not JSON.", "Is there a proxy or a log-in page before the API server?"
        ) from error


def _unanswered(request: RequestInfo, server: str, error: BaseException, seconds: float) -> ApiError:
    if isinstance(error, aiohttp.ConnectionTimeoutError):  # its limit is shorter than that of the request
        seconds = min(seconds, _CONNECT_SECONDS)
    is_refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
    return unanswered_error(request, server, _cause(error, seconds), is_refused=is_refused)


def _cause(error: BaseException, seconds: float) -> str:
    """Describe in few words why there was no response."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {seconds:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, OSError):
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionResetError):
        return "the connection was cut"
    return str(error) or type(error).__name__
