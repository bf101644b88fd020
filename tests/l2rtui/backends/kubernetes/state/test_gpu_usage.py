"""GPU usage of pods, read from their specs and annotations."""

from __future__ import annotations

import msgspec
import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.extended_resources import Unit, unit_of
from l2rtui.backends.kubernetes.state.gpu_usage import read_gpu_usage
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, SlotRule, read_devices
from l2rtui.domain.ledger import DeviceUsage, SlotState, build_ledger
from l2rtui.domain.node import Gpu, Node

UUIDS = {f"GPU-0000000{index}-aaaa": index for index in range(8)}
EIGHT = NodeDevices("n", tuple(Gpu("n", index, slots=4) for index in range(8)), UUIDS)
CPU = NodeDevices("n", (Gpu("n", 0, slots=8, is_cpu=True),))
NV, CU = "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
FROM = {"fieldRef": {"fieldPath": "metadata.annotations['gpu']"}}


def container(env=None, limits=None, requests=None, **more):
    variables = [
        {"name": name, **({"valueFrom": value} if isinstance(value, dict) else {"value": value})}
        for name, value in (env or {}).items()
    ]
    resources = {"limits": limits or {}, "requests": requests or {}}
    return {"name": "c", "env": variables or None, "resources": resources, **more}


def pod(*containers, init=None, meta=None, **spec):
    raw = {"metadata": {"name": "p", "namespace": "x", "uid": "u", **(meta or {})},
           "spec": {"nodeName": "n", "containers": list(containers), "initContainers": init, **spec}}  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(raw), type=PodStruct)


def claims(*containers, on=EIGHT, **more):
    return read_gpu_usage(pod(*containers, **more), on).devices


def flags(*containers, on=EIGHT, **more):
    return read_gpu_usage(pod(*containers, **more), on).flags


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({NV: "3"}, [3]),
        ({NV: "3", CU: "3"}, [3]),
        ({NV: "3", CU: "0"}, [3]),
        ({CU: "5"}, [5]),
        ({NV: "0,2"}, [0, 2]),
        ({NV: " 0 , 2,2 "}, [0, 2]),
        ({NV: "GPU-00000006-aaaa"}, [6]),
        ({NV: "GPU-unknown"}, [None]),
        ({NV: "MIG-unknown"}, [None]),
        ({NV: "9" * 5_000}, [None]),
        ({NV: "none"}, []),
        ({NV: "void"}, []),
        ({NV: ""}, []),
        ({NV: "none", CU: ""}, []),
        ({CU: ""}, []),
        ({CU: "-1"}, []),
        ({CU: "NoDevFiles"}, []),
        ({NV: "NoDevFiles"}, [None]),
        ({CU: "1,-1,2"}, [1]),
        ({NV: "all"}, list(range(8))),
        ({NV: "all", CU: "4"}, [4]),
        ({NV: FROM}, [None]),
        ({CU: FROM}, [None]),
        ({NV: "$(GPU)"}, [None]),
        ({"PATH": "/bin"}, []),
        ({}, []),
    ],
)
def test_variables_pin_gpus(env, expected):
    assert claims(container(env)) == tuple(DeviceUsage(gpu) for gpu in expected)


@pytest.mark.parametrize(
    ("limits", "slots"),
    [
        ({"nvidia.com/gpu": "1"}, 4),
        ({"nvidia.com/gpu": "2"}, 8),
        ({"nvidia.com/gpu.shared": "1"}, 1),
        ({"nvidia.com/mig-1g.5gb": "2"}, 2),
        ({"nvidia.com/gpu": "0"}, 0),
        ({"nvidia.com/gpu": "odd"}, 0),
        ({"cpu": "2", "memory": "1Gi"}, 0),
    ],
)
def test_requests_hold_slots_of_a_gpu_that_nobody_names(limits, slots):
    expected = (DeviceUsage(None, None, slots),) if slots else ()
    assert claims(container(limits=limits)) == expected
    assert claims(container(requests=limits)) == expected


