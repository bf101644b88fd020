"""The program of a node, started with torch's public launcher (the code behind `torchrun`)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from runtime.base.cli_options import program
from runtime.jobs.elastic.plan import ElasticPlan
from runtime.jobs.elastic.rendezvous_handler import BACKEND, RendezvousHandler, configuration, register

SHUTDOWN_SECONDS: Final = 3
"""Grace period of a program after SIGTERM. It may hang in a collective operation, where no handler runs."""
MONITOR_SECONDS: Final = 0.25
_NO_LIMIT: Final = 1_000_000
"""Our handler counts restarts per membership; torch counts them over the life of a node."""


def num_processes(plan: ElasticPlan) -> int:
    """Return the processes of this node: the configured number, or one per GPU that torch finds, at least one."""
    return plan.processes or max(1, torch.cuda.device_count())


def sharing(processes: int, gpus: int) -> str:
    """Return a sentence if processes of a node have to share its GPUs; empty if not."""
    if not 0 < gpus < processes:
        return ""
    return (
        f"{processes} processes for {gpus} GPU{'s' * (gpus > 1)}: NCCL takes one process for each GPU; "
        f"leave --nproc-per-node out, or train with --device cpu"
    )


def run_program(handler: RendezvousHandler, plan: ElasticPlan, processes: int, log_folder: str) -> None:
    """Run the plan's program in each round until it has ended on all nodes.

    Raises ChildFailedError, and the handler's errors.
    """
    register()
    argv = program(plan.command)
    config = LaunchConfig(
        min_nodes=plan.min_nodes,
        max_nodes=plan.max_nodes,
        nproc_per_node=processes,
        run_id=plan.run_id,
        role="default",
        rdzv_backend=BACKEND,
        rdzv_configs=configuration(handler),
        max_restarts=_NO_LIMIT,
        monitor_interval=MONITOR_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=log_folder),
        local_addr=plan.local_address,
        **_grace(),
    )
    elastic_launch(config, argv[0])(*argv[1:])


def _grace() -> dict[str, Any]:
    # The launcher of torch before 2.12 lacks this setting; a program that ignores SIGTERM gets 30 seconds.
    has_it = any(field.name == "shutdown_timeout" for field in fields(LaunchConfig))
    return {"shutdown_timeout": SHUTDOWN_SECONDS} if has_it else {}
