"""HTTP transport to one API server: requests, streams and websockets; logins renewed; errors as ApiError.

The official client library's ``ApiClient`` sends the requests, see ``session``; responses are read as bytes.
Renewal after 401 and repetition after 429 are our own: the library does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from yarl import URL

from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import (
    ApiError,
    MissingRight,
    RequestInfo,
    response_error,
    unanswered_error,
)
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.backends.kubernetes.api.proxies import check_proxy, environment_proxy
from l2rtui.backends.kubernetes.api.session import (
    AUTH,
    RedirectError,
    close_client,
    counted_sendings,
    make_client,
    session_of,
)
from l2rtui.backends.kubernetes.api.sockets import OpenSockets
from runtime.base import bounded_json

_log = logging.getLogger(__name__)

Query = Mapping[str, str] | Sequence[tuple[str, str]]
JSON: Final = "application/json"
_CONNECT_SECONDS = 10.0
_MAX_CLIENTS = 2


@dataclass(frozen=True, slots=True)
class _SignedRequest:
    """Request as prepared by the library.

    Attributes:
        login: The login that it contains.
    """

    client: ApiClient
    url: URL
    headers: dict[str, str] = field(repr=False)  # includes the token
    body: Any = field(repr=False)
    login: ApiLogin


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
        self._clients: dict[tuple[bytes, bytes], ApiClient] = {}
        # Responses whose bodies are being read, by client: close() must wake their readers.
        self._reading: dict[aiohttp.ClientResponse, ApiClient] = {}
        self._sockets = OpenSockets()
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
            timeout = aiohttp.ClientTimeout(total=left, sock_connect=min(_CONNECT_SECONDS, left))
            try:
                async with self._opened(request, query, headers=headers, body=body, timeout=timeout) as response:
                    if on_start is None:
                        return await response.read()
                    head = await response.content.readany()
                    on_start(head)
                    return head + await response.read()
            except ApiError as error:
                # No other error is retried here: only the caller knows whether a write may be repeated.
                pause = error.retry_after_seconds if error.is_busy else None
                if pause is None or time.monotonic() + pause >= until:
                    raise
                await asyncio.sleep(max(pause, 0.1))
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise _unanswered(request, self.server, error, timeout_seconds) from error

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
            ApiError: The server refuses to open it.
        """
        request = RequestInfo("GET", path)
        for is_last in (False, True):
            # Old servers answer 406 to a request for JSON if the response has no content type.
            signed = await self._signed(request, query, {"Accept": "*/*"})
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
                if error.status == 401 and not is_last and await self._is_renewed(signed.login):
                    continue
                # aiohttp drops the body of a failed handshake, and with it the server's reason: GET it again.
                raise await self._refusal(request, query, error) from error
            except RedirectError as error:
                raise _redirected(request, error) from error
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
        """Close all connections; open streams and later requests fail with an error."""
        # After a gather() has failed, its other requests may still come; their new client would never be closed.
        self._is_closed = True
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await self._close(client)
        await self._sockets.close()

    # --- inside ----------------------------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _opened(
        self,
        request: RequestInfo,
        query: Query | None,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's own, with its parts)
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response with a status below 300, renewing the login once if necessary; ApiError for any other
        status.
        """
        for is_last in (False, True):
            signed = await self._signed(request, query, headers, body)
            with counted_sendings() as sendings:
                sent = await self._sent(request, signed, timeout)
            async with sent as response:
                self._read_clock(response.headers.get("Date", ""))
                if response.status < 300:
                    self._reading[response] = signed.client
                    try:
                        yield response
                    finally:
                        del self._reading[response]
                        _abort_unread(response)
                    return
                if response.status != 401 or is_last or not await self._is_renewed(signed.login):
                    # At most 1 MiB of the body, which is enough for a proxy's error page.
                    retry_after = response.headers.get("Retry-After", "")
                    body_text = await response.content.read(1 << 20)
                    error = response_error(request, response.status, body_text, retry_after)
                    error.is_repeated = len(sendings) > 1
                    if error.missing is not None and self.advise is not None:
                        error.hint = self.advise(error.missing)
                    raise error

    def _read_clock(self, date: str) -> None:
        """Compare the clocks by the Date header of a response (RFC 9110, 6.6.1), which each of Kubernetes' has."""
        with contextlib.suppress(ValueError):
            self._ahead_seconds = parsedate_to_datetime(date).timestamp() - time.time()

    async def _signed(
        self,
        request: RequestInfo,
        query: Query | None,
        headers: Mapping[str, str] | None = None,
        body: object = None,
    ) -> _SignedRequest:
        """Let the library prepare a request, with the login that its hook takes from our credentials."""
        login = await self._credentials.login()
        client = self._client(login)
        pairs = list(query.items() if isinstance(query, Mapping) else query or ())
        _, url, sent, encoded, _ = await client.param_serialize(
            request.method, request.path, None, pairs, dict(headers or {}), body, auth_settings=[AUTH]
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

    async def _sent(
        self,
        request: RequestInfo,
        signed: _SignedRequest,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's own, with its parts)
    ) -> aiohttp.ClientResponse:
        try:
            answer = await signed.client.call_api(
                request.method, signed.url, signed.headers, signed.body, _request_timeout=timeout
            )
        except RedirectError as error:
            raise _redirected(request, error) from error
        response: aiohttp.ClientResponse = answer.response
        return response

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

    def _client(self, login: ApiLogin) -> ApiClient:
        """Return the client of a certificate: TLS binds connections to it, so a renewed one needs a new client."""
        key = (login.certificate, login.key)
        if self._is_closed:
            raise ApiError(f"The connection to {self.server} is closed.")
        if (client := self._clients.get(key)) is None:
            headers = {"Accept": JSON, "Accept-Encoding": self._encoding}
            client = self._clients[key] = make_client(
                self.access, login, proxy=self._proxy, hook=self._authorize, sockets=self._sockets, headers=headers
            )
            for old in list(self._clients)[:-_MAX_CLIENTS]:
                # Its streams began two certificates ago; their readers reconnect.
                self._spawn_close(self._clients.pop(old))
        return client

    def _spawn_close(self, client: ApiClient) -> None:
        task = asyncio.get_running_loop().create_task(self._close(client))
        task.add_done_callback(lambda done: done.exception())

    async def _close(self, client: ApiClient) -> None:
        """Close the connections of a client, and wake readers, which aiohttp would leave waiting forever."""
        for response, owner in self._reading.items():
            if owner is client:
                response.content.set_exception(aiohttp.ClientConnectionError("the connection was closed"))
        await close_client(client)


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


def decode_json(request: RequestInfo, body: bytes) -> Any:
    """Decode the body of a response; ApiError if it is not JSON."""
    try:
        return bounded_json.decode(body)
    except ValueError as error:
        raise ApiError(
            f"The answer to {request} is not JSON.", "Is there a proxy or a log-in page before the API server?"
        ) from error


def _redirected(request: RequestInfo, error: RedirectError) -> ApiError:
    """Create the error for a redirect: API servers send none, but a log-in page in front of one does."""
    where = urlsplit(error.location).hostname or "another address"
    return response_error(request, error.status, f"it was redirected to {where}".encode())


def _unanswered(request: RequestInfo, server: str, error: BaseException, seconds: float) -> ApiError:
    if isinstance(error, aiohttp.ConnectionTimeoutError):  # its timeout is shorter than the request's
        seconds = min(seconds, _CONNECT_SECONDS)
    is_refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
    return unanswered_error(request, server, _cause(error, seconds), is_refused=is_refused)


def _cause(error: BaseException, seconds: float) -> str:
    """Describe briefly why there was no response."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {seconds:.0f} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, OSError):
        return error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError | ConnectionResetError):
        return "the connection was cut"
    return str(error) or type(error).__name__