def test_a_time_sliced_gpu_is_counted_in_shares():
    sliced = NodeDevices("n", EIGHT.gpus, counts_shares=True)
    assert claims(container(limits={"nvidia.com/gpu": "2"}), on=sliced) == (DeviceUsage(None, None, 2),)


def test_containers_that_name_one_gpu_are_one_worker_and_requests_add_up():
    assert claims(container({NV: "3"}), container({NV: "3"}), container({NV: "4"})) == (
        DeviceUsage(3),
        DeviceUsage(4),
    )
    two = container(limits={"nvidia.com/gpu.shared": "1"})
    assert claims(two, two) == (DeviceUsage(None, None, 2),)


def test_init_containers_count_where_they_need_more_and_sidecars_always():
    item, three = container(limits={"nvidia.com/gpu.shared": "1"}), container(limits={"nvidia.com/gpu.shared": "3"})
    assert claims(item, init=[three]) == (DeviceUsage(None, None, 3),)
    assert claims(three, init=[item]) == (DeviceUsage(None, None, 3),)
    assert claims(item, init=[{**item, "restartPolicy": "Always"}]) == (DeviceUsage(None, None, 2),)
    assert claims(container({}), init=[container({NV: "2"})]) == (DeviceUsage(2),)


def test_the_last_of_two_variables_with_one_name_counts():
    twice = container({NV: "1"})
    twice["env"].append({"name": NV, "value": "2"})
    assert claims(twice) == (DeviceUsage(2),)


@pytest.mark.parametrize(
    ("env", "flag"),
    [
        ({NV: "3", CU: "5"}, "has NVIDIA_VISIBLE_DEVICES=3, but CUDA_VISIBLE_DEVICES=5"),
        ({NV: "3", CU: "1"}, "has NVIDIA_VISIBLE_DEVICES=3, but CUDA_VISIBLE_DEVICES=1"),
        ({NV: "3", CU: ""}, "has NVIDIA_VISIBLE_DEVICES=3, but CUDA_VISIBLE_DEVICES=nothing"),
        ({NV: "none", CU: "2"}, "hides all GPUs by NVIDIA_VISIBLE_DEVICES, but CUDA_VISIBLE_DEVICES names 2"),
        ({NV: "9"}, "names device 9 of n, which has no such device"),
        ({NV: "all"}, "sees all GPUs by NVIDIA_VISIBLE_DEVICES=all"),
        ({NV: FROM}, "takes its GPU from a value that only the container knows"),
    ],
)
def test_what_does_not_fit_together_is_said(env, flag):
    assert flags(container(env)) == (flag,)


@pytest.mark.parametrize(
    "env",
    [{NV: "3", CU: "3"}, {NV: "3", CU: "0"}, {NV: "3,5", CU: "0,1"}, {NV: "3,5", CU: "5"}, {NV: "3", CU: "all"}],
)
def test_what_may_fit_together_is_not_flagged(env):
    assert flags(container(env)) == ()


def test_a_pod_that_is_pinned_and_asks_too_may_hold_two():
    both = container({NV: "1"}, {"nvidia.com/gpu": "1"})
    assert flags(both) == ("names a GPU and requests one too: it may hold two",)
    assert claims(both) == (DeviceUsage(1), DeviceUsage(None, None, 4))


def test_a_gpu_on_a_node_without_gpus_is_said_and_its_cpu_is_not_taken():
    assert flags(container({NV: "0"}), on=CPU) == ("names device 0 of n, which has no such device",)
    assert claims(container({NV: "0"}), on=CPU) == ()


def test_hami_tells_the_gpu_by_uuid():
    allocated = {"annotations": {labels.HAMI_ALLOCATED: "GPU-00000002-aaaa,NVIDIA,3000,30:;"}}
    requested = container(limits={"nvidia.com/gpu": "1"})
    assert claims(requested, meta=allocated) == (DeviceUsage(2),)
    assert claims(requested, meta={"annotations": {labels.HAMI_GPU_UUID: "GPU-00000005-aaaa"}}) == (DeviceUsage(5),)
    several = {"annotations": {labels.HAMI_GPU_UUID: "GPU-00000005-aaaa,GPU-00000006-aaaa"}}
    assert claims(requested, meta=several) == (DeviceUsage(None, None, 4),)
    both = {
        "annotations": {labels.HAMI_ALLOCATED: "GPU-00000005-aaaa,NVIDIA,3000,30:GPU-00000006-aaaa,NVIDIA,1,1:;"}
    }
    assert claims(requested, meta=both) == (DeviceUsage(5), DeviceUsage(6))


