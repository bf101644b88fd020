"""Random nodes with devices of plugins, pods on them, and sets that need more, for the scheduler to decide."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.kubernetes import labels
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec

MIX = "l2r-mix"
"""Label of the nodes of one mix, which keeps its pods among them."""
_RENAMED = ("nvidia.com/a100", "nvidia.com/rtxa6000", "nvidia.com/h100")
_PLUGINS = ("amd.com/gpu", "gpu.intel.com/xe", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "habana.ai/gaudi")
_SLICES = {
    labels.MIG_STRATEGY: "single",
    labels.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    labels.MIG_SLICES: "1",
}


@dataclass(frozen=True)
class Mix:
    """Nodes and pods as manifests, and a run of one set to be placed in addition."""

    nodes: list[dict[str, Any]]
    pods: list[dict[str, Any]]
    run: RunSpec
    has_pins: bool


def make_mix(seed: int) -> Mix:
    """Make one mix; a seed always gives the same."""
    chance = random.Random(seed)
    name = f"m{seed}"
    resource, node_labels = _resource(chance)
    nodes = [
        _node(chance, f"{name}-{number}", name, resource, node_labels) for number in range(chance.randint(1, 3))
    ]
    pods, has_pins = [], False
    for number in range(chance.randint(0, 6)):
        pod, is_pinned = _pod(chance, f"{name}-p{number}", nodes, resource)
        pods.append(pod)
        has_pins = has_pins or is_pinned
    device = "" if resource == "nvidia.com/gpu" or (resource in _RENAMED and chance.random() < 0.5) else resource
    part = SetSpec(
        "w",
        Role.JOB,
        ("sleep", "600"),
        replicas=chance.randint(1, 5),
        gpus=chance.choice((0, 0, 1, 2, 3, 4)),
        restart=RestartPolicy.NEVER,
        pod=PodSettings(binding=Binding.DEVICE_PLUGIN, device=device, node_selector=((MIX, name),)),
    )
    return Mix(nodes, pods, RunSpec(Kind.JOB, name, name, (part,), image="any:1"), has_pins)


def _resource(chance: random.Random) -> tuple[str, dict[str, str]]:
    kind = chance.choice(("whole", "whole", "renamed", "plugin", "slices", "shares"))
    if kind == "renamed":
        return chance.choice(_RENAMED), {}
    if kind == "plugin":
        return chance.choice(_PLUGINS), {}
    if kind == "shares":
        return "nvidia.com/gpu", {labels.GPU_REPLICAS: "4"}
    return "nvidia.com/gpu", _SLICES if kind == "slices" else {}


def _node(chance: random.Random, name: str, mix: str, resource: str, node_labels: dict[str, str]) -> dict[str, Any]:
    capacity = chance.randint(1, 8)
    if labels.GPU_REPLICAS in node_labels:
        capacity *= 4
    amounts: dict[str, Counter[str]] = {
        "capacity": Counter({resource: capacity}),
        "allocatable": Counter({resource: capacity - (chance.random() < 0.2)}),
    }
    if chance.random() < 0.3:  # of another plugin, which must not be counted for the first
        other = chance.choice([item for item in _PLUGINS if item != resource])
        for part in amounts.values():
            part[other] = 3
    common = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {labels.HOSTNAME: name, MIX: mix, **node_labels}},
        "status": {
            **{
                part: {**common, **{key: str(units) for key, units in own.items()}} for part, own in amounts.items()
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _pod(
    chance: random.Random, name: str, nodes: list[dict[str, Any]], resource: str
) -> tuple[dict[str, Any], bool]:
    node = chance.choice(nodes)
    offers = [key for key in node["status"]["allocatable"] if "/" in key]
    kind = chance.choice(("request", "request", "request", "init", "two", "pin", "waits", "plain"))
    asked = chance.choice(offers) if chance.random() < 0.3 else resource

    def container(units: int, own: str, **env: str) -> dict[str, Any]:
        limits = {"limits": {asked: str(units)}} if units else {}
        variables = [{"name": key, "value": value} for key, value in env.items()]
        return {"name": own, "image": "any:1", "resources": limits, "env": variables}

    spec: dict[str, Any] = {
        "containers": [container(chance.randint(1, 3), "c")],
        "nodeName": node["metadata"]["name"],
    }
    if kind == "init":
        spec["initContainers"] = [container(chance.randint(1, 3), "i")]
    elif kind == "two":
        spec["containers"].append(container(1, "d"))
    elif kind == "pin":
        spec["containers"] = [container(0, "c", NVIDIA_VISIBLE_DEVICES="0")]
    elif kind == "plain":
        spec["containers"] = [container(0, "c")]
    elif kind == "waits":  # more than any node has: it stays Pending, and takes nothing
        spec = {"containers": [container(99, "c")], "nodeSelector": {labels.HOSTNAME: node["metadata"]["name"]}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, kind == "pin"
