"""Sockets of a connection and their TLS: keep-alive, the server's authority, and a login's client certificate.

Sockets that aiohttp no longer tracks are closed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
import weakref
from pathlib import Path
from typing import Any

from l2rtui.backends.kubernetes.api.kubeconfig import Access
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.errors import ConfigError

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