def test_a_resource_claim_holds_something_that_cannot_be_told():
    assert claims(container(), resourceClaims=[{"name": "gpu"}]) == (DeviceUsage(None),)


def _ours(**more):
    result = {
        labels.RUN_ID: "r",
        labels.APP_MANAGED_BY: labels.MANAGED_BY,
        labels.GPU: "3",
        labels.HOST: "n",
        **more,
    }
    return {"labels": result}


def test_our_own_pods_hold_the_slots_of_their_seat():
    mine = pod(container({NV: "3", CU: "0"}), meta=_ours())
    assert read_gpu_usage(mine, EIGHT, (1, 2)).devices == (DeviceUsage(3, 1), DeviceUsage(3, 2))
    assert read_gpu_usage(mine, EIGHT, None).devices == (DeviceUsage(3),)
    on_cpu = pod(container({NV: "none", CU: ""}), meta=_ours(**{labels.GPU: "0"}))
    assert read_gpu_usage(on_cpu, CPU, (5,)).devices == (DeviceUsage(0, 5),)


def test_our_own_pod_whose_variables_a_policy_took_away_is_said():
    meta = {**_ours(), "annotations": {labels.BINDING: "env"}}
    hidden = read_gpu_usage(pod(container({NV: "none", CU: ""}), meta=meta), EIGHT, (1,))
    assert hidden.flags == ("names no device, its plan says 3",)
    assert hidden.devices == (DeviceUsage(3, 1),)


def test_our_own_pod_on_another_node_or_gpu_than_planned_is_said():
    moved = read_gpu_usage(pod(container({NV: "3"}), meta=_ours(**{labels.HOST: "m"})), EIGHT, (1,))
    assert moved.flags == ("is on n, its plan says m",)
    assert moved.devices == (DeviceUsage(3),)
    other = read_gpu_usage(pod(container({NV: "5"}), meta=_ours()), EIGHT, (1,))
    assert other.flags == ("names device 5, its plan says 3",)
    assert other.devices == (DeviceUsage(5),)


# --- devices of a node ---------------------------------------------------------------------------------------
def node(capacity=None, result=None, annotations=None):
    raw = {"metadata": {"name": "n", "labels": result, "annotations": annotations},
           "status": {"capacity": {"cpu": "8", **(capacity or {})}}}  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(raw), type=NodeStruct)


RULE = SlotRule(per_gpu=4, by_product={"A100": 8}, per_core=2, most_on_cpu=10)
GPUS = {"nvidia.com/gpu": "2"}


@pytest.mark.parametrize(
    ("capacity", "result", "count", "slots"),
    [
        (GPUS, {}, 2, 4),
        (GPUS, {labels.GPU_PRODUCT: "A100"}, 2, 8),
        (GPUS, {labels.GPU_PRODUCT: "A100-SHARED"}, 2, 8),
        (GPUS, {labels.GPU_PRODUCT: "A100", labels.SLOTS_PER_GPU: "3"}, 2, 3),
        ({"nvidia.com/gpu": "8"}, {labels.GPU_REPLICAS: "4"}, 2, 4),
        ({"nvidia.com/gpu": "20"}, {labels.GPU_REPLICAS: "10"}, 2, 10),
        ({"nvidia.com/gpu.shared": "6"}, {labels.GPU_REPLICAS: "3", labels.GPU_COUNT: "2"}, 2, 3),
        ({"nvidia.com/mig-1g.5gb": "14"}, {labels.GPU_COUNT: "2"}, 14, 1),
        ({"amd.com/gpu": "8"}, {}, 8, 1),
        ({"gpu.intel.com/xe": "500"}, {}, 64, 1),
        ({}, {labels.GPUS: "2"}, 2, 4),
        (GPUS, {labels.SLOTS_PER_GPU: "many"}, 2, 4),
    ],
)
def test_a_node_has_gpus_and_slots(capacity, result, count, slots):
    devices = read_devices(node(capacity, result), RULE)
    assert [(gpu.index, gpu.slots) for gpu in devices.gpus] == [(index, slots) for index in range(count)]
    assert devices.has_gpus


