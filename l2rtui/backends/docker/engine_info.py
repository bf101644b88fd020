"""Machine of an Engine as one node, findings before a launch, and findings about the Engine's health.

Cores and memory come from the Engine, GPUs from NVIDIA's driver. The Engine API does not list GPUs. Its socket is
a file, so Engine and driver both run on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from l2rtui.backends.common.node_info import CpuLoad, boot_time, dns_label
from l2rtui.backends.common.nvml import GpuProcess, GpuReport, cpu_device, shares_of
from l2rtui.backends.docker import container_config
from l2rtui.cloud.docker_engine import DockerEngine, DockerMissingError
from l2rtui.config import Settings
from l2rtui.domain.node import CPU, Node
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import RefusedError

_PROC: Final = Path("/proc")
_CONTAINER_ID: Final = re.compile(r"\b[0-9a-f]{64}\b")


def node_name(info: Mapping[str, Any]) -> str:
    """Return the Engine's host name as a DNS label, as slot names require."""
    return dns_label(str(info.get("Name", ""))) or "docker"


def container_of(process: GpuProcess, proc: Path = _PROC) -> str:
    """Return the id of the container that a process runs in, from its control group; empty outside of containers.

    The Engine names the group after the container: ``docker-ID.scope`` with systemd, ``docker/ID`` without.
    """
    try:
        groups = (proc / str(process.pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:  # already ended, or not in our PID namespace
        return ""
    match = _CONTAINER_ID.search(groups)
    return match[0] if match else ""


def has_gpu_runtime(info: Mapping[str, Any]) -> bool:
    """Return whether containers can get GPUs: through NVIDIA's runtime, or as CDI devices."""
    return "nvidia" in info.get("Runtimes", {}) or bool(info.get("CDISpecDirs"))


class EngineLoad:
    """CPU cores and memory in use on the Engine's machine, measured by a process of that machine."""

    def __init__(self) -> None:
        self._cpu = CpuLoad(has_quota=False)  # this process may itself run in a container of the Engine

    def read(self, info: Mapping[str, Any]) -> tuple[float | None, int | None]:
        """Return cores and bytes; None for both if the Engine runs in a virtual machine (Docker Desktop)."""
        memory = psutil.virtual_memory()
        # Both come from the kernel: a virtual machine never has exactly the memory of its host.
        if info.get("MemTotal") != memory.total:
            return None, None
        return round(self._cpu.read(), 2), memory.total - memory.available


def node(
    info: Mapping[str, Any],
    settings: Settings,
    report: GpuReport,
    *,
    cpu_used: float | None = None,
    memory_used_bytes: int | None = None,
) -> Node:
    """Return the only node; it has a CPU device, plus its GPUs if any."""
    name, cores = node_name(info), float(info.get("NCPU", 1))
    cpu = cpu_device(name, cores, settings.slots_per_core, settings.max_cpu_slots, index=CPU if report.gpus else 0)
    return Node(
        name,
        report.gpus or (cpu,),
        cpu_cores=cores,
        memory_bytes=int(info.get("MemTotal", 0)),
        message=report.problem,
        cpu=cpu if report.gpus else None,
        gpu_use=shares_of(report, container_of),
        cpu_used=cpu_used,
        memory_used_bytes=memory_used_bytes,
        # If the machine's load is not readable, our boot time does not apply to it.
        created=0.0 if cpu_used is None else boot_time(),
    )


_TOOLKIT = "Install the NVIDIA Container Toolkit and run `nvidia-ctk runtime configure --runtime=docker`."
_NOBODY_ENFORCES = "its limits end nothing here: no learner enforces them, and the Engine knows no deadline"
_LIMIT_HINT = "Put `timeout 12h` before the command, or run it on this machine or on Kubernetes."


async def check_plan(engine: DockerEngine, info: Mapping[str, Any], plan: LaunchPlan) -> tuple[Finding, ...]:
    """Check a plan: images, GPUs, and fields that only Kubernetes implements."""
    findings = [
        Finding(Severity.REFUSAL, run.spec.name, problem)
        for run in plan.runs
        for problem in container_config.unsupported(run.spec)
    ]
    specs = [run.spec for run in plan.runs]
    images = {container_config.image_of(spec, set_spec): spec.name for spec in specs for set_spec in spec.sets}
    findings += [await _image(engine, image, run) for image, run in sorted(images.items())]
    findings += [
        Finding(Severity.WARNING, spec.name, _NOBODY_ENFORCES, _LIMIT_HINT)
        for spec in specs
        if _lacks_enforcement(spec)
    ]
    gpus = [pod.gpu for run in plan.runs for pod in run.pods]
    if any(gpu is not None and not gpu.is_cpu for gpu in gpus) and not has_gpu_runtime(info):
        findings.append(Finding(Severity.REFUSAL, "GPU", "the Engine cannot hand GPUs to containers", _TOOLKIT))
    return tuple(findings)


def _lacks_enforcement(spec: RunSpec) -> bool:
    return spec.limits is not None and all(part.role is not Role.LEARNER for part in spec.sets)


def refuse_impossible(spec: RunSpec) -> None:
    """Refuse a spec that this backend cannot run. Raises RefusedError with the first reason."""
    for problem in container_config.unsupported(spec):
        raise RefusedError(f"{spec.name}: {problem}.")


def diagnose(info: Mapping[str, Any], path: str, report: GpuReport) -> tuple[Finding, ...]:
    """Check the Engine and its GPUs."""
    findings = [Finding(Severity.OK, "Engine", f"Docker {info.get('ServerVersion', '?')} answers at {path}")]
    if report.problem:
        findings.append(Finding(Severity.WARNING, "GPU", report.problem))
    elif not report.gpus:
        findings.append(Finding(Severity.OK, "GPU", "there is none: slots are shares of the CPU"))
    elif has_gpu_runtime(info):
        findings.append(Finding(Severity.OK, "GPU", f"{len(report.gpus)} GPUs, and the Engine can hand them out"))
    else:
        findings.append(Finding(Severity.REFUSAL, "GPU", "the Engine cannot hand GPUs to containers", _TOOLKIT))
    findings.extend(Finding(Severity.WARNING, "Engine", str(text).strip()) for text in info.get("Warnings") or ())
    return tuple(findings)


async def _image(engine: DockerEngine, image: str, run: str) -> Finding:
    if not image:
        return Finding(Severity.REFUSAL, run, "it names no image", "Give one: `image:` in the spec, or --image.")
    try:
        details = await engine.request_json("GET", f"/images/{image}/json")
    except DockerMissingError:
        hint = f"Run `docker pull {image}`."
        return Finding(Severity.REFUSAL, image, "the Engine does not have this image", hint)
    return Finding(Severity.OK, image, f"the Engine has it ({details['Id'].removeprefix('sha256:')[:12]})")
