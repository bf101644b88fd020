"""CPU slots of nodes with GPUs in Kubernetes: read from allocatable CPU, bound without a GPU, and read back."""

from __future__ import annotations

import json

import msgspec
import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.slot_leases import device_of
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.manifests import gpu_binding, render
from l2rtui.backends.kubernetes.manifests.gpu_binding import CudaIndex
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.backends.kubernetes.state.gpu_usage import read_gpu_usage
from l2rtui.backends.kubernetes.state.node_devices import SlotRule, read_devices
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec

RULE = SlotRule(per_gpu=4, per_core=2, most_on_cpu=12)
CPU_ONLY = PodSettings(binding=Binding.CPU)


def made(raw, kind):
    return msgspec.json.decode(json.dumps(raw), type=kind)


def devices_of(cpu, gpus=1):
    status = {"allocatable": {"cpu": cpu} if cpu else {}, "capacity": {"nvidia.com/gpu": str(gpus)}}
    return read_devices(made({"metadata": {"name": "n"}, "spec": {}, "status": status}, NodeStruct), RULE)


@pytest.mark.parametrize(("cpu", "slots"), [("3500m", 7), ("2", 4), ("100m", 1), ("96", 12)])
def test_cpu_slots_are_bounded_by_allocatable_cpu(cpu, slots):
    devices = devices_of(cpu)
    assert devices.cpu == Gpu("n", CPU, slots=slots, is_cpu=True)
    assert (len(devices.gpus), devices.has_gpus, devices.slots_per_gpu) == (1, True, 4)
    alone = devices_of(cpu, gpus=0)
    assert (alone.gpus, alone.cpu) == ((Gpu("n", 0, slots=slots, is_cpu=True),), None)


def test_a_node_that_has_not_reported_its_cores_has_no_cpu_slots():
    assert devices_of("").cpu is None


@pytest.fixture
def plan():
    node = Node("n1", (Gpu("n1", 0, "GPU-0"),), cpu=Gpu("n1", CPU, slots=4, is_cpu=True))
    always = {"restart": RestartPolicy.ALWAYS}
    sets = (
        SetSpec("g", Role.WORKER, ("w",), **always),
        SetSpec("w", Role.WORKER, ("w",), replicas=2, pod=CPU_ONLY, **always),
    )
    spec = RunSpec(Kind.JOB, "r", "r", sets, image="i:1")
    placement = place((spec,), build_ledger([node], []))
    return plan_launch((spec,), placement, {"n1": node}, owner="me", uids=["f" * 32])


def test_the_pods_sit_on_their_node_and_see_no_gpu(plan):
    *_, controller = render.run_objects(plan.runs[0], namespace="ml", token="t", server=ServerFacts())
    own_labels, template = controller["metadata"]["labels"], controller["spec"]["template"]
    assert (own_labels[labels.HOST], own_labels[labels.GPU]) == ("n1", "cpu")
    assert controller["spec"]["selector"]["matchLabels"][labels.GPU] == "cpu"
    assert json.loads(template["metadata"]["annotations"][labels.SEATS]) == [[0, [0]], [1, [1]]]
    assert template["metadata"]["annotations"][labels.BINDING] == "cpu"
    container = template["spec"]["containers"][0]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert (variables["NVIDIA_VISIBLE_DEVICES"], variables["CUDA_VISIBLE_DEVICES"]) == ("none", "")
    assert not any("gpu" in name for name in (container.get("resources") or {}).get("limits", {}))
    assert template["spec"]["nodeSelector"] == {labels.HOSTNAME: "n1"}
    # Tolerated: the usual taint of GPU nodes would also keep away pods placed there on purpose.
    assert {item["key"] for item in template["spec"]["tolerations"]} == {"nvidia.com/gpu"}


def test_only_sets_on_gpus_are_explained_as_bound_to_one(plan):
    (finding,) = gpu_binding.explain(plan.runs[0], CudaIndex.ZERO)
    assert finding.sentence.startswith("binding env")
    steps = render.planned_steps(plan)
    assert "2 x worker on n1/cpu.0 n1/cpu.1: w" in [step.detail for step in steps]


def test_a_lease_stands_for_the_cpu():
    assert labels.slot_lease("n1", CPU) == "l2r-claim-n1-cpu"
    lease = {"metadata": {"annotations": {labels.HOST: "n1/cpu"}}}
    assert device_of(lease) == ("n1", CPU)
    assert device_of({"metadata": {"annotations": {labels.HOST: "n1/x"}}}) is None


def test_a_pod_on_the_cpu_is_read_as_such():
    meta = {"name": "p", "labels": {labels.RUN_ID: "u", labels.HOST: "n", labels.GPU: "cpu"}}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    pod = made(
        {"metadata": meta, "spec": {"nodeName": "n", "containers": [{"name": "c", "env": env}]}, "status": {}},
        PodStruct,
    )
    usage = read_gpu_usage(pod, devices_of("8"), (3,))
    assert (usage.devices, usage.flags) == ((DeviceUsage(CPU, 3),), ())
    assert str(SlotId("n", CPU, 3)) == "n/cpu.3"