GKE, KARPENTER = "cloud.google.com/gke-", "karpenter.k8s.aws/instance-gpu-"
T4_OF_GKE = {f"{GKE}accelerator": "nvidia-tesla-t4"}
T4_OF_EKS = {f"{KARPENTER}name": "t4", f"{KARPENTER}count": "1", f"{KARPENTER}memory": "16384"}


@pytest.mark.parametrize(
    ("units", "given", "count", "slots", "model", "gib"),
    [
        (2, T4_OF_GKE, 2, 4, "nvidia-tesla-t4", 0),
        (6, {**T4_OF_GKE, f"{GKE}max-shared-clients-per-gpu": "3"}, 2, 3, "nvidia-tesla-t4", 0),
        (7, {f"{GKE}accelerator": "nvidia-tesla-a100", f"{GKE}gpu-partition-size": "1g.5gb"},
         7, 1, "nvidia-tesla-a100 1g.5gb", 0),
        (1, T4_OF_EKS, 1, 4, "t4", 16),
        (10, T4_OF_EKS, 1, 10, "t4", 16),
        # Part of its GPUs are handed out; the label counts those of the machine.
        (1, {**T4_OF_EKS, f"{KARPENTER}count": "4"}, 1, 4, "t4", 16),
        (7, {**T4_OF_EKS, f"{KARPENTER}count": "4"}, 7, 4, "t4", 16),
        (8, {"gpu.nvidia.com/model": "H100", "gpu.nvidia.com/count": "8"}, 8, 4, "H100", 0),
        (2, {**T4_OF_GKE, labels.GPU_PRODUCT: "Tesla-T4", labels.GPU_MEMORY: "15360"}, 2, 4, "Tesla-T4", 15),
    ],
)  # fmt: skip
def test_labels_of_managed_clusters_tell_product_and_shares(units, given, count, slots, model, gib):
    devices = read_devices(node({"nvidia.com/gpu": str(units)}, given), RULE)
    assert [(gpu.slots, gpu.model, gpu.memory_bytes >> 30) for gpu in devices.gpus] == [(slots, model, gib)] * count
    assert devices.resources[0].is_share == (slots not in (1, 4))


def test_the_shares_of_hami_are_not_those_of_a_cloud():
    annotations = {labels.HAMI_NODE: '[{"id":"GPU-0000000a-1","index":0}]'}
    devices = read_devices(node({"nvidia.com/gpu": "10"}, T4_OF_EKS, annotations), RULE)
    assert [gpu.slots for gpu in devices.gpus] == [4]


def test_a_node_without_gpus_has_one_cpu_device():
    devices = read_devices(node(), RULE)
    assert devices.gpus == (Gpu("n", 0, slots=10, is_cpu=True),)
    assert not devices.has_gpus


@pytest.mark.parametrize(
    "annotations",
    [
        {labels.GPU_UUIDS: "GPU-0000000a-1, GPU-0000000b-2"},
        {labels.HAMI_NODE: '[{"id":"GPU-0000000b-2","index":1},{"id":"GPU-0000000a-1","index":0}]'},
        {labels.HAMI_NODE: "GPU-0000000a-1,10,32768,100,V100,0,true:GPU-0000000b-2,10,32768,100,V100,0,true:"},
    ],
)
def test_uuids_are_known_where_somebody_writes_them_on_the_node(annotations):
    devices = read_devices(node({"nvidia.com/gpu": "2"}, None, annotations), RULE)
    assert [gpu.uuid for gpu in devices.gpus] == ["GPU-0000000a-1", "GPU-0000000b-2"]
    assert claims(container({NV: "GPU-0000000b-2"}), on=devices) == (DeviceUsage(1),)


