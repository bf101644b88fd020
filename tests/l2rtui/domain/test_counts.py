"""Placement by count against the scheduler's own rule, on random nodes, pods and requests."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.state.node_devices import SlotRule, read_devices
from l2rtui.backends.kubernetes.state.views import node_view, pod_view
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.placement import Pin, place
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from tests.fakes.gpu_mixes import make_mix

READY = [{"type": "Ready", "status": "True"}]


def free_units(mix, resource):
    """Units that NodeResourcesFit leaves on each node: allocatable minus the requests of bound pods."""
    free = {node["metadata"]["name"]: int(node["status"]["allocatable"].get(resource, 0)) for node in mix.nodes}
    for pod in mix.pods:
        if "nodeName" in pod["spec"]:
            main, init = (
                [int(item["resources"].get("limits", {}).get(resource, 0)) for item in pod["spec"].get(part, ())]
                for part in ("containers", "initContainers")
            )
            free[pod["spec"]["nodeName"]] -= max([sum(main), *init])
    return free


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 60 else []) for seed in range(300)]
)
def test_as_many_are_placed_as_the_scheduler_would_bind(seed):
    mix = make_mix(seed)
    nodes, holders, devices = [], [], {}
    for raw in mix.nodes:
        node = msgspec.convert(raw, NodeStruct)
        devices[node.metadata.name] = read_devices(node, SlotRule())
        nodes.append(node_view(node, devices[node.metadata.name], None, is_use_known=True))
    for raw in mix.pods:
        pod = msgspec.convert({**raw, "metadata": {**raw["metadata"], "uid": raw["metadata"]["name"]}}, PodStruct)
        where = pod.spec.node_name or (pod.spec.node_selector or {})[labels.HOSTNAME]
        holders.append(pod_view(pod, devices[where], None, (), 0.0).holder)
    ledger = build_ledger(nodes, [holder for holder in holders if holder is not None])
    (part,) = mix.run.sets
    placement = place([mix.run], ledger, overcommit=True)
    resources = Counter(seat.resource for seat in placement.seats)
    assert len(resources) <= 1
    counts = {name: count for item in ledger.nodes.values() for name, count in (item.counts or {}).items()}
    resource = (
        part.pod.device or next(iter(resources), "") or ("nvidia.com/gpu" if "nvidia.com/gpu" in counts else "")
    )
    resource = resource or next(name for name, count in counts.items() if not count.resource.device)
    room = sum(max(0, units) // (part.gpus or 1) for units in free_units(mix, resource).values())
    assert len(placement.seats) == min(part.replicas, room), placement.conflicts
    strict = place([mix.run], ledger)
    assert len(strict.seats) <= len(placement.seats)
    assert mix.has_pins or len(strict.seats) == len(placement.seats), strict.conflicts


def test_a_device_of_another_plugin_that_the_user_names_is_counted_as_one_of_that_plugin():
    amounts = {"cpu": "8", "nvidia.com/gpu": "2", "amd.com/gpu": "3"}
    raw = {
        "metadata": {"name": "n0", "labels": {labels.HOSTNAME: "n0"}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": READY},
    }
    node = msgspec.convert(raw, NodeStruct)
    ledger = build_ledger([node_view(node, read_devices(node, SlotRule()), None, is_use_known=True)], [])
    theirs = next(gpu.index for gpu in ledger.nodes["n0"].devices if gpu.resource == "amd.com/gpu")
    workers = SetSpec("w", Role.JOB, ("sleep",), replicas=1, gpus=1, pod=PodSettings(binding=Binding.DEVICE_PLUGIN))
    run = RunSpec(Kind.JOB, "r", "r", (workers,), image="any:1")
    (seat,) = place([run], ledger, pins=[Pin("n0", theirs)]).seats
    assert (seat.resource, seat.units, {slot.gpu for slot in seat.slots}) == ("amd.com/gpu", 1, {theirs})
    (seat,) = place([run], ledger).seats
    assert seat.resource == "nvidia.com/gpu"
