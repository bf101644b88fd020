"""Session of the official client library for one server.

Its ``ApiClient`` builds every request, and its pool sends them all: reads, writes, watches and websockets. TLS,
server name and proxy come from its ``Configuration``, the login from its refresh hook. Its generated half
(``client.api`` and ``client.models``) is not used: typed objects take forty times as long to decode and 1.1 s of
CPU to import, and one malformed item fails the whole list. Response bodies stay bytes; ``structs`` decodes the
watched kinds.

This module adds features that the library lacks: sockets with keep-alive, the client key without a file that
outlives its loading, SOCKS, and no redirects. ``http`` imports it when a process first needs it, see ``transport``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from l2rtui.backends.kubernetes.api.connectors import make_connector
from l2rtui.backends.kubernetes.api.credentials import Credentials
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, Confidential
from l2rtui.backends.kubernetes.api.sockets import OpenSockets, authority_error, http_proxy, load_certificate
from l2rtui.backends.kubernetes.api.transport import (
    CUT,
    Answer,
    HandshakeError,
    Headers,
    NoAnswerError,
    RedirectError,
    TimeLimits,
    closed_error,
)

AUTH: Final = "BearerToken"
"""Name of the library's security scheme; its value is the whole ``Authorization`` header, Bearer or Basic."""
_SENDINGS: Final[ContextVar[list[str] | None]] = ContextVar("sendings", default=None)
_MAX_CLIENTS = 2


class _SignedRequest(Confidential, frozen=True):
    """Request as prepared by the library.

    Attributes:
        login: The login that it contains.
    """

    client: ApiClient
    url: URL
    headers: dict[str, str]
    body: Any
    login: ApiLogin


class _SessionAnswer:
    """Response of the session; see ``Answer``."""

    def __init__(self, response: aiohttp.ClientResponse, login: ApiLogin, *, is_repeated: bool) -> None:
        self.status = response.status
        self.login = login
        self.is_repeated = is_repeated
        self.read_some = response.content.readany
        self._headers = response.headers

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        return self._headers.get(name, "")


