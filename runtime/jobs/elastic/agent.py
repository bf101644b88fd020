"""torch's local elastic agent with records of its state, and restarts that count per membership."""

from __future__ import annotations

import os
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from runtime.base import contract
from runtime.base.cli_options import program
from runtime.base.metrics import Console, record
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.rendezvous_handler import RendezvousHandler

SHUTDOWN_SECONDS: Final = 3
"""Grace of a program after SIGTERM. It may hang in a collective operation, where no handler runs."""
BARRIER_SECONDS: Final = 30.0
"""Wait of a finished node for the others."""


class Agent(LocalElasticAgent):
    """Runs the program in each round."""

    def __init__(self, handler: RendezvousHandler, plan: ElasticPlan, log_folder: str, console: Console) -> None:
        argv = program(plan.command)
        spec = WorkerSpec(
            role="default",
            local_world_size=plan.processes,
            rdzv_handler=handler,
            entrypoint=argv[0],
            args=tuple(argv[1:]),
            max_restarts=plan.max_restarts,
            monitor_interval=0.25,
            local_addr=plan.local_address,
        )
        super().__init__(
            spec,
            DefaultLogsSpecs(log_dir=log_folder),
            exit_barrier_timeout=BARRIER_SECONDS,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        self._handler = handler
        self._processes = plan.processes
        self._console = console
        self._participants: frozenset[object] = frozenset()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self.report_state("waiting")
        super()._rendezvous(worker_group)
        if self._handler.participants != self._participants:
            # With other members, earlier failures may have been theirs: the restart budget begins again.
            self._participants = self._handler.participants
            self._remaining_restarts = worker_group.spec.max_restarts
        os.environ[contract.ENV_ROUND] = str(self._handler.round)
        self.report_state("training", worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002  (torch's signature)
        self._shutdown(timeout=SHUTDOWN_SECONDS)

    def report_state(self, state: str, group: WorkerGroup | None = None) -> None:
        """Record the state of this node."""
        nodes = len(self._handler.participants) if group else None
        fields: dict[str, Any] = {
            "state": state,
            "nodes": nodes,
            "rank": group.workers[0].global_rank if group else None,
            "world_size": group.workers[0].world_size if group else None,
            "round": self._handler.round if group else None,
        }
        self._console.record(record("elastic", fields))
        if group:
            self._console.say(
                f"round {fields['round']}: {nodes} nodes, {fields['world_size']} processes, "
                f"{self._processes} of them here from rank {fields['rank']}"
            )
        elif state == "waiting":
            self._console.say("waiting for the nodes of the next round")
