"""Address of a rendezvous: the process that hosts it listens there, and nodes connect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from runtime.base.addresses import Endpoint, EndpointError
from runtime.base.errors import FailedError
from runtime.base.processes import in_thread
from runtime.exchange.transport.request_reply import ReplySocket, RequestSocket
from runtime.rendezvous.plan import NodePlan, bound_address, node_address
from runtime.rendezvous.shared_values import LARGEST_BYTES, RemoteValues, SharedValues, answer, keys_of

_SERVE_SECONDS: Final = 0.2


@contextlib.contextmanager
def listening(endpoint: Endpoint, port: int, token: str) -> Iterator[ReplySocket]:
    """Listen for the nodes; ``port`` 0 means the endpoint's. Raises FailedError if the address is in use."""
    if endpoint.folder is not None:
        endpoint.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        socket = ReplySocket(bound_address(endpoint, port), LARGEST_BYTES, keys_of(token)[0])
    except EndpointError as error:
        raise FailedError(f"the rendezvous {error}") from error
    with socket:
        yield socket


def connect(plan: NodePlan) -> RemoteValues:
    """Return the values at the rendezvous; reading them raises OSError while it is unreachable."""
    return RemoteValues(RequestSocket(node_address(plan.endpoint), LARGEST_BYTES, keys_of(plan.token)[1]))


@contextlib.contextmanager
def hosted(plan: NodePlan, values: SharedValues) -> Iterator[None]:
    """Answer the other nodes with these values in a thread. Raises FailedError."""
    with listening(plan.endpoint, 0, plan.token) as socket:

        def serve() -> None:
            socket.serve(_SERVE_SECONDS, lambda request: answer(values, request))

        with in_thread("rendezvous host", serve):
            yield
