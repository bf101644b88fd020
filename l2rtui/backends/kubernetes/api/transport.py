"""Ways of a request to an API server: what all have in common, and the lean one for short reads.

The session of the client library (``session``) carries writes, watches, logs and websockets, and once it is open,
everything. Importing it costs 0.3 s of CPU, more than all else that a list from a cold process does. So reads go
through ``LeanTransport`` until a process needs the session, unless a proxy is in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import h11

from l2rtui.backends.kubernetes.api.connectors import OpenSockets, load_certificate, make_tls
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin

Headers = Sequence[tuple[str, str]]
CUT: Final = "the connection was cut"
_BUFFER: Final = 1 << 18
_MOST_HEAD: Final = 1 << 16
"""Bytes of a head, or of the line before a chunk, before they count as something else than HTTP."""
_MOST_LINKS: Final = 4
"""Connections at the same time: a handshake costs more than the wait for one of a dozen short answers."""
_REDIRECTS: Final = (301, 302, 303, 307, 308)


class TimeLimits(NamedTuple):
    """Time limits of a request in seconds: until it is over, until connected, between two reads; None for none."""

    total: float | None
    connect: float
    silence: float | None = None


class Answer(Protocol):
    """Response whose head has arrived.

    Attributes:
        status: HTTP status.
        login: The login that was sent.
        is_repeated: The request was sent twice, as a connection broke in between.
    """

    status: int
    login: ApiLogin
    is_repeated: bool

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        ...

    async def read_some(self) -> bytes:
        """Return the next decoded bytes of the body, empty at its end."""
        ...


class NoAnswerError(Exception):
    """The server could not be reached, or its answer is broken; the message says why in a few words."""

    def __init__(self, cause: str, *, is_refused: bool = False) -> None:
        super().__init__(cause)
        self.is_refused = is_refused


class RedirectError(Exception):
    """The server sent a redirect, which is not followed.

    A redirect would send impersonation headers and the client certificate to a server that the kubeconfig does not
    name.

    Attributes:
        status: HTTP status. location: Target of the redirect.
    """

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.location = location


class HandshakeError(Exception):
    """The server refused to open a websocket.

    Attributes:
        status: HTTP status. login: The login that was sent.
    """

    def __init__(self, status: int, login: ApiLogin) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.login = login


class LeanTransport:
    """Pool of direct connections, h11 over asyncio's streams, for requests that change nothing.

    Args:
        access: Server, authority and client certificate.
        sockets: Creates and tracks the sockets.
    """

    def __init__(self, access: Access, sockets: OpenSockets) -> None:
        self._access = access
        self._address = urlsplit(access.server)
        self._sockets = sockets
        self._tls: tuple[tuple[bytes, bytes], ssl.SSLContext] | None = None
        self._idle: list[_Link] = []
        self._busy: set[_Link] = set()
        self._turns = asyncio.Semaphore(_MOST_LINKS)

    @contextlib.asynccontextmanager
    async def opened(
        self, method: str, target: str, headers: Headers, body: bytes, login: ApiLogin, limits: TimeLimits
    ) -> AsyncIterator[Answer]:
        """Send a request and open its response; the connection is used again if the response was read to its end.

        Args:
            target: Path with query, encoded.

        Raises:
            NoAnswerError, RedirectError, TimeoutError, OSError: This server sent no response.
        """
        host = self._address.netloc.rpartition("@")[2]
        fields = [("Host", host), *headers, *([("Content-Length", str(len(body)))] if body else [])]
        path = f"{self._address.path.rstrip('/')}{target}"
        try:
            # The library refuses line ends: a token with one would forge Impersonate-User, for example.
            request = h11.Request(
                method=method, target=path, headers=[(name.encode(), value.encode()) for name, value in fields]
            )
        except (h11.LocalProtocolError, UnicodeEncodeError):  # its message may quote a token
            raise NoAnswerError("a header or the path of the request has a line break") from None
        async with asyncio.timeout(limits.total), self._turns:
            link, answer = await self._answered(request, body, login, limits)
            try:
                location = answer.header("Location")
                # Without a target it is an error like any other.
                if answer.status in _REDIRECTS and location:
                    raise RedirectError(answer.status, location)
                yield answer
            finally:
                self._release(link)

    async def close(self) -> None:
        """Abort all connections; their readers get NoAnswerError."""
        for link in [*self._idle, *self._busy]:
            link.writer.transport.abort()
        self._idle = []

    async def _answered(
        self, request: h11.Request, body: bytes, login: ApiLogin, limits: TimeLimits
    ) -> tuple[_Link, _LeanAnswer]:
        """Send a request, once more if the server had closed the connection, and wait for the head."""
        is_repeated = False
        while True:
            link = self._take(login) or await self._connected(login, limits)
            self._busy.add(link)
            try:
                response = await link.exchange(request, body)
            except (ConnectionError, h11.RemoteProtocolError) as error:
                self._drop(link)
                if not link.is_cut(error):
                    raise NoAnswerError("its answer is not HTTP") from error
                if not link.is_used:
                    raise NoAnswerError(CUT) from error
                is_repeated = True
            except BaseException:
                self._drop(link)
                raise
            else:
                return link, _LeanAnswer(link, response, login, is_repeated=is_repeated)

    def _take(self, login: ApiLogin) -> _Link | None:
        """Take an idle connection with this client certificate."""
        while self._idle:
            link = self._idle.pop()
            # TLS binds a connection to the certificate that opened it.
            if link.certificate == login.certificate and not link.reader.at_eof():
                return link
            link.writer.transport.abort()
        return None

    async def _connected(self, login: ApiLogin, limits: TimeLimits) -> _Link:
        # A dependency of aiohttp, which is not imported for it.
        from aiohappyeyeballs import start_connection

        parts = self._address
        host, is_secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        tls = self._context(login) if is_secure else None
        try:
            async with asyncio.timeout(limits.connect):
                addresses = await _addresses(host, port)
                connected = await start_connection(
                    addresses, happy_eyeballs_delay=0.25, socket_factory=self._sockets.make
                )
                options: dict[str, Any] = {"ssl": tls}
                if tls is not None:
                    name = self._access.tls_server_name or host
                    options["server_hostname"] = name.encode() if name.isascii() else name  # see _addresses()
                try:
                    reader, writer = await asyncio.open_connection(sock=connected, **options)
                except BaseException:
                    connected.close()
                    raise
        except TimeoutError as error:
            raise NoAnswerError(f"nothing came for {limits.connect:.0f} s") from error
        except ssl.CertificateError as error:
            raise NoAnswerError(f"its certificate is not trusted: {error}") from error
        except OSError as error:
            is_refused = isinstance(error, ConnectionRefusedError)
            raise NoAnswerError(error.strerror or str(error) or CUT, is_refused=is_refused) from error
        return _Link(reader, writer, login.certificate)

    def _context(self, login: ApiLogin) -> ssl.SSLContext:
        """Return the TLS context of a client certificate."""
        key = login.certificate, login.key
        if self._tls is None or self._tls[0] != key:
            tls = make_tls(self._access)
            if login.certificate:
                load_certificate(tls, login, self._access.user.name)
            self._tls = key, tls
        return self._tls[1]

    def _release(self, link: _Link) -> None:
        """Keep a connection whose response was read to its end, and abort any other."""
        if not link.is_reusable:
            self._drop(link)
            return
        self._busy.discard(link)
        link.protocol.start_next_cycle()
        # Only then may a broken connection mean that the server had closed it while it was idle.
        link.is_used = True
        self._idle.append(link)

    def _drop(self, link: _Link) -> None:
        self._busy.discard(link)
        link.writer.transport.abort()


class _Link:
    """Connection, with the certificate of the login that opened it, and its place in HTTP/1.1 (RFC 9112)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, certificate: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.certificate = certificate
        self.protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
        self.is_used = False

    @property
    def is_reusable(self) -> bool:
        """True if another request may follow."""
        return self.protocol.our_state is h11.DONE and self.protocol.their_state is h11.DONE

    def is_cut(self, error: Exception) -> bool:
        """Return True if an error means that the server has closed the connection."""
        return isinstance(error, ConnectionError) or self.reader.at_eof()

    async def exchange(self, request: h11.Request, body: bytes) -> h11.Response:
        """Send a request and wait for the head of its response."""
        events: list[h11.Event] = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        self.writer.write(b"".join(self.protocol.send(event) or b"" for event in events))
        await self.writer.drain()
        while not isinstance(event := await self.receive(), h11.Response):  # 1xx are preliminary
            pass
        return event

    async def receive(self) -> h11.Event:
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            self.protocol.receive_data(await self.reader.read(_BUFFER))
        return cast("h11.Event", event)


