"""This machine as one Node; GPU processes of other programs appear as pods that l2rtui did not launch."""

from __future__ import annotations

from pathlib import Path

import psutil
from msgspec import Struct

from l2rtui.backends.common.node_info import CpuLoad, boot_time, memory_limit, memory_used, node_name
from l2rtui.backends.common.nvml import GpuProcess, GpuReader, GpuReport, cpu_device, shares_of
from l2rtui.backends.local import process_scan
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Node
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from runtime.base.cgroups import usable_cores


class NodeReading(Struct, frozen=True):
    """The node at one moment, the foreign processes on its GPUs, and the version of their driver."""

    node: Node
    foreign_pods: tuple[PodView, ...] = ()
    problem: str = ""
    driver: str = ""


class NodeReader:
    """Reads this machine; ``read`` blocks for a few milliseconds and belongs in a thread.

    Args:
        runs: Folder of our runs: a GPU process whose environment names a folder in it is ours.
    """

    def __init__(self, settings: Settings, runs: Path, nvml: object = None) -> None:
        self._settings = settings
        self._runs = str(runs)
        self._gpus = GpuReader(settings.slots_per_gpu, nvml)
        self._cpu_load = CpuLoad()

    def read(self) -> NodeReading:
        """Return the node as it is now."""
        name, cores = node_name(), usable_cores()
        settings, report = self._settings, self._gpus.read(name)
        # A problem means that GPUs exist but cannot be read: the CPU is then an additional device, not a
        # replacement.
        has_gpus = bool(report.gpus or report.problem)
        cpu = cpu_device(name, cores, settings.slots_per_core, settings.max_cpu_slots, index=CPU if has_gpus else 0)
        memory = psutil.virtual_memory().total
        # The scan of all environments is expensive, and needed only if a GPU is in use.
        ours = (
            {process.proc.pid: process.pod_id for process in process_scan.find_tagged(self._is_ours)}
            if report.processes
            else {}
        )
        strange = (process for process in report.processes if process.pid not in ours)
        foreign = {process: pod for process in strange if (pod := _foreign_pod(name, process)) is not None}

        def pod_of(process: GpuProcess) -> str:
            return foreign[process].uid if process in foreign else ours.get(process.pid, "")

        node = Node(
            name,
            report.gpus if has_gpus else (cpu,),
            cpu_cores=cores,
            memory_bytes=min(memory, memory_limit() or memory),
            cpu_used=round(self._cpu_load.read(), 2),
            memory_used_bytes=memory_used(),
            gpu_use=shares_of(report, pod_of),
            message=report.problem,
            cpu=cpu if has_gpus else None,
            created=boot_time(),
        )
        return NodeReading(node, tuple(foreign.values()), report.problem, report.driver)

    def read_gpus(self) -> GpuReport:
        """Return the GPUs and their processes as they are now."""
        return self._gpus.read(node_name())

    def _is_ours(self, process: process_scan.TaggedProcess) -> bool:
        # A run of another state folder is foreign here: no pod of this backend shows that it uses the GPU.
        return process.folder.rpartition("/")[0] == self._runs

    def close(self) -> None:
        """Close NVML."""
        self._gpus.close()


def _foreign_pod(node: str, gpu_process: GpuProcess) -> PodView | None:
    """Return a foreign process on a GPU as a pod; None if it has just ended."""
    created, command, owner = 0.0, "process", ""
    try:
        process = psutil.Process(gpu_process.pid)
        created, command = process.create_time(), process.name()
        owner = process.username()
    except psutil.NoSuchProcess:
        return None
    except (psutil.AccessDenied, KeyError):
        pass  # NVML lists it, and the system hides its owner (hidepid) or has no name for the uid
    return PodView(
        uid=f"{node}-{gpu_process.pid}-{created:.0f}-{gpu_process.claim.gpu}",
        name=f"{command}-{gpu_process.pid}",
        node=node,
        owner=owner,
        devices=(gpu_process.claim,),
        phase=Phase.RUNNING,
        ready=True,
        created=created,
        started=created,
        pid=gpu_process.pid,
    )
