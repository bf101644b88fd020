"""Connection of a node to the rendezvous: torch's store or etcd, with values signed under the run's token."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.shared_values import EtcdValues, SharedValues, StoreValues, signed

PATIENCE: Final = timedelta(seconds=15)
_CONNECT_SECONDS: Final = 3.0


def connect(plan: ElasticPlan) -> SharedValues:
    """Connect to the rendezvous. Raises OSError while it is not there."""
    address = plan.address()
    if address is None:
        raise OSError("the rendezvous has not said yet where it listens")
    host, port = address
    # A plain connection first: torch's own attempts go on for the whole timeout and react to no signal.
    socket.create_connection((host, port), _CONNECT_SECONDS).close()
    values: SharedValues
    if plan.backend == "c10d":
        try:
            values = StoreValues(TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE))
        except (RuntimeError, ValueError) as error:
            raise OSError(str(error)) from error
    else:
        values = EtcdValues(host, port)
    return signed(values, plan.token, plan.run_id)
