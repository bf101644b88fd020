"""Findings before a launch, and findings about an Engine's health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2rtui.backends.common.nvml import GpuReport
from l2rtui.backends.docker import container_config, node_info
from l2rtui.cloud.docker_engine import DockerEngine, DockerMissingError
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import RefusedError

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
    if any(gpu is not None and not gpu.is_cpu for gpu in gpus) and not node_info.has_gpu_runtime(info):
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
    elif node_info.has_gpu_runtime(info):
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
