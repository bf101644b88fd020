"""Connection of a node to the rendezvous."""

from __future__ import annotations

from runtime.exchange.transport.request_reply import RequestSocket
from runtime.jobs.elastic.plan import ElasticPlan, node_address
from runtime.jobs.elastic.shared_values import LARGEST_BYTES, RemoteValues, keys_of


def connect(plan: ElasticPlan) -> RemoteValues:
    """Return the values at the rendezvous; reading them raises OSError while it is unreachable."""
    return RemoteValues(RequestSocket(node_address(plan.endpoint), LARGEST_BYTES, keys_of(plan.token)[1]))
