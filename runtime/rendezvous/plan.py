"""Plan of one node: its rendezvous, and how many nodes meet there (stdlib only)."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from runtime.base import addresses, contract
from runtime.base.addresses import Endpoint, EndpointError, parse
from runtime.base.cli_options import run_id as id_of_run
from runtime.base.errors import SetupError
from runtime.base.launch_context import read_token

_SOCKET: Final = "nodes.sock"
"""In the folder of an ``ipc://`` endpoint: the socket of the rendezvous."""
MAX_NAME: Final = 63
"""Maximum length of a node's name."""


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """Configuration of one node at its rendezvous.

    Attributes:
        max_restarts: Failures of the program with the same nodes after which the node gives up.
        gather_seconds: How long the fewest nodes wait for more.
        place: Fixed order of this node among the others; None to give the lowest ranks to the oldest nodes.
    """

    backend: str = "c10d"
    endpoint: Endpoint
    run_id: str
    min_nodes: int
    max_nodes: int
    max_restarts: int = 0
    gather_seconds: int = 0
    local_address: str
    token: str = field(repr=False)
    name: str
    place: int | None = None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, set_name: str, run_id: str = "", **options: Any
    ) -> Self:
        """Return the plan from variables and `options`, which are fields by name. Raises SetupError.

        The first replica of ``set_name`` hosts the rendezvous.
        """
        endpoint = meeting_point(environ, set_name, 0)
        token = checked_token(endpoint, environ)
        address = environ.get(contract.ENV_POD_IP) or ("127.0.0.1" if endpoint.is_private() else "")
        if not address:
            raise SetupError(
                f"{contract.ENV_POD_IP} is not set; it is the address at which other nodes reach this one"
            )
        return cls(
            **options,
            endpoint=endpoint,
            run_id=run_id or id_of_run(environ),
            local_address=address,
            token=token,
            name=node_name(environ),
        )


def checked_token(endpoint: Endpoint, environ: Mapping[str, str]) -> str:
    """Return the run's token. Raises SetupError if there is none and other machines reach the endpoint."""
    token = read_token(environ.get(contract.ENV_TOKEN_FILE))
    if not token and not endpoint.is_private():
        raise SetupError(
            f"the rendezvous {endpoint.data} can be reached from other machines and there is no token by which "
            f"its nodes prove themselves; set {contract.ENV_TOKEN_FILE} to the run's token file"
        )
    return token


def node_name(environ: Mapping[str, str]) -> str:
    """Return the display name of this node: the pod's name, or the machine's."""
    # Other nodes print it, so it is plain text of limited length whatever the variables contain.
    return re.sub(r"[^A-Za-z0-9._-]", "_", environ.get(contract.ENV_POD) or socket.gethostname())[:MAX_NAME]


def meeting_point(environ: Mapping[str, str], set_name: str, index: int) -> Endpoint:
    """Return the address of the rendezvous: an entry of ``L2R_PEERS``, or ``L2R_ENDPOINT``. Raises SetupError."""
    if set_name:
        text = addresses.from_environment(environ).of_replica(set_name, index)
    else:
        text = environ.get(contract.ENV_ENDPOINT) or ""
        if not text:
            raise SetupError(
                f"{contract.ENV_ENDPOINT} is not set; it says where the nodes meet, for example "
                f"{contract.ENV_ENDPOINT}=tcp://127.0.0.1:{contract.RENDEZVOUS_PORT}"
            )
    try:
        return parse(text)
    except EndpointError as error:
        raise SetupError(str(error)) from error


def bound_address(endpoint: Endpoint, port: int) -> str:
    """Return the ZeroMQ address on which the rendezvous listens; `port` 0 means the endpoint's."""
    if endpoint.folder is not None:
        return _socket(endpoint.folder)
    is_private, is_ipv6 = endpoint.is_private(), ":" in endpoint.host
    # A non-private endpoint must accept other pods: it is then a name that resolves to this pod.
    loopback, everywhere = ("[::1]", "[::]") if is_ipv6 else ("127.0.0.1", "0.0.0.0")  # noqa: S104
    return f"tcp://{loopback if is_private else everywhere}:{port or endpoint.port}"


def node_address(endpoint: Endpoint) -> str:
    """Return the ZeroMQ address to which nodes connect."""
    return endpoint.data if endpoint.folder is None else _socket(endpoint.folder)


def _socket(folder: Path) -> str:
    return f"ipc://{folder / _SOCKET}"
