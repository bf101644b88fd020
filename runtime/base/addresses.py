"""Addresses of a run's processes: the learner's (`ipc:///FOLDER`, `tcp://HOST:PORT`), others in ``L2R_PEERS``."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from runtime.base import bounded_json, contract
from runtime.base.errors import SetupError


class PeerAddresses(Struct, frozen=True):
    """Endpoints by set and index, as in ``L2R_PEERS``."""

    sets: Mapping[str, tuple[str, ...]]

    def of_set(self, name: str) -> tuple[str, ...]:
        """Return the endpoints of a set. Raises SetupError if the run has no such set."""
        if name not in self.sets:
            there = ", ".join(sorted(self.sets)) or "none"
            raise SetupError(f"{contract.ENV_PEERS} has no set {name!r}; there are: {there}")
        return self.sets[name]

    def of_replica(self, name: str, index: int) -> str:
        """Return the endpoint of one replica. Raises SetupError."""
        endpoints = self.of_set(name)
        if not 0 <= index < len(endpoints):
            raise SetupError(f"{contract.ENV_PEERS} has {len(endpoints)} of {name!r}; there is no index {index}")
        return endpoints[index]


def from_environment(environ: Mapping[str, str]) -> PeerAddresses:
    """Return the peers from the launcher's variable. Raises SetupError."""
    text = environ.get(contract.ENV_PEERS)
    if not text:
        raise SetupError(
            f"{contract.ENV_PEERS} is not set; it says where the others listen, for example "
            f'{contract.ENV_PEERS}={{"ps":["tcp://127.0.0.1:{contract.PS_PORT}"]}}'
        )
    try:
        sets = bounded_json.loads(text)
        endpoints = {str(name): tuple(addresses) for name, addresses in sets.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise SetupError(f"{contract.ENV_PEERS} must be a JSON object of lists of endpoints: {error}") from error
    # Every address, not only the used ones: an invalid one would otherwise fail hours later, elsewhere.
    for address in (address for addresses in endpoints.values() for address in addresses):
        try:
            parse(str(address))
        except EndpointError as error:
            raise SetupError(f"{contract.ENV_PEERS}: {error}") from error
    return PeerAddresses(endpoints)


def own_set(environ: Mapping[str, str], role: str) -> str:
    """Return the name of the set of a process; a process that is started by hand has its role's."""
    return environ.get(contract.ENV_SET) or role


def num_replicas(environ: Mapping[str, str], role: str) -> int:
    """Return how many replicas of a process's set find each other by name; 1 if none do. Raises SetupError."""
    if not environ.get(contract.ENV_PEERS):
        return 1
    return len(from_environment(environ).sets.get(own_set(environ, role), ())) or 1


def index(environ: Mapping[str, str]) -> int:
    """Return the index of this process in its set. Raises SetupError."""
    return whole_number(environ, contract.ENV_INDEX)


def whole_number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable as a whole number; 0 if it is not set. Raises SetupError."""
    value = environ.get(name) or "0"
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise SetupError(f"{name} is {value!r}; it must be a whole number from 0")
    return int(value)


def keep_to_loopback(address: str) -> None:
    """Make the ranks of a job on one machine listen on loopback only; `address` is the node's."""
    # By default Gloo and NCCL use the interface of the host's name, which other machines can reach, and they do not
    # authenticate connections.
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:  # the name of a container
        is_loopback = False
    loopback = next((name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}), "")
    if loopback and is_loopback:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)


SOCKET_PATH_LIMIT: Final = 103 if sys.platform == "darwin" else 107
"""Longest path of a Unix socket in bytes: `sun_path` without its terminator (104 on macOS, 108 on Linux)."""


class EndpointError(ValueError):
    """The endpoint cannot be used; the message names it and the necessary change."""


class Endpoint(Struct, frozen=True):
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
