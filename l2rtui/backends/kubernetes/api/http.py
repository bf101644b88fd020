"""Connections to the API server: raw bytes in and out, logins renewed, errors as sentences.

No model of the client library is used: typed objects cost forty times the decoding, and one odd item loses a whole
list. What comes back is bytes; ``structs`` decodes the kinds that are watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
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
from l2rtui.backends.kubernetes.credentials import Credentials, Login, make_credentials
from l2rtui.backends.kubernetes.errors import ApiError, Asked, from_answer, no_answer
from l2rtui.backends.kubernetes.kubeconfig import Access
from l2rtui.backends.kubernetes.labels import FIELD_MANAGER
from l2rtui.backends.kubernetes.transport import make_socket, make_tls, proxy_for

Query = Mapping[str, str] | Sequence[tuple[str, str]]
JSON: Final = "application/json"
_CONNECT_SECONDS = 10.0
_SESSIONS_KEPT = 2
_CUT_SECONDS = 1.0
"""Longest time for connections to be gone that have been cut on this side: a few turns of the event loop."""


class Connection:
    """The way to one API server; it opens sockets when they are first needed.

    Attributes:
        server: Base URL.
    """

    def __init__(self, access: Access, credentials: Credentials | None = None) -> None:
        self.access = access
        self.server = access.server
        self._credentials = credentials or make_credentials(access)
        self._proxy = proxy_for(access)
        self._sessions: dict[tuple[bytes, bytes], aiohttp.ClientSession] = {}
        self._reading: dict[aiohttp.ClientResponse, aiohttp.ClientSession] = {}
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
        """Ask once and give the answer's body.

        A login that the server refuses is renewed once; an answer "too many requests" is obeyed and the request
        repeated while there is time: the server has not looked at it.

        Args:
            body: Encoded as JSON unless it is bytes.
            on_start: Gets the first bytes of a good answer as soon as they are there.

        Raises:
            ApiError: no answer within the time, or one that is an error.
        """
        until = time.monotonic() + timeout_seconds
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        asked = Asked(method, path)
        headers = {"Content-Type": content_type} if data is not None else {}
        while True:
            left = max(0.05, until - time.monotonic())
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=min(_CONNECT_SECONDS, left))
            try:
                async with self._opened(asked, query, headers=headers, data=data, timeout=timeout) as response:
                    if on_start is None:
                        return await response.read()
                    head = await response.content.readany()
                    on_start(head)
                    return head + await response.read()
            except ApiError as error:
                pause = error.retry_after_seconds if error.is_busy else None
                if pause is None or time.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(max(pause, 0.1))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unanswered(asked, self.server, error, timeout_seconds) from error

    async def get_json(self, path: str, query: Query | None = None) -> Any:
        """Ask for an object of any kind and decode it.

        Raises:
            ApiError: as request(), or the answer is not JSON (a proxy or a log-in page answered).
        """
        return decoded(Asked("GET", path), await self.request("GET", path, query=query))

    async def stream(
        self,
        path: str,
        query: Query | None = None,
        *,
        idle_timeout_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes]:
        """Give an answer as it comes, in chunks of any size; ends when the server ends it.

        Args:
            idle_timeout_seconds: Longest silence; then the connection counts as dead.
            on_open: Called when the server has begun to answer, which may be long before the first chunk.

        Raises:
            ApiError: an error instead of a stream, a cut in its middle, or too long a silence.
        """
        asked = Asked("GET", path)
        timeout = aiohttp.ClientTimeout(
            total=None,
            sock_connect=min(_CONNECT_SECONDS, idle_timeout_seconds),
            sock_read=idle_timeout_seconds,
        )
        try:
            async with self._opened(asked, query, timeout=timeout) as response:
                if on_open is not None:
                    on_open()
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unanswered(asked, self.server, error, idle_timeout_seconds) from error

    async def websocket(
        self,
        path: str,
        query: Query | None = None,
        *,
        protocols: Sequence[str],
        heartbeat_seconds: float | None = 20.0,
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket (exec, attach, port-forward); the caller closes it.

        Raises:
            ApiError: the server does not open it.
        """
        asked = Asked("GET", path)
        for is_last in (False, True):
            login = await self._credentials.login()
            try:
                return await self._session(login).ws_connect(
                    self._url(path, query),
                    protocols=protocols,
                    # What is opened has no type of content, and old servers refuse to promise JSON for it.
                    headers=[*self._headers(login), ("Accept", "*/*")],
                    heartbeat=heartbeat_seconds,
                    max_msg_size=0,
                    proxy=self._proxy,
                    server_hostname=self.access.tls_server_name or None,
                    timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                )
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and not is_last and await self._is_renewed(login):
                    continue
                # The handshake hides the body, and with it the server's reason: ask for it the plain way.
                raise await self._refusal(asked, query, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unanswered(asked, self.server, error, _CONNECT_SECONDS) from error
        raise AssertionError  # pragma: no cover  (the last round returns or raises)

    async def choose_encoding(self) -> None:
        """Ask a server that is near for plain bytes: it compresses a long list for longer than the wire takes."""
        host = urlsplit(self.server).hostname or ""
        with contextlib.suppress(OSError, ValueError):
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
            if all(ipaddress.ip_address(address[0]).is_private for *_, address in found):
                self._encoding = "identity"

    async def close(self) -> None:
        """Close all connections; streams that are open end with an error."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await self._close(session)
        await self._cut_rest()

    # --- inside ----------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _opened(
        self,
        asked: Asked,
        query: Query | None,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's own, with its parts)
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer below 300, with the login renewed once if need be; ApiError for any other."""
        login = await self._credentials.login()
        url, is_last = self._url(asked.path, query), False
        while True:
            session = self._session(login)
            async with session.request(
                asked.method,
                url,
                headers=[*self._headers(login), *(headers or {}).items()],
                data=data,
                timeout=timeout,
                proxy=self._proxy,
                server_hostname=self.access.tls_server_name or None,
                allow_redirects=False,
            ) as response:
                if response.status < 300:
                    self._reading[response] = session
                    try:
                        yield response
                    finally:
                        del self._reading[response]
                        _cut_unread(response)
                    return
                if response.status != 401 or is_last or not await self._is_renewed(login):
                    retry_after = response.headers.get("Retry-After", "")
                    raise from_answer(asked, response.status, await response.content.read(1 << 20), retry_after)
            login, is_last = await self._credentials.login(), True

    async def _is_renewed(self, refused: Login) -> bool:
        return not (await self._credentials.renew(refused)).is_same_as(refused)

    async def _refusal(self, asked: Asked, query: Query | None, error: aiohttp.WSServerHandshakeError) -> ApiError:
        timeout = aiohttp.ClientTimeout(total=_CONNECT_SECONDS)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            try:
                async with self._opened(asked, query, timeout=timeout):
                    pass
            except ApiError as told:
                if told.status == error.status:
                    return told
        # Often a kubelet that the server cannot reach; the plain answer says no more than that a socket is wanted.
        return from_answer(asked, error.status, f"it could not be opened (HTTP {error.status})".encode())

    def _session(self, login: Login) -> aiohttp.ClientSession:
        """The connections that speak with this client certificate; a renewed one gets new connections."""
        key = (login.certificate, login.key)
        session = self._sessions.get(key)
        if session is None:
            tls = make_tls(self.access, login)
            connector = aiohttp.TCPConnector(
                ssl=True if tls is None else tls, limit=0, socket_factory=self._socket, keepalive_timeout=60
            )
            session = aiohttp.ClientSession(
                connector=connector,
                read_bufsize=1 << 18,
                headers={
                    "User-Agent": f"{FIELD_MANAGER}/{__version__}",
                    "Accept": JSON,
                    "Accept-Encoding": self._encoding,
                },
            )
            self._sessions[key] = session
            for old in list(self._sessions)[:-_SESSIONS_KEPT]:
                # What still runs on it began two certificates ago, and its reader will ask again.
                self._spawn_close(self._sessions.pop(old))
        return session

    def _spawn_close(self, session: aiohttp.ClientSession) -> None:
        task = asyncio.get_running_loop().create_task(self._close(session))
        task.add_done_callback(lambda done: done.exception())

    async def _close(self, session: aiohttp.ClientSession) -> None:
        """Close its connections; aiohttp itself would let who reads from one of them wait for ever."""
        for response, owner in self._reading.items():
            if owner is session:
                response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        await session.close()

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = make_socket(address)
        self._sockets.add(made)
        return made

    async def _cut_rest(self) -> None:
        """Cut what aiohttp has let go of, and wait until it is gone.

        aiohttp does not wait for a connection whose answer nobody wants any more, nor for one that is still being
        made. The first stays for up to 30 s, until the server has said goodbye, too, as TLS wants it. An event loop
        that ends before that leaves the socket open.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_SECONDS):
                while left := [one for one in self._sockets if one.fileno() >= 0]:
                    for one in left:
                        with contextlib.suppress(OSError):  # not connected yet, or not any more
                            one.shutdown(socket.SHUT_RDWR)
                    await asyncio.sleep(0.001)

    def _headers(self, login: Login) -> list[tuple[str, str]]:
        authorization = [("Authorization", login.authorization)] if login.authorization else []
        return [*authorization, *self.access.user.impersonate]

    def _url(self, path: str, query: Query | None) -> URL:
        return URL(f"{self.server}{path}{'?' + urlencode(query) if query else ''}", encoded=True)


def _cut_unread(response: aiohttp.ClientResponse) -> None:
    """Cut the connection of an answer that has not been read to its end: no other request can use it.

    Closing it instead would do nothing where the server has closed it while its reader was behind: asyncio's TLS
    thinks then that it is closing already, and is not.
    """
    if (
        not response.content.is_eof()
        and response.connection is not None
        and response.connection.transport is not None
    ):
        response.connection.transport.abort()


def decoded(asked: Asked, body: bytes) -> Any:
    """Decode an answer.

    Raises:
        ApiError: it is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise ApiError(
            f"The answer to {asked} is not JSON.", "Is there a proxy or a log-in page before the API server?"
        ) from error


def _unanswered(asked: Asked, server: str, error: BaseException, seconds: float) -> ApiError:
    is_refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
    return no_answer(asked, server, _cause(error, seconds), is_refused=is_refused)


def _cause(error: BaseException, seconds: float) -> str:
    """Why there was no answer, in few words."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {seconds:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, OSError):
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionResetError):
        return "the connection was cut"
    return str(error) or type(error).__name__
