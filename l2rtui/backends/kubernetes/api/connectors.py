"""Connectors of aiohttp, direct or through a proxy, and their sockets: keep-alive, TLS, client certificate.

Neither the official client library nor aiohttp supports SOCKS; python-socks does the handshake, and TLS runs over
its socket.

Proxies are chosen as by kubectl: ``proxy-url`` of the kubeconfig, otherwise HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
The rules follow Go's ``golang.org/x/net/http/httpproxy``, which client-go uses. Python's own implementations
(``urllib.request``, and aiohttp's ``trust_env``) do not support networks in NO_PROXY: with ``NO_PROXY=10.0.0.0/8``
they would send a cluster's requests to a proxy that cannot reach it, unlike kubectl.

Sockets that aiohttp no longer tracks are closed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.errors import ConfigError

_HTTP: Final = ("http", "https")
SOCKS: Final = ("socks5", "socks5h")
_PORTS: Final = {"http": 80, "https": 443}


def environment_proxy(url: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the proxy that the environment names for a URL; empty for none.

    Raises:
        ConfigError: The proxy's scheme is not supported.
    """
    environ = os.environ if environ is None else environ
    target = urlsplit(url)
    # Capitals first, as in Go; ALL_PROXY is ignored there, and here too.
    proxy = _first(environ, f"{target.scheme}_proxy")
    if not proxy or _is_direct(target, _first(environ, "no_proxy")):
        return ""
    return check_proxy(proxy if "://" in proxy else f"http://{proxy}")


def check_proxy(proxy: str) -> str:
    """Return the URL of a proxy if its scheme is supported.

    Raises:
        ConfigError: It is not supported; the message leaves out user and password of the URL.
    """
    parts = urlsplit(proxy)
    if parts.scheme not in (*_HTTP, *SOCKS) or not parts.hostname:
        raise ConfigError(
            f"The proxy {parts.scheme}://{parts.hostname or ''} is of a kind that is not supported.",
            "Use http://, https:// or socks5://.",
        )
    return proxy


def http_proxy(proxy: str) -> str | None:
    """Return the proxy that requests name; None without a proxy, and for SOCKS, which the connector handles."""
    return proxy if urlsplit(proxy).scheme in _HTTP else None


def _first(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name.upper()) or environ.get(name) or ""


def _is_direct(target: SplitResult, no_proxy: str) -> bool:
    """Negation of ``httpproxy.config.useProxy``."""
    host = (target.hostname or "").rstrip(".").lower()
    port = target.port or _PORTS.get(target.scheme, 0)
    address = _address(host)
    # Loopback is never proxied, whatever NO_PROXY says.
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_is_match(rule, host, port, address) for rule in _rules(no_proxy))


def _rules(no_proxy: str) -> Iterator[str]:
    return (rule for part in no_proxy.split(",") if (rule := part.strip().lower()))


def _is_match(
    rule: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        # Names are not resolved for this, as in Go: only a server with a numeric address matches a network.
        network = _network(rule)
        return network is not None and address is not None and address in network
    name, wanted_port = _host_and_port(rule)
    if wanted_port and wanted_port != str(port):
        return False
    if (other := _address(name)) is not None:
        return other == address
    if not name or address is not None:
        return False
    # .example.org and *.example.org match only subdomains; example.org also matches itself.
    suffix = name.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _host_and_port(rule: str) -> tuple[str, str]:
    """Split ``host:port``, ``[address]:port``; an IPv6 address without brackets has colons but no port."""
    if rule.startswith("["):
        name, _, rest = rule[1:].partition("]")
        return name, rest.removeprefix(":")
    if rule.count(":") == 1:
        name, _, port = rule.partition(":")
        return name, port
    return rule, ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))
"""A peer that vanished is detected after 30 + 3 x 15 s; Linux's default is two hours."""
_CLOSE_SECONDS = 1.0
"""Longest wait for connections that were closed on this side; normally a few turns of the event loop."""


class OpenSockets:
    """Sockets of one connection, including those that aiohttp forgets with an abandoned response."""

    def __init__(self) -> None:
        # Weak references; otherwise no socket would be freed.
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: tuple[Any, ...]) -> socket.socket:
        """Create a socket for an address of ``getaddrinfo``."""
        return self.adopt(make_socket(address))

    def adopt(self, tcp_socket: socket.socket) -> socket.socket:
        """Set the options of a socket and track it."""
        set_options(tcp_socket)
        self._sockets.add(tcp_socket)
        return tcp_socket

    async def close(self) -> None:
        """Shut down the sockets that aiohttp no longer tracks, and wait until they are closed.

        aiohttp does not wait for a connection whose response was abandoned, nor for one that is still being
        established. The former stays open for up to 30 s, until the server has answered the TLS close_notify; an
        event loop that ends earlier leaks the socket.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while left := [open_socket for open_socket in self._sockets if open_socket.fileno() >= 0]:
                    for open_socket in left:
                        with contextlib.suppress(OSError):  # not connected yet, or no longer
                            open_socket.shutdown(socket.SHUT_RDWR)
                    await asyncio.sleep(0.001)


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Create a TCP socket for an address of ``getaddrinfo``."""
    family, kind, protocol, _, _ = address
    return socket.socket(family, kind, protocol)