class LibrarySession:
    """Clients of the library for one server: one for each client certificate.

    Args:
        proxy: URL of the proxy; empty for none.
        sockets: Creates and tracks the sockets of the pools.
        headers: Sent with all requests.
    """

    def __init__(
        self, access: Access, credentials: Credentials, *, proxy: str, sockets: OpenSockets, headers: Headers
    ) -> None:
        self._access = access
        self._credentials = credentials
        self._proxy = proxy
        self._sockets = sockets
        self._headers = headers
        self._is_closed = False
        self._clients: dict[tuple[bytes, bytes], ApiClient] = {}
        # Responses whose bodies are being read, by client: close() must wake their readers.
        self._reading: dict[aiohttp.ClientResponse, ApiClient] = {}

    @contextlib.asynccontextmanager
    async def opened(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: object,
        limits: TimeLimits,
    ) -> AsyncIterator[Answer]:
        """Send a request and open its response.

        Raises:
            NoAnswerError, RedirectError, TimeoutError, OSError: This server sent no response.
        """
        timeout = aiohttp.ClientTimeout(total=limits.total, sock_connect=limits.connect, sock_read=limits.silence)
        with _translated(limits):
            signed = await self._signed(method, path, query, headers, body)
            with counted_sendings() as sendings:
                answer = await signed.client.call_api(
                    method, signed.url, signed.headers, signed.body, _request_timeout=timeout
                )
            response: aiohttp.ClientResponse = answer.response
            async with response:
                self._reading[response] = signed.client
                try:
                    yield _SessionAnswer(response, signed.login, is_repeated=len(sendings) > 1)
                finally:
                    del self._reading[response]
                    _abort_unread(response)

    async def websocket(
        self,
        path: str,
        query: Sequence[tuple[str, str]],
        *,
        protocols: Sequence[str],
        heartbeat_seconds: float | None,
        limits: TimeLimits,
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket; raises HandshakeError where the server refuses it, otherwise like opened()."""
        # Old servers answer 406 to a request for JSON if the response has no content type.
        with _translated(limits):
            signed = await self._signed("GET", path, query, {"Accept": "*/*"}, None)
            try:
                return await session_of(signed.client).ws_connect(
                    signed.url,
                    protocols=protocols,
                    headers=signed.headers,
                    heartbeat=heartbeat_seconds,
                    max_msg_size=0,  # the server's messages have no size limit
                    proxy=signed.client.configuration.proxy,
                    server_hostname=signed.client.configuration.tls_server_name,
                    timeout=aiohttp.ClientWSTimeout(ws_close=2.0),
                )
            except aiohttp.WSServerHandshakeError as error:
                raise HandshakeError(error.status, signed.login) from error

    async def close(self) -> None:
        """Close all connections and wake their readers."""
        # After a gather() has failed, its other requests may still come; their new client would never be closed.
        self._is_closed = True
        await self.close_clients()

    async def close_clients(self) -> None:
        """Close all connections; the next request opens others."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await self._close(client)

    # --- inside ----------------------------------------------------------------------------------------------
    async def _signed(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: object,
    ) -> _SignedRequest:
        """Let the library prepare a request, with the login that its hook takes from our credentials."""
        login = await self._credentials.login()
        client = self._client(login)
        _, url, sent, encoded, _ = await client.param_serialize(
            method, path, None, list(query), dict(headers), body, auth_settings=[AUTH]
        )
        authorization = sent.pop("authorization", None) or ""
        if authorization:
            sent["Authorization"] = authorization
        # Encoded: otherwise aiohttp would decode and encode names again, but they are data.
        return _SignedRequest(
            client, URL(url, encoded=True), sent, encoded, replace(login, authorization=authorization)
        )

    async def _authorize(self, configuration: Configuration) -> None:
        """Set the current login; the library calls this hook for each request."""
        configuration.api_key[AUTH] = (await self._credentials.login()).authorization

    def _client(self, login: ApiLogin) -> ApiClient:
        """Return the client of a certificate: TLS binds connections to it, so a renewed one needs a new client."""
        key = (login.certificate, login.key)
        if self._is_closed:
            raise closed_error(self._access.server)
        if (client := self._clients.get(key)) is None:
            client = self._clients[key] = self._make_client(login)
            for old in list(self._clients)[:-_MAX_CLIENTS]:
                # Its streams began two certificates ago; their readers reconnect.
                self._spawn_close(self._clients.pop(old))
        return client

    def _make_client(self, login: ApiLogin) -> ApiClient:
        """Create a client of the library with its pool, which opens connections when they are needed.

        Raises:
            ConfigError: The authority's certificate cannot be used.
            ApiError: The client's certificate and key cannot be used.
        """
        configuration = self._make_configuration()
        try:
            client = ApiClient(configuration)
        except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
            raise authority_error(self._access) from error
        tls: ssl.SSLContext = client.rest_client.ssl_context
        if login.certificate:
            load_certificate(tls, login, self._access.user.name)
        client.user_agent = dict(self._headers)["User-Agent"]
        configuration.client_session_kwargs = {
            # An attribute of the session, as the library's own headers are a dict: Impersonate-Group may occur
            # repeatedly.
            "headers": CIMultiDict(self._headers),
            "connector": make_connector(
                self._proxy,
                tls=tls,
                limit=0,
                keepalive_timeout=60,
                socket_factory=self._sockets.make,
                on_tunnel=self._sockets.adopt,
            ),
            "read_bufsize": 1 << 18,  # four times aiohttp's default: fewer wake-ups for pages of megabytes
            "trust_env": False,  # True would read ~/.netrc, and choose proxies by other rules than kubectl
        }
        return client

    def _make_configuration(self) -> Configuration:
        """Translate the context into the library's configuration."""
        access = self._access
        try:
            authority = access.ca.decode("ascii") or None
        except UnicodeDecodeError as error:
            raise authority_error(access) from error
        configuration = Configuration(
            access.server,
            api_key={AUTH: ""},  # without an entry the library would not call the hook
            ca_cert_data=authority,
            verify_ssl=not access.is_insecure,
            tls_server_name=access.tls_server_name or None,
            proxy=http_proxy(self._proxy),
            trace_configs=[_no_redirects(), _sendings()],
        )
        # See `tls`.
        configuration.disable_strict_ssl_verification = True
        configuration.refresh_api_key_hook = self._authorize  # type: ignore[assignment]
        return configuration

    def _spawn_close(self, client: ApiClient) -> None:
        task = asyncio.get_running_loop().create_task(self._close(client))
        task.add_done_callback(lambda done: done.exception())

    async def _close(self, client: ApiClient) -> None:
        """Close the connections of a client, and wake readers, which aiohttp would leave waiting forever."""
        for response, owner in self._reading.items():
            if owner is client:
                response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        await close_client(client)


@contextlib.contextmanager
def _translated(limits: TimeLimits) -> Iterator[None]:
    """Translate the errors of aiohttp, which other modules do not know."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:  # its timeout is shorter than the request's
        seconds = min(limits.total or limits.silence or limits.connect, limits.connect)
        raise NoAnswerError(f"nothing came for {seconds:.0f} s") from error
    except TimeoutError:
        raise
    except aiohttp.ClientConnectorCertificateError as error:
        raise NoAnswerError(f"its certificate is not trusted: {error.certificate_error}") from error
    except aiohttp.ClientConnectorError as error:
        is_refused = isinstance(error.os_error, ConnectionRefusedError)
        cause = error.os_error.strerror or str(error.os_error)
        raise NoAnswerError(cause or str(error), is_refused=is_refused) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionResetError) as error:
        raise NoAnswerError(CUT) from error
    except aiohttp.ClientError as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error


def _abort_unread(response: aiohttp.ClientResponse) -> None:
    """Abort the connection of a response that was not fully read: no other request can use it.

    close() would have no effect if the server has closed while the reader was behind: asyncio's TLS transport then
    considers itself already closing.
    """
    if (
        not response.content.is_eof()
        and response.connection is not None
        and response.connection.transport is not None
    ):
        response.connection.transport.abort()


def session_of(client: ApiClient) -> aiohttp.ClientSession:
    """Return the pool of a client, which the library creates with its first request.

    Used for websockets: the library's own ``WsApiClient`` accesses the pool in the same way, but ignores proxy and
    server name, and has no port-forward.
    """
    rest = client.rest_client
    if rest.pool_manager is None:
        rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001
    return rest.pool_manager


async def close_client(client: ApiClient) -> None:
    """Close a client and its connections; the library does not close a connector that was passed in."""
    await client.close()  # type: ignore[no-untyped-call]
    await client.configuration.client_session_kwargs["connector"].close()


def _no_redirects() -> aiohttp.TraceConfig:
    """Return a trace that ends a request at its first redirect: the library cannot disable redirects."""

    async def refuse(_session: object, _context: SimpleNamespace, params: Any) -> None:
        params.response.close()
        raise RedirectError(params.response.status, params.response.headers.get("Location", ""))

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace


@contextlib.contextmanager
def counted_sendings() -> Iterator[list[str]]:
    """Record each sending of a request in the block: a second entry is a repetition by aiohttp.

    aiohttp repeats an idempotent request once when its connection broke (RFC 9110, 9.2.2), and returns only the
    response to the repetition: 404 for an object that the first try has deleted.
    """
    sendings: list[str] = []
    token = _SENDINGS.set(sendings)
    try:
        yield sendings
    finally:
        _SENDINGS.reset(token)


def _sendings() -> aiohttp.TraceConfig:
    async def record(_session: object, _context: SimpleNamespace, params: Any) -> None:
        if (sendings := _SENDINGS.get()) is not None:
            sendings.append(params.method)

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(record)
    return trace