@pytest.mark.parametrize(
    ("text", "numa"),
    [
        ('[{"id":"GPU-0000000a-1","index":0,"numa":0},{"id":"GPU-0000000b-2","index":1,"numa":1}]', [0, 1]),
        ('[{"id":"GPU-0000000a-1","index":0,"numa":true},{"id":"GPU-0000000b-2","index":1}]', [None, None]),
        ("GPU-0000000a-1,10,32768,100,V100,1,true:GPU-0000000b-2,10,32768:", [1, None]),
    ],
)
def test_hami_names_the_numa_node_of_a_gpu(text, numa):
    devices = read_devices(node({"nvidia.com/gpu": "2"}, None, {labels.HAMI_NODE: text}), RULE)
    assert [gpu.numa for gpu in devices.gpus] == numa


def test_an_annotation_that_cannot_be_read_tells_nothing():
    assert [gpu.uuid for gpu in read_devices(node(GPUS, None, {labels.HAMI_NODE: "[odd"}), RULE).gpus] == ["", ""]


# --- devices known only to plugins --------------------------------------------------------------------------
MIXED = {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-2g.10gb": "1", "amd.com/gpu": "1"}


def test_mig_profiles_and_other_makers_follow_the_gpus():
    product = {labels.AMD_PRODUCT: "MI300X", labels.GPU_COUNT: "2"}  # one of the two cards is partitioned
    devices = read_devices(node(MIXED, product), RULE)
    assert [(gpu.resource, gpu.model, gpu.slots) for gpu in devices.gpus] == [
        ("", "", 4),
        ("amd.com/gpu", "MI300X", 1),
        ("nvidia.com/mig-1g.5gb", "mig-1g.5gb", 1),
        ("nvidia.com/mig-1g.5gb", "mig-1g.5gb", 1),
        ("nvidia.com/mig-2g.10gb", "mig-2g.10gb", 1),
    ]
    assert (devices.slots_per_gpu, len(devices.nvidia)) == (4, 1)
    assert devices.cpu is not None


NEURONS = {"aws.amazon.com/neuron": "4", "aws.amazon.com/neuroncore": "8", "aws.amazon.com/neurondevice": "4"}


@pytest.mark.parametrize(
    ("limits", "devices"),
    [
        ({"aws.amazon.com/neuron": "2"}, 2),
        ({"aws.amazon.com/neuroncore": "3"}, 2),
        ({"aws.amazon.com/neurondevice": "3"}, 3),
        ({"aws.amazon.com/neuron": "1", "aws.amazon.com/neuroncore": "2"}, 1),
    ],
)
def test_names_of_the_same_devices_are_counted_once(limits, devices):
    four = read_devices(node(NEURONS), RULE)
    assert [gpu.resource for gpu in four.gpus] == ["aws.amazon.com/neuron"] * 4
    assert [item.name for item in four.resources] == ["aws.amazon.com/neuron"]
    assert claims(container(limits=limits), on=four) == (DeviceUsage(None, None, devices, "aws.amazon.com/neuron"),)


def test_a_node_with_cores_alone_has_them_as_devices():
    cores = read_devices(node({"aws.amazon.com/neuroncore": "2"}), RULE)
    assert [gpu.resource for gpu in cores.gpus] == ["aws.amazon.com/neuroncore"] * 2


@pytest.mark.parametrize(
    "text",
    [
        '[{"id":"GPU-0000000a-1","index":0,"health":true},{"id":"GPU-0000000b-2","index":1,"health":false}]',
        "GPU-0000000a-1,10,32768,100,V100,0,true:GPU-0000000b-2,10,32768,100,V100,0,false:",
    ],
)
def test_a_gpu_that_hami_finds_unhealthy_gets_nothing(text):
    devices = read_devices(node({"nvidia.com/gpu": "2"}, None, {labels.HAMI_NODE: text}), RULE)
    assert [gpu.is_healthy for gpu in devices.gpus] == [True, False]
    sick = Node("n", devices.gpus)
    states = {slot.id.gpu: slot.state for slot in build_ledger([sick], []).slots.values()}
    assert states == {0: SlotState.FREE, 1: SlotState.OFF}


def test_a_request_of_a_plugin_counts_its_own_devices():
    devices = read_devices(node(MIXED), RULE)
    slices = container(limits={"nvidia.com/mig-1g.5gb": "2"})
    assert claims(slices, on=devices) == (DeviceUsage(None, None, 2, "nvidia.com/mig-1g.5gb"),)
    assert claims(container(limits={"amd.com/gpu": 1}), container(), on=devices) == (
        DeviceUsage(None, None, 1, "amd.com/gpu"),
    )
    both = claims(container(limits={"nvidia.com/gpu": "1", "amd.com/gpu": "1"}), on=devices)
    assert both == (DeviceUsage(None, None, 4), DeviceUsage(None, None, 1, "amd.com/gpu"))
    first = [container(limits={"amd.com/gpu": "1"})]
    assert claims(container(), on=devices, init=first) == (DeviceUsage(None, None, 1, "amd.com/gpu"),)


def test_a_slice_on_a_node_that_offers_none_is_a_part_of_some_gpu():
    assert claims(container(limits={"nvidia.com/mig-1g.5gb": "1"})) == (DeviceUsage(None, None, 1),)


def test_an_index_counts_among_the_gpus_of_nvidia_alone():
    devices = read_devices(node(MIXED), RULE)
    assert flags(container({NV: "2"}), on=devices) == ("names device 2 of n, which has no such device",)
    assert claims(container({NV: "all"}), on=devices) == (DeviceUsage(0),)


@pytest.mark.parametrize("cuda", ["7", "GPU-00000007-aaaa"])
def test_variables_that_contradict_each_other_leave_both_gpus_unknown(cuda):
    both = claims(container({NV: "0", CU: cuda}))
    assert both == (DeviceUsage(0, is_unsure=True), DeviceUsage(7, is_unsure=True))
    assert claims(container({NV: "0", CU: ""})) == (DeviceUsage(0),)


def test_cores_without_number_make_no_more_slots_than_the_rule_allows():
    assert read_devices(node({"cpu": "1e308"}), RULE).gpus[0].slots == RULE.most_on_cpu


# --- claims that only some programs write ---------------------------------------------------------------------
UNKNOWN = (DeviceUsage(None),)


@pytest.mark.parametrize(
    ("limits", "slots"),
    [
        ({"nvidia.com/a100": "1"}, 4),
        ({"nvidia.com/rtxa6000": 2}, 8),
        ({"nvidia.com/l40s": "1"}, 4),
        ({"nvidia.com/gpu-shared-a": "2"}, 2),
        ({"nvidia.com/gpumem": "3000"}, 1),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, 4),
        ({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4096"}, 2),
        ({"aliyun.com/gpu-mem": "8"}, 1),
        ({"tencent.com/vcuda-core": "20"}, 1),
        ({"nvidia.com/hostdev": "1"}, 0),
        ({"nvidia.com/rdma-shared": "1"}, 0),
        ({"rdma/hca": "1"}, 0),
    ],
)
def test_resources_of_other_names_hold_gpus(limits, slots):
    assert claims(container(limits=limits)) == ((DeviceUsage(None, None, slots),) if slots else ())


@pytest.mark.parametrize(
    "annotations",
    [
        {"gpu-fraction": "0.5"},
        {"gpu-memory": "2000"},
        {"runai-gpu": "x-cm"},
        {"volcano.sh/vgpu-ids-new": "a"},
    ],
)
def test_a_fraction_in_an_annotation_is_an_unknown_gpu(annotations):
    meta = {"annotations": annotations}
    assert claims(container(), meta=meta) == UNKNOWN
    assert claims(container(), meta=meta, on=CPU) == ()


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"cdi.k8s.io/x": "nvidia.com/gpu=3"}, [3]),
        ({"cdi.k8s.io/x": "nvidia.com/gpu=1,nvidia.com/gpu=GPU-00000006-aaaa"}, [1, 6]),
        ({"cdi.k8s.io/x": "nvidia.com/mig=2:0"}, [2]),
        ({"cdi.k8s.io/x": "runtime.nvidia.com/gpu=all"}, list(range(8))),
        ({"cdi.k8s.io/x": "vendor.com/net=eth0"}, []),
        ({"gpu-fraction": "0.5", "ALIYUN_COM_GPU_MEM_IDX": "4"}, [4]),
        ({"gpu-fraction": "0"}, []),
    ],
)
def test_annotations_name_gpus(annotations, expected):
    assert claims(container(), meta={"annotations": annotations}) == tuple(DeviceUsage(gpu) for gpu in expected)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/var/run/nvidia-container-devices/3", [3]),
        ("/var/run/nvidia-container-devices/GPU-00000002-aaaa", [2]),
        ("/var/run/nvidia-container-devices/all", list(range(8))),
        ("/var/run/nvidia-container-devices", [None]),
        ("/dev/nvidia5", [5]),
        ("/dev/nvidiactl", []),
        ("/var/run/nvidia-mps", []),
    ],
)
def test_mounts_name_gpus(path, expected):
    usages = claims(container(volumeMounts=[{"name": "v", "mountPath": path}]))
    assert usages == tuple(DeviceUsage(gpu) for gpu in expected)