def set_options(tcp_socket: socket.socket) -> None:
    """Let the kernel probe a silent peer, and send small writes without delay."""
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # macOS has no TCP_KEEPIDLE: set the options that exist.
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def authority_error(access: Access) -> ConfigError:
    """Create the error for an authority that cannot be read."""
    return ConfigError(f"The certificate authority of the context {access.context} is no PEM.")


def make_tls(access: Access) -> ssl.SSLContext:
    """Make the TLS context of a context, as the client library does.

    Raises:
        ConfigError: The authority's certificate cannot be used.
    """
    try:
        tls = ssl.create_default_context(cadata=access.ca.decode("ascii") or None)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise authority_error(access) from error
    # In this order: a context that checks host names must verify certificates.
    if access.is_insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    # Python 3.13 checks strictly (RFC 5280), and many clusters' own authorities lack the Authority Key Identifier.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls


def load_certificate(tls: ssl.SSLContext, login: ApiLogin, user: str) -> None:
    """Load the login's client certificate and key into a TLS context.

    The library only accepts paths, and writes keys of a kubeconfig to files in /tmp that stay until the process
    ends (kubernetes/aio/config/kube_config.py, ``_create_temp_file_with_content``). Here the file is anonymous
    memory (Linux), or is in a folder of mode 0700 that is removed immediately.

    Raises:
        ApiError: They cannot be used.
    """
    try:
        _load(tls, login.certificate.rstrip() + b"\n" + login.key)
    except (ssl.SSLError, OSError) as error:
        raise login_error(
            f"The client certificate and key of {user} cannot be used: {error.args[-1]}.",
            "Write the kubeconfig again.",
        ) from error


def _load(tls: ssl.SSLContext, pem: bytes) -> None:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2rtui", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
            # An empty password: OpenSSL would ask for one on the terminal if the key is encrypted.
            tls.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as folder:  # mode 0700
        path = Path(folder) / "login.pem"
        path.touch(mode=0o600)
        path.write_bytes(pem)
        tls.load_cert_chain(path, password="")


OnTunnel = Callable[[socket.socket], object]


def make_connector(
    proxy: str,
    *,
    tls: ssl.SSLContext,
    on_tunnel: OnTunnel | None = None,
    socket_factory: Any = None,
    **options: Any,
) -> aiohttp.TCPConnector:
    """Create the connector for a proxy, or for a direct connection.

    Args:
        tls: Required, since aiohttp's own contexts have no authorities, see ``library_import``.
        on_tunnel: Called with the connected socket of each SOCKS tunnel.
        socket_factory, options: Passed to aiohttp's ``TCPConnector``.
    """
    if urlsplit(proxy).scheme in SOCKS:
        return SocksConnector(proxy, on_tunnel, ssl=tls, **options)
    return aiohttp.TCPConnector(socket_factory=socket_factory, ssl=tls, **options)


class SocksConnector(aiohttp.TCPConnector):
    """Connector through a SOCKS 5 proxy (RFC 1928), which also resolves host names, as with Go's client.

    aiohttp-socks is not used: its connector drops ``server_hostname`` (``tls-server-name`` of a kubeconfig), and
    its sockets have no keep-alive and are unreachable for ``Connection.close()``.
    """

    def __init__(self, proxy: str, on_tunnel: OnTunnel | None = None, **options: Any) -> None:
        super().__init__(resolver=_Unresolved(), **options)
        self._proxy = urlsplit(proxy)
        self._on_tunnel = on_tunnel

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: Any,
        req: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  (aiohttp's own)
        client_error: object = None,  # noqa: ARG002  (aiohttp's own)
        **kwargs: Any,
    ) -> Any:
        """Open the tunnel, then let asyncio run TLS over it. Overrides the step of aiohttp that creates sockets."""
        # The first address is the host name itself, see _Unresolved.
        host, port = addr_infos[0][4][:2]
        async with asyncio.timeout(timeout.sock_connect):
            tunnel = await self._tunnel(host, port)
            try:
                return await self._loop.create_connection(*args, **kwargs, sock=tunnel)
            except BaseException as error:
                tunnel.close()  # asyncio does it if the handshake fails, but not for a cancellation before that
                if isinstance(error, ssl.CertificateError):
                    raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
                raise

    async def _tunnel(self, host: str, port: int) -> socket.socket:
        import python_socks
        from python_socks.async_.asyncio import Proxy

        user, password = unquote(self._proxy.username or ""), unquote(self._proxy.password or "")
        address = self._proxy.hostname or "", self._proxy.port or 1080
        proxy = Proxy(python_socks.ProxyType.SOCKS5, *address, user, password, rdns=True)
        try:
            tunnel: socket.socket = await proxy.connect(host, port)
        except TimeoutError:
            raise
        except (python_socks.ProxyError, OSError) as error:
            sentence = f"the proxy {self._proxy.scheme}://{self._proxy.hostname}: {error}"
            raise aiohttp.ClientConnectionError(sentence) from error
        if self._on_tunnel is not None:
            self._on_tunnel(tunnel)
        return tunnel


class _Unresolved(AbstractResolver):
    """Resolver that returns names unchanged: behind a proxy they may resolve differently, or only there."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [{"hostname": host, "host": host, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Do nothing: no resource is open."""
