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
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.backends.kubernetes.api.sockets import OpenSockets
from l2rtui.backends.kubernetes.api.tls import load_certificate, make_tls

Headers = Sequence[tuple[str, str]]
CUT: Final = "the connection was cut"
_BUFFER: Final = 1 << 18
_MOST_LINE: Final = 1 << 13
_MOST_LINKS: Final = 4
"""Connections at the same time: a handshake costs more than the wait for one of a dozen short answers."""
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_BODILESS: Final = (204, 304)


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
    """Pool of direct HTTP/1.1 connections over asyncio's own streams, for requests that change nothing.

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
            NoAnswerError, RedirectError, TimeoutError, OSError: There is no response of this server.
        """
        host = self._address.netloc.rpartition("@")[2]
        lines = [f"{method} {self._address.path.rstrip('/')}{target} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Content-Length: {len(body)}"] if body else []
        # A token with a line end would forge headers: Impersonate-User, for example.
        if any(not line.isprintable() for line in lines):
            raise NoAnswerError("a header or the path of the request has a line break")
        sent = "\r\n".join([*lines, "", ""]).encode() + body
        async with asyncio.timeout(limits.total), self._turns:
            link, answer = await self._answered(sent, login, limits)
            try:
                location = answer.header("Location")
                # Without a target it is an error like any other.
                if answer.status in _REDIRECTS and location:
                    raise RedirectError(answer.status, location)
                yield answer
            finally:
                self._release(link, answer)

    async def close(self) -> None:
        """Abort all connections; their readers get NoAnswerError."""
        for link in [*self._idle, *self._busy]:
            link.writer.transport.abort()
        self._idle = []

    async def _answered(self, sent: bytes, login: ApiLogin, limits: TimeLimits) -> tuple[_Link, _LeanAnswer]:
        """Send a request, once more if the server had closed the connection, and wait for the head."""
        is_repeated = False
        while True:
            link = self._take(login) or await self._connected(login, limits)
            self._busy.add(link)
            try:
                link.writer.write(sent)
                await link.writer.drain()
                status, fields = await _head(link.reader)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self._drop(link)
                if not link.is_used:
                    raise NoAnswerError(CUT) from error
                is_repeated = True
            except (asyncio.LimitOverrunError, ValueError) as error:
                self._drop(link)
                raise NoAnswerError("its answer is not HTTP") from error
            except BaseException:
                self._drop(link)
                raise
            else:
                return link, _LeanAnswer(link.reader, status, fields, login, is_repeated=is_repeated)

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
        """Open a connection."""
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
                options: dict[str, Any] = {"ssl": tls, "limit": _BUFFER}
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

    def _release(self, link: _Link, answer: _LeanAnswer) -> None:
        """Keep a connection whose response was read to its end, and abort any other."""
        if not answer.is_reusable:
            self._drop(link)
            return
        self._busy.discard(link)
        # Only then may a broken connection mean that the server had closed it while it was idle.
        link.is_used = True
        self._idle.append(link)

    def _drop(self, link: _Link) -> None:
        self._busy.discard(link)
        link.writer.transport.abort()


class _Link:
    """Connection, with the certificate of the login that opened it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, certificate: bytes) -> None:
        self.reader = reader
        self.writer = writer
        self.certificate = certificate
        self.is_used = False


class _LeanAnswer:
    """Response of a lean connection; see ``Answer``."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        status: int,
        fields: dict[str, str],
        login: ApiLogin,
        *,
        is_repeated: bool,
    ) -> None:
        self.status = status
        self.login = login
        self.is_repeated = is_repeated
        self._reader = reader
        self._fields = fields
        self._inflate = zlib.decompressobj(31) if fields.get("content-encoding") in ("gzip", "x-gzip") else None
        self._chunks = _Chunks() if "chunked" in fields.get("transfer-encoding", "").lower() else None
        length = fields.get("content-length")
        self._left = int(length) if length is not None and self._chunks is None else None
        self._is_complete = status in _BODILESS or self._left == 0

    @property
    def is_reusable(self) -> bool:
        """True if another request may follow on the connection."""
        is_delimited = self._chunks is not None or self._left is not None or self.status in _BODILESS
        return self._is_complete and is_delimited and self._fields.get("connection", "").lower() != "close"

    def header(self, name: str) -> str:
        """Return the value of a header; empty without one."""
        return self._fields.get(name.lower(), "")

    async def read_some(self) -> bytes:
        """Return the next decoded bytes of the body, empty at its end."""
        while not self._is_complete:
            try:
                data = await self._reader.read(_BUFFER)
                part = self._unframed(data)
                if self._inflate is not None:
                    part = self._inflate.decompress(part)
            except ConnectionError as error:
                raise NoAnswerError(CUT) from error
            except (ValueError, zlib.error) as error:
                raise NoAnswerError(f"its answer is broken: {error}") from error
            if part:
                return part
        return b""

    def _unframed(self, data: bytes) -> bytes:
        """Return the content of these bytes, which are empty where the server has closed."""
        if self._chunks is not None:
            content = self._chunks.feed(data)
            self._is_complete = self._chunks.is_over
        elif self._left is not None:
            content = data[: self._left]
            self._left -= len(content)
            self._is_complete = self._left == 0
        else:
            content, self._is_complete = data, not data  # until the server closes
        if not data and not self._is_complete:
            raise NoAnswerError(CUT)
        return content


class _Chunks:
    """Decoder of the chunked transfer coding (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self.is_over = False
        self._rest = b""
        self._left = 0  # bytes of the current chunk, with its line end
        self._is_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Return the content of the next bytes. Raises ValueError if they are not chunked."""
        data, at, parts = self._rest + data, 0, []
        while not self.is_over:
            # Many chunks come in one read: a loop over bytes costs less than a read of the stream for each.
            if self._left > 2:
                parts.append(part := data[at : at + self._left - 2])
                at += len(part)
                self._left -= len(part)
                if self._left > 2:
                    break
            end = data.find(b"\r\n", at, at + _MOST_LINE)
            if end < 0 and len(data) - at < _MOST_LINE:
                break
            line, at = data[at:end], end + 2
            if end < 0 or (self._left and line):
                raise ValueError("a chunk has no end")
            if self._left:
                self._left = 0
            elif self._is_trailer:
                self.is_over = not line
            elif size := int(line.partition(b";")[0], 16):
                self._left = size + 2
            else:
                self._is_trailer = True
        self._rest = data[at:]
        return b"".join(parts)


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


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read status and headers of a response, with names in lower case. Raises ValueError if it is not HTTP/1."""
    while True:
        first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        if (status := int(rest[:3])) >= 200:  # 1xx are preliminary
            break
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if version == "HTTP/1.0":
        fields.setdefault("connection", "close")
    return status, fields


def closed_error(server: str) -> ApiError:
    """Create the error for a request after close()."""
    return ApiError(f"The connection to {server} is closed.")