def test_ephemeral_containers_use_gpus_until_they_end():
    debug = {**container({NV: "all"}), "name": "debug"}
    assert claims(container(), ephemeralContainers=[debug]) == tuple(DeviceUsage(gpu) for gpu in range(8))
    ended = pod(container(), ephemeralContainers=[debug])
    state = {"ephemeralContainerStatuses": [{"name": "debug", "state": {"terminated": {"exitCode": 0}}}]}
    raw = {**msgspec.to_builtins(ended), "status": state}
    assert read_gpu_usage(msgspec.convert(raw, PodStruct), EIGHT).devices == ()


FROM_MAP, FROM_SECRET = {"configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}
DAEMON = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]}


def test_variables_of_secrets_and_config_maps_that_are_not_read_may_name_a_gpu():
    for source in (FROM_MAP, FROM_SECRET):
        usage = read_gpu_usage(pod(container(envFrom=[source])), EIGHT)
        assert (usage.devices, usage.flags) == (UNKNOWN, ())
        assert claims(container({NV: "2"}, envFrom=[source])) == (DeviceUsage(2),)
        assert claims(container(envFrom=[{**source, "prefix": "APP_"}])) == ()
        assert claims(container(envFrom=[source]), on=CPU) == ()
        assert claims(container(envFrom=[source]), meta=DAEMON) == ()
        assert claims(container(limits=GPUS, envFrom=[source])) == (DeviceUsage(None, None, 8),)


