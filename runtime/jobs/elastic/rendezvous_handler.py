"""torch's dynamic rendezvous handler, adapted to pods.

- A node that gets SIGTERM leaves the round at once, instead of after its heartbeats are missed.
- A node of the round that is gone begins a new round even where nothing fails by itself: a connection to a machine
  that lost its power is silent, and a collective operation would wait for its own patience.
- Heartbeats are missed after 10 seconds (30 over etcd), so that a killed node is noticed within that and a moment.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    _RendezvousExitOp,
)

from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.rendezvous_client import RendezvousConnection

BEAT_SECONDS: Final = 2
BEATS_MISSED: Final = 5
BEATS_MISSED_ETCD: Final = 15
"""A beat over etcd is a request and a file: on a busy machine it takes longer than one to torch's store."""
JOIN_SECONDS: Final = 60
"""Interval at which a node that waits for the minimum of nodes reports that."""
_LEAVE_SECONDS: Final = 3.0


class RendezvousHandler(DynamicRendezvousHandler):
    """Rendezvous handler of one node."""

    _participants: frozenset[object] = frozenset()

    @classmethod
    def over(cls, connection: RendezvousConnection, plan: ElasticPlan) -> RendezvousHandler:
        """Make a handler."""
        made: RendezvousHandler = cls.from_backend(
            plan.run_id,
            connection.store,
            connection.backend,
            plan.min_nodes,
            plan.max_nodes,
            plan.local_address,
            RendezvousTimeout(
                join=timedelta(seconds=JOIN_SECONDS),
                last_call=timedelta(seconds=plan.gather_seconds),
                close=timedelta(seconds=5),
                heartbeat=timedelta(seconds=5 if plan.backend == "c10d" else 15),
            ),
            keep_alive_interval=BEAT_SECONDS,
            keep_alive_max_attempt=BEATS_MISSED if plan.backend == "c10d" else BEATS_MISSED_ETCD,
        )
        return made

    @property
    def round(self) -> int:
        """The round that this node is in."""
        return int(self._state_holder.state.round)

    @property
    def participants(self) -> frozenset[object]:
        """The nodes of the round that this node joined."""
        return self._participants

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round."""
        info = super().next_rendezvous()
        self._participants = frozenset(self._state_holder.state.participants)
        return info

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for a new round, and count those that are gone from this one."""
        waiting = super().num_nodes_waiting()
        # torch counts only nodes that wait. Counting those that vanished too makes the agent start a new round.
        return int(waiting) + len(self._participants.difference(self._state_holder.state.participants))

    def leave(self) -> None:
        """Leave the round; a rendezvous that is gone counts as left."""
        self._stop_heartbeats()
        try:
            with self._heartbeat_lock:
                self._op_executor.run(_RendezvousExitOp(), time.monotonic() + _LEAVE_SECONDS)
        except RendezvousError:
            pass
