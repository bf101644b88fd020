"""TLS context, TCP socket and proxy of a connection: cluster authority, client key without a file, keep-alive.

Python's ssl module loads a client key from a file only. The file here is anonymous memory (Linux), or lies in a
folder of mode 0700 that is removed before the first request.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.errors import ConfigError

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))
"""A peer that vanished is detected after 30 + 3 x 15 s; Linux's default is two hours."""


def make_tls(access: Access, login: ApiLogin) -> ssl.SSLContext | None:
    """Make the TLS context of a server; None for ``http://``.

    Raises:
        ConfigError: the authority's certificate cannot be used.
        ApiError: the client's certificate and key cannot.
    """
    if not access.server.startswith("https:"):
        return None
    try:
        tls = ssl.create_default_context(cadata=access.ca.decode("ascii") if access.ca else None)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The certificate authority of the context {access.context} is no PEM.") from error
    # Python 3.13 checks strictly (RFC 5280), and many clusters' own authorities lack the Authority Key Identifier.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.is_insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if login.certificate:
        try:
            _load(tls, login.certificate.rstrip() + b"\n" + login.key)
        except (ssl.SSLError, OSError) as error:
            raise login_error(
                f"The client certificate and key of {access.user.name} cannot be used: {error.args[-1]}.",
                "Write the kubeconfig again.",
            ) from error
    return tls


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


def make_socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a TCP socket with keep-alive."""
    family, kind, protocol, _, _ = address
    tcp_socket = socket.socket(family, kind, protocol)
    tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # macOS has no TCP_KEEPIDLE: set the options that exist.
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            tcp_socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return tcp_socket


def _is_excepted(host: str) -> bool:
    bypass: Callable[[str], bool] = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
    return bool(bypass(host))


def proxy_for(access: Access) -> str | None:
    """Return the HTTP proxy for a server: the kubeconfig's, or the environment's unless NO_PROXY names the host.

    Raises:
        ConfigError: the proxy's scheme is not supported (SOCKS).
    """
    server = urllib.parse.urlsplit(access.server)
    proxy = access.proxy_url
    if not proxy and not _is_excepted(server.netloc):
        proxies = urllib.request.getproxies_environment()
        proxy = proxies.get(server.scheme) or proxies.get("all") or ""
    if proxy and urllib.parse.urlsplit(proxy).scheme not in ("http", "https"):
        url = urllib.parse.urlsplit(proxy)
        raise ConfigError(
            f"The proxy {url.scheme}://{url.hostname} is of a kind that is not supported.",
            "Use an http:// one.",
        )
    return proxy or None