@pytest.mark.parametrize(
    ("env_from", "env", "data", "expected"),
    [
        ([FROM_MAP], None, {NV: "3"}, [3]),
        ([FROM_MAP], None, {"OTHER": "3"}, []),
        ([{**FROM_MAP, "prefix": "NVIDIA_"}], None, {"VISIBLE_DEVICES": "5"}, [5]),
        (None, {NV: {"configMapKeyRef": {"name": "m", "key": "gpu"}}}, {"gpu": "4"}, [4]),
        (None, {CU: {"configMapKeyRef": {"name": "m", "key": "gpu"}}}, None, [None]),
        (None, {NV: {"secretKeyRef": {"name": "m", "key": "gpu"}}}, {"gpu": "4"}, [None]),
        ([FROM_MAP], {NV: "none"}, {NV: "3"}, []),
    ],
)
def test_config_maps_that_are_read_tell_the_gpu(env_from, env, data, expected):
    mine = pod(container(env, envFrom=env_from))
    usage = read_gpu_usage(mine, EIGHT, config_maps={("x", "m"): data})
    assert usage.devices == tuple(DeviceUsage(gpu) for gpu in expected)
    assert usage.config_maps == ()
    if env_from or (env and "configMapKeyRef" in str(env)):
        assert read_gpu_usage(mine, EIGHT).config_maps == (("x", "m"),)


