"""What can be known before a launch, and what works at an Engine, as findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2rtui.backends.docker import machine, render
from l2rtui.backends.docker.engine import Engine, MissingError
from l2rtui.domain.node import Gpu
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Weight
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import RefusedError

_TOOLKIT = "Install the NVIDIA Container Toolkit and run `nvidia-ctk runtime configure --runtime=docker`."


async def check_plan(engine: Engine, info: Mapping[str, Any], plan: LaunchPlan) -> tuple[Finding, ...]:
    """Judge a plan: images, GPUs, and what only Kubernetes can do."""
    found = [
        Finding(Weight.REFUSAL, run.spec.name, problem)
        for run in plan.runs
        for problem in render.problems(run.spec)
    ]
    images = {render.image_of(run.spec, one): run.spec.name for run in plan.runs for one in run.spec.sets}
    for image, run in sorted(images.items()):
        found.append(await _image(engine, image, run))
    pods = [pod for run in plan.runs for pod in run.pods]
    if any(pod.gpu is not None and not pod.gpu.is_cpu for pod in pods) and not machine.has_gpu_runtime(info):
        found.append(Finding(Weight.REFUSAL, "GPU", "the Engine cannot hand GPUs to containers", _TOOLKIT))
    return tuple(found)


def refuse_impossible(spec: RunSpec) -> None:
    """Refuse a spec that this backend cannot run.

    Raises:
        RefusedError: naming the first reason.
    """
    for problem in render.problems(spec):
        raise RefusedError(f"{spec.name}: {problem}.")


def diagnose(info: Mapping[str, Any], path: str, gpus: tuple[tuple[Gpu, ...], str]) -> tuple[Finding, ...]:
    """What works at this Engine."""
    found = [Finding(Weight.OK, "Engine", f"Docker {info.get('ServerVersion', '?')} answers at {path}")]
    devices, problem = gpus
    if problem:
        found.append(Finding(Weight.WARNING, "GPU", problem))
    elif not devices:
        found.append(Finding(Weight.OK, "GPU", "there is none: slots are shares of the CPU"))
    elif machine.has_gpu_runtime(info):
        found.append(Finding(Weight.OK, "GPU", f"{len(devices)} GPUs, and the Engine can hand them out"))
    else:
        found.append(Finding(Weight.REFUSAL, "GPU", "the Engine cannot hand GPUs to containers", _TOOLKIT))
    found.extend(Finding(Weight.WARNING, "Engine", str(each).strip()) for each in info.get("Warnings") or ())
    return tuple(found)


async def _image(engine: Engine, image: str, run: str) -> Finding:
    if not image:
        return Finding(Weight.REFUSAL, run, "it names no image", "Give one: `image:` in the spec, or --image.")
    try:
        found = await engine.ask("GET", f"/images/{image}/json")
    except MissingError:
        return Finding(Weight.REFUSAL, image, "the Engine does not have this image", f"Run `docker pull {image}`.")
    return Finding(Weight.OK, image, f"the Engine has it ({found['Id'].removeprefix('sha256:')[:12]})")
