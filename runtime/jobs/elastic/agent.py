"""torch's local agent, which says what it does, and forgives failures that other nodes caused."""

from __future__ import annotations

import os
from typing import Any, Final

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from runtime import contract
from runtime.commands import program
from runtime.elastic.handler import Handler
from runtime.elastic.plan import Plan
from runtime.metrics import Console, record

SHUTDOWN_SECONDS: Final = 3
"""How long a program that is asked to end may take; it may hang in a collective operation, deaf to signals."""
BARRIER_SECONDS: Final = 30.0
"""How long a node that is done waits for the others to be."""


class Agent(LocalElasticAgent):
    """Runs the program in each round."""

    def __init__(self, handler: Handler, plan: Plan, log_folder: str, console: Console) -> None:
        words = program(plan.command)
        spec = WorkerSpec(
            role="default",
            local_world_size=plan.processes,
            rdzv_handler=handler,
            entrypoint=words[0],
            args=tuple(words[1:]),
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
        self._company: frozenset[object] = frozenset()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self.tell("waiting")
        super()._rendezvous(worker_group)
        if self._handler.company != self._company:
            # What failed before failed among others: a program is given up when it fails again and again as it is.
            self._company = self._handler.company
            self._remaining_restarts = worker_group.spec.max_restarts
        os.environ[contract.ENV_ROUND] = str(self._handler.round)
        self.tell("training", worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002  (torch's signature)
        self._shutdown(timeout=SHUTDOWN_SECONDS)

    def tell(self, state: str, group: WorkerGroup | None = None) -> None:
        """Record what this node does."""
        nodes = len(self._handler.company) if group else None
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
