"""Connectors of aiohttp, direct or through a proxy.

Neither the official client library nor aiohttp supports SOCKS; python-socks does the handshake, and TLS runs over
its socket.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from l2rtui.backends.kubernetes.api.sockets import SOCKS

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
        """Return the name as its own address."""
        return [{"hostname": host, "host": host, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Do nothing: no resource is open."""