def test_the_downward_api_is_read_from_the_pod():
    assert claims(container({NV: FROM}), meta={"annotations": {"gpu": "6"}}) == (DeviceUsage(6),)
    assert claims(container({NV: FROM})) == UNKNOWN


def test_a_sidecar_counts_beside_the_init_containers_behind_it():
    def share(count, **more):
        return container(limits={"nvidia.com/gpu.shared": count}, **more)

    sidecar = share(1, restartPolicy="Always")
    assert claims(container(), init=[sidecar, share(3)]) == (DeviceUsage(None, None, 4),)
    assert claims(container(), init=[share(3), sidecar]) == (DeviceUsage(None, None, 3),)
    usage = read_gpu_usage(pod(share(1), init=[sidecar, share(3)]), EIGHT)
    assert usage.requests == (("nvidia.com/gpu.shared", 4),)


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        ("0,99,1", [0]),
        ("2,x,3", [2]),
        ("99", []),
        ("GPU-00000005", [5]),
        ("GPU-0000000", [None]),
        ("1,GPU-0,2", [1, None, 2]),
    ],
)
def test_a_list_of_cuda_ends_at_its_first_invalid_entry_and_knows_beginnings_of_uuids(cuda, expected):
    assert claims(container({CU: cuda})) == tuple(DeviceUsage(gpu) for gpu in expected)


def test_cuda_beside_a_request_names_no_gpu_of_the_node_and_is_no_contradiction():
    both = container({CU: "0"}, GPUS)
    assert (claims(both), flags(both)) == ((DeviceUsage(None, None, 8),), ())
    single, none = (container({CU: "5"}, {"nvidia.com/gpu": number}) for number in ("1", "0"))
    assert claims(single) == (DeviceUsage(None, None, 4),)
    assert claims(none) == (DeviceUsage(5),)
    claimed = container({CU: "0"})
    assert claims(claimed, resourceClaims=[{"name": "gpu"}]) == UNKNOWN


def test_a_measurement_tells_which_gpus_a_pod_was_given():
    mine = pod(container(limits=GPUS))
    assert read_gpu_usage(mine, EIGHT, measured=(2, 5)).devices == (
        DeviceUsage(2, None, 4),
        DeviceUsage(5, None, 4),
    )
    assert read_gpu_usage(mine, EIGHT, measured=(2,)).devices == (DeviceUsage(None, None, 8),)


def test_a_measurement_tells_which_time_sliced_gpu_a_pod_shares():
    sliced, mine = NodeDevices("n", EIGHT.gpus, counts_shares=True), pod(container(limits=GPUS))
    assert read_gpu_usage(mine, sliced, measured=(5,)).devices == (DeviceUsage(5, None, 2),)
    assert read_gpu_usage(mine, sliced, measured=(2, 5)).devices == (DeviceUsage(None, None, 2),)


def test_our_own_pod_with_several_gpus_has_them_whole():
    mine = pod(container({NV: "1,3"}), meta=_ours(**{labels.GPU: "1_3"}))
    whole = tuple(DeviceUsage(gpu, slot) for gpu in (1, 3) for slot in range(4))
    assert read_gpu_usage(mine, EIGHT, ()).devices == whole


@pytest.mark.parametrize("name", ["nvidia.com/pgpu", "nvidia.com/GA102GL_A10", "nvidia.com/GRID_T4-1Q"])
def test_a_gpu_for_virtual_machines_is_handed_out_by_its_plugin_alone(name):
    # NVIDIA/kubevirt-gpu-device-plugin: its driver is VFIO, so no variable shows such a GPU to a container.
    assert unit_of(name) is Unit.PLUGIN


@pytest.mark.parametrize("name", ["nvidia.com/a100", "nvidia.com/rtxa6000", "nvidia.com/rtx3090_24gb"])
def test_a_renamed_gpu_is_one_of_containers(name):
    assert unit_of(name) is Unit.WHOLE
