"""Endpoint of a learner, `ipc:///FOLDER` or `tcp://HOST:PORT`, as addresses of its two sockets."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOCKET_PATH_LIMIT: Final = 103 if sys.platform == "darwin" else 107
"""Longest path of a Unix socket in bytes: `sun_path` without its terminator (104 on macOS, 108 on Linux)."""


class EndpointError(ValueError):
    """The endpoint cannot be used; the message names it and the necessary change."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The two addresses of a learner, as ZeroMQ writes them.

    `folder` is set for an ipc endpoint, `host` and `port` for a tcp endpoint.
    """

    data: str
    model: str
    folder: Path | None
    host: str
    port: int

    def bound(self) -> Endpoint:
        """Return the endpoint that a learner binds: ZeroMQ binds addresses, so a host name is resolved.

        Raises EndpointError if the name is unknown.
        """
        if self.folder is not None or self.host == "*":
            return self
        try:
            results = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise EndpointError(f"the host {self.host} of the endpoint cannot be looked up: {error}") from error
        # IPv4 first: a peer that connects to "localhost" tries 127.0.0.1, and ZeroMQ only binds one address.
        results.sort(key=lambda result: result[0] != socket.AF_INET)
        return _tcp(str(results[0][4][0]), self.port)

    def is_private(self) -> bool:
        """Return whether only this machine can reach the endpoint, judged by its text: no name is resolved."""
        if self.folder is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(text: str) -> Endpoint:
    """Return the endpoint written as `text`.

    Raises EndpointError with a sentence if it has neither form, or if a socket path is too long.
    """
    if text.startswith("ipc://"):
        return _ipc(text)
    if text.startswith("tcp://"):
        host, colon, port = text.removeprefix("tcp://").rpartition(":")
        # Up to 65534: the model socket uses the next port.
        if colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65535:
            return _tcp(host.strip("[]"), int(port))
        raise EndpointError(f"the endpoint {text!r} must be tcp://HOST:PORT with a port from 1 to 65534")
    raise EndpointError(f"the endpoint {text!r} must be ipc:///FOLDER or tcp://HOST:PORT")


def _ipc(text: str) -> Endpoint:
    folder = Path(text.removeprefix("ipc://"))
    if not folder.is_absolute() or "@" in text:  # ipc://@NAME is an abstract socket to libzmq
        raise EndpointError(f"the endpoint {text!r} must be ipc:///FOLDER, an absolute path without '@'")
    data, model = folder / "data.sock", folder / "model.sock"
    length = len(os.fsencode(model))
    if length > SOCKET_PATH_LIMIT:
        raise EndpointError(
            f"the socket path {model} has {length} bytes and this system allows {SOCKET_PATH_LIMIT}; "
            "choose a shorter folder"
        )
    return Endpoint(f"ipc://{data}", f"ipc://{model}", folder, "", 0)


def _tcp(host: str, port: int) -> Endpoint:
    bracketed = f"[{host}]" if ":" in host else host  # IPv6, as in RFC 3986
    return Endpoint(f"tcp://{bracketed}:{port}", f"tcp://{bracketed}:{port + 1}", None, host, port)
