"""TLS and TCP as a client of Kubernetes wants them: the cluster's authority, no keys on disk, dead peers noticed.

Python loads a client key from a file alone. The file here has no name: it lives in memory (Linux), or in a folder
that only we can open and that is gone before the first request.
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

from l2rtui.backends.kubernetes.credentials import Login, no_login
from l2rtui.backends.kubernetes.kubeconfig import Access
from l2rtui.errors import ConfigError

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 3))
"""A peer that vanished without a word is given up after 30 + 3 x 15 s; the kernel's own habit is two hours."""


def make_tls(access: Access, login: Login) -> ssl.SSLContext | None:
    """How connections to this server are secured; None for ``http://``.

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
    # Clusters make their own authorities, and many lack what the strict check of Python 3.13 wants to see.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.is_insecure:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if login.certificate:
        try:
            _load(tls, login.certificate.rstrip() + b"\n" + login.key)
        except (ssl.SSLError, OSError) as error:
            raise no_login(
                f"The client certificate and key of {access.user.name} cannot be used: {error.args[-1]}.",
                "Write the kubeconfig again.",
            ) from error
    return tls


def _load(tls: ssl.SSLContext, pem: bytes) -> None:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("l2rtui", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
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
    """A TCP socket whose peer is asked for a sign of life."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _is_excepted(host: str) -> bool:
    bypass: Callable[[str], bool] = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
    return bool(bypass(host))


def proxy_for(access: Access) -> str | None:
    """The HTTP proxy on the way to the server: the kubeconfig's, or the environment's unless it excepts the host.

    Raises:
        ConfigError: the proxy is of a kind that we cannot speak to.
    """
    server = urllib.parse.urlsplit(access.server)
    proxy = access.proxy_url
    if not proxy and not _is_excepted(server.netloc):
        proxies = urllib.request.getproxies_environment()
        proxy = proxies.get(server.scheme) or proxies.get("all") or ""
    if proxy and urllib.parse.urlsplit(proxy).scheme not in ("http", "https"):
        shown = urllib.parse.urlsplit(proxy)
        raise ConfigError(
            f"The proxy {shown.scheme}://{shown.hostname} is of a kind that is not supported.",
            "Use an http:// one.",
        )
    return proxy or None
