"""Checks of elastic jobs before a launch: NCCL, which sums gradients between GPUs, takes one process per GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from l2rtui.domain.containers import Binding
from l2rtui.domain.plan import LaunchPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import SetSpec
from l2rtui.services import runtime_commands

_CPU_HINT = "If the program computes on a CPU, write `binding: cpu` under the nodes' pod."


def check_elastic(plan: LaunchPlan) -> tuple[Finding, ...]:
    """Return a warning for each elastic set of which two processes would share a GPU.

    A warning, not a refusal: only the program knows whether it computes on the GPU of its node.
    """
    return tuple(finding for run in plan.runs for finding in _of_run(run))


def _of_run(run: RunPlan) -> Iterable[Finding]:
    for set_spec in run.spec.sets:
        elastic = _elastic(set_spec)
        if elastic is None or set_spec.pod.binding is Binding.CPU:
            continue
        subject = f"{run.spec.name}/{set_spec.name}"
        pods: defaultdict[str, list[str]] = defaultdict(list)
        for pod in run.pods:
            if pod.set_spec.name == set_spec.name:
                for gpu in pod.devices:
                    if not gpu.is_cpu:
                        pods[f"{pod.node}/{gpu.index}"].append(pod.name)
        # All slots of a replica are on one GPU, unless it has whole ones.
        number = max(1, set_spec.gpus)
        if pods and (elastic.processes or 1) > number:
            its = "its GPU" if number == 1 else f"its {number} GPUs"
            sentence = f"{elastic.processes} processes of each node would share {its}, and NCCL takes one for each"
            yield Finding(
                Severity.WARNING, subject, sentence, f"Write more nodes with one process each. {_CPU_HINT}"
            )
        for device, names in pods.items():
            if len(names) > 1:
                sentence = (
                    f"{' and '.join(names)} would share the GPU {device}, and NCCL takes one process for each"
                )
                yield Finding(Severity.WARNING, subject, sentence, f"Write fewer nodes. {_CPU_HINT}")


def _elastic(set_spec: SetSpec) -> runtime_commands.ElasticCommand | None:
    wrapped = runtime_commands.read_step(set_spec.command)
    match = runtime_commands.read_elastic(wrapped[1] if wrapped else set_spec.command)
    return None if match is None else match[0]
