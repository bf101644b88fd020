"""Plan of one node of an elastic job: its program, its limits, and its rendezvous (stdlib only)."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime.base import addresses, contract
from runtime.base.addresses import Endpoint, EndpointError, parse
from runtime.base.atomic_files import write_atomic
from runtime.base.cli_options import run_id as id_of_run
from runtime.base.errors import SetupError
from runtime.base.launch_context import read_token

_SOCKET: Final = "nodes.sock"
"""In the folder of an ``ipc://`` endpoint: the socket of the rendezvous."""
MAX_NAME: Final = 63
"""Maximum length of a node's name."""


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """Configuration of one node; `processes` None means one process per GPU."""

    backend: str
    endpoint: Endpoint
    run_id: str
    min_nodes: int
    max_nodes: int
    processes: int | None
    max_restarts: int
    gather_seconds: int
    command: tuple[str, ...]
    local_address: str
    token: str = field(repr=False)
    name: str
    folder: Path | None

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], *, set_name: str, run_id: str, **options: Any
    ) -> ElasticPlan:
        """Return the plan from variables and `options`, which are fields by name. Raises SetupError."""
        endpoint = meeting_point(environ, set_name, 0)
        token = read_token(environ.get(contract.ENV_TOKEN_FILE))
        if not token and not endpoint.is_private():
            raise SetupError(
                f"the rendezvous {endpoint.data} can be reached from other machines and there is no token by "
                f"which its nodes prove themselves; set {contract.ENV_TOKEN_FILE} to the run's token file"
            )
        address = environ.get(contract.ENV_POD_IP) or ("127.0.0.1" if endpoint.is_private() else "")
        if not address:
            raise SetupError(
                f"{contract.ENV_POD_IP} is not set; it is the address at which other nodes reach this one"
            )
        folder = environ.get(contract.ENV_DIR)
        return cls(
            **options,
            endpoint=endpoint,
            run_id=run_id or id_of_run(environ),
            local_address=address,
            token=token,
            name=node_name(environ),
            folder=Path(folder) if folder else None,
        )

    @property
    def marker(self) -> Path | None:
        """File that marks the end of the training, for nodes that start when even the rendezvous is gone."""
        name = "".join(char if char.isalnum() or char in "._-" else "_" for char in self.run_id)
        return self.folder / f"elastic-{name}.done" if self.folder else None

    def is_done(self) -> bool:
        """Return whether the training has ended."""
        return self.marker is not None and self.marker.exists()

    def mark_done(self) -> None:
        """Create the file, if the folder exists and is writable."""
        if self.marker is not None:
            with contextlib.suppress(OSError):
                self.marker.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(self.marker, b"")


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
