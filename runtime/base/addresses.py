"""Addresses of a run's processes with stable names, which a launcher provides in ``L2R_PEERS``."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.base import bounded_json, contract, endpoint
from runtime.base.errors import SetupError


@dataclass(frozen=True, slots=True)
class PeerAddresses:
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
            endpoint.parse(str(address))
        except endpoint.EndpointError as error:
            raise SetupError(f"{contract.ENV_PEERS}: {error}") from error
    return PeerAddresses(endpoints)


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
    loopback = next((name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}), "")
    if loopback and ipaddress.ip_address(address).is_loopback:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)
