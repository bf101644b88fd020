"""This machine as one Node, with other people's processes on its GPUs as pods that are not ours."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from l2rtui.backends.local import processes
from l2rtui.backends.local.capacity import memory_limit, node_name, usable_cores
from l2rtui.backends.local.gpus import GpuReader, GpuReport, GpuUse, cpu_device
from l2rtui.config import Settings
from l2rtui.domain.ledger import Claim
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase

_NO_DRIVER_SECONDS = 60.0
"""How long the absence of a driver is believed: looking for it searches every library folder."""


@dataclass(frozen=True, slots=True)
class MachineView:
    """The node, and what else is to be known of it."""

    node: Node
    strangers: tuple[PodView, ...] = ()
    problem: str = ""


class Machine:
    """Looks at this machine; ``look`` blocks for some milliseconds and belongs in a thread.

    Args:
        runs: Folder of our runs: a GPU process with a folder of it in its environment is no stranger.
    """

    def __init__(self, settings: Settings, runs: Path, nvml: object = None) -> None:
        self._settings = settings
        self._runs = str(runs)
        self._gpus = GpuReader(node_name(), settings.slots_per_gpu, nvml)
        self._report = GpuReport()
        self._no_driver_until = 0.0
        psutil.cpu_percent()  # the first call only starts the measurement

    def look(self) -> MachineView:
        """Give the node as it is now."""
        name, cores = node_name(), usable_cores()
        if time.monotonic() >= self._no_driver_until:
            self._report = self._gpus.read()
            if not self._report.has_driver:
                self._no_driver_until = time.monotonic() + _NO_DRIVER_SECONDS
        settings, report = self._settings, self._report
        gpus = report.gpus
        if not gpus and not report.problem:
            gpus = (cpu_device(name, cores, settings.slots_per_core, settings.max_cpu_slots),)
        memory = psutil.virtual_memory()
        node = Node(
            name,
            gpus,
            cpu_cores=cores,
            memory_bytes=min(memory.total, memory_limit() or memory.total),
            cpu_used=round(psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1), 2),
            memory_used_bytes=memory.total - memory.available,
            message=report.problem,
        )
        ours = {one.proc.pid for one in processes.marked(self._is_ours)} if report.uses else set()
        strangers = tuple(pod for use in report.uses if use.pid not in ours and (pod := _stranger(name, use)))
        return MachineView(node, strangers, report.problem)

    def _is_ours(self, one: processes.Marked) -> bool:
        # A run of another state folder is somebody else's here: no pod of ours shows that it holds the GPU.
        return one.folder.rpartition("/")[0] == self._runs

    def close(self) -> None:
        """Let go of the driver."""
        self._gpus.close()


def _stranger(node: str, use: GpuUse) -> PodView | None:
    """Somebody else's process on a GPU; None when it has just ended."""
    created, command, owner = 0.0, "process", ""
    try:
        process = psutil.Process(use.pid)
        created, command = process.create_time(), process.name()
        owner = process.username()
    except psutil.NoSuchProcess:
        return None
    except (psutil.AccessDenied, KeyError):
        pass  # the driver says that it is there; of whom, the system does not
    claim: Claim = use.claim
    return PodView(
        uid=f"{node}-{use.pid}-{created:.0f}-{claim.gpu}",
        name=f"{command}-{use.pid}",
        node=node,
        owner=owner,
        claims=(claim,),
        phase=Phase.RUNNING,
        ready=True,
        created=created,
        started=created,
        pid=use.pid,
    )