class _LeanAnswer:
    """Response of a lean connection; see ``Answer``."""

    def __init__(self, link: _Link, response: h11.Response, login: ApiLogin, *, is_repeated: bool) -> None:
        self.status = response.status_code
        self.login = login
        self.is_repeated = is_repeated
        self._link = link
        self._fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        is_packed = self.header("Content-Encoding") in ("gzip", "x-gzip")
        self._inflate = zlib.decompressobj(31) if is_packed else None
        self._is_complete = False

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        return self._fields.get(name.lower(), "")

    async def read_some(self) -> bytes:
        """Return the next decoded bytes of the body, empty at its end."""
        try:
            while not self._is_complete:
                event = await self._link.receive()
                self._is_complete = not isinstance(event, h11.Data)
                part = bytes(event.data) if isinstance(event, h11.Data) else b""
                if part and self._inflate is not None:
                    part = self._inflate.decompress(part)
                if part:
                    return part
        except (ConnectionError, h11.RemoteProtocolError) as error:
            raise NoAnswerError(CUT if self._link.is_cut(error) else f"its answer is broken: {error}") from error
        except zlib.error as error:
            raise NoAnswerError(f"its answer is broken: {error}") from error
        return b""


async def _addresses(host: str, port: int) -> list[Any]:
    """Resolve a host; a numeric address needs no thread for that."""
    try:
        version = ipaddress.ip_address("" if "%" in host else host).version  # a scope needs its interface
    except ValueError:
        # As bytes, or the codec for names of other alphabets would be imported.
        name: Any = host.encode() if host.isascii() else host
        return await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    is_four = version == 4
    family = socket.AF_INET if is_four else socket.AF_INET6
    address = (host, port) if is_four else (host, port, 0, 0)
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address)]


def closed_error(server: str) -> ApiError:
    """Create the error for a request after close()."""
    return ApiError(f"The connection to {server} is closed.")
