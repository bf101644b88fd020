"""Devices that plugins allocate by count: nodes and pods of real clusters, and launches on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.manifests.import_yaml import read_kubernetes_yaml
from l2rtui.config import Settings
from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import parse_pins
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError
from l2rtui.services import launcher
from l2rtui.tables import cluster
from l2rtui.tables.documents import node_document
from l2rtui.ui.state.placement_draft import PlacementDraft
from l2rtui.ui.widgets.metric_strip import about_slot
from tests.fakes.kubernetes_objects import Failure, ObjectServer, serving

pytestmark = pytest.mark.process
"""A launch records the git revision of its folder."""

INPUTS = Path(__file__).parent / "inputs"


def documents(name):
    return [item for item in yaml.safe_load_all((INPUTS / name).read_text()) if item]


def node(name="g-1", gpus=8, resource="nvidia.com/gpu", allocatable=None, **own_labels):
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {labels.HOSTNAME: name, labels.GPU_COUNT: str(gpus), **own_labels}},
        "spec": {},
        "status": {
            "capacity": {**amounts, resource: str(gpus)},
            "allocatable": {**amounts, resource: str(gpus if allocatable is None else allocatable)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def foreign(name, *, on="g-1", gpus=0, resource="nvidia.com/gpu", env=None, phase="Running", **spec):
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    container = {"name": "t", "image": "i", "env": variables}
    if gpus:
        container["resources"] = {"limits": {resource: str(gpus)}}
    where = {"nodeName": on} if on else {}
    meta = {"name": name, "namespace": "other"}
    return {
        "kind": "Pod",
        "metadata": meta,
        "spec": {**where, "containers": [container], **spec},
        "status": {"phase": phase},
    }


def of_set(replicas=1, binding=Binding.DEVICE_PLUGIN, device="", **fields):
    return SetSpec(
        "w",
        Role.JOB,
        ("w",),
        replicas=replicas,
        restart=RestartPolicy.NEVER,
        pod=PodSettings(binding=binding, device=device),
        **fields,
    )


def run(part, name="r"):
    return RunSpec(Kind.JOB, name, name, (part,), image="i:1")


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as running:
        yield running


@pytest.fixture
async def backend(server, tmp_path):
    path = tmp_path / "config"
    config = {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.base}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(json.dumps(config))
    made = KubernetesBackend(Settings(namespaces=("ml",)), str(path))
    yield made
    await made.close()


def put(server, *items):
    for item in items:
        server.put({"spec": {}, "status": {}, **item}, item["metadata"].get("namespace", "ml"))


async def planned(backend, *specs, on="", **options):
    pins = parse_pins(on) if on else ()
    return await launcher.prepare_runs(backend, specs, pins=pins, **options)


async def launched(backend, *specs, **options):
    prepared = await planned(backend, *specs, **options)
    return [done async for done in launcher.launch(backend, prepared)]


async def refused(backend, *specs, **options):
    prepared = await planned(backend, *specs, **options)
    return "; ".join(item.sentence for item in launcher.refusals(prepared.findings))


def limits(server, name="r-w"):
    job = next(item for (kind, _, _), item in server.objects.items() if kind == "Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    amounts = container.get("resources", {}).get("limits") or {}
    return {name: str(amount) for name, amount in amounts.items()}, {
        item["name"]: item.get("value") for item in container["env"]
    }


# --- by count ------------------------------------------------------------------------------------------------
async def test_beside_a_pod_of_the_plugin_seven_runs_of_one_gpu_fit_and_the_eighth_is_refused(server, backend):
    put(server, *documents("01-plugin-count.yaml"))
    snapshot = await backend.snapshot()
    count = snapshot.ledger.nodes["g-1"].counts["nvidia.com/gpu"]
    assert (str(count), count.requested) == ("7 of 8 free", 1)
    for number in range(7):
        await launched(backend, run(of_set(), f"r{number}"))
    assert limits(server)[0] == {"nvidia.com/gpu": "1"}
    sentence = await refused(backend, run(of_set(), "r7"))
    assert "1 of 1 replica lacks nvidia.com/gpu (free for the whole plan: 0 of 8 on g-1)" in sentence


async def test_which_gpu_a_pod_of_the_plugin_has_is_unknown_and_env_says_so(server, backend):
    put(server, *documents("01-plugin-count.yaml"))
    sentence = await refused(backend, run(of_set(binding=Binding.ENV)))
    assert "0 of 32 slots are free" in sentence
    assert "on g-1 1 of 8 GPUs in use through the device plugin (notebook): which ones is not known" in sentence
    assert "--binding device-plugin takes one by count" in sentence


async def test_a_pod_that_has_all_gpus_of_its_node_has_each_of_them(server, backend):
    put(server, node(gpus=2), foreign("big", gpus=2), node("g-2", 2), foreign("one", on="g-2", gpus=1))
    slots = (await backend.snapshot()).ledger.slots.values()
    assert {slot.pod for slot in slots if slot.id.node == "g-1" and not slot.is_cpu} == {"big"}
    assert {slot.state for slot in slots if slot.id.node == "g-2" and not slot.is_cpu} == {SlotState.UNKNOWN}


async def test_a_pod_that_waits_for_a_node_takes_nothing_until_it_fits(server, backend):
    waiting = foreign("waits", on="", gpus=6, phase="Pending", nodeSelector={labels.HOSTNAME: "g-1"})
    put(server, node(), foreign("a", gpus=4), waiting)
    assert (await backend.snapshot()).ledger.nodes["g-1"].counts["nvidia.com/gpu"].free == 4
    assert not await refused(backend, run(of_set(gpus=4)))


async def test_a_plan_takes_no_more_than_the_node_counts(server, backend):
    put(server, node(gpus=4), foreign("a", gpus=1))
    prepared = await planned(backend, run(of_set(3)))
    assert [pod.seat.units for pod in prepared.plan.runs[0].pods] == [1, 1, 1]
    assert len({slot.gpu for slot in prepared.plan.slots}) == 3
    assert "1 of 4 replicas lacks nvidia.com/gpu (free for the whole plan: 0 of 4" in await refused(
        backend, run(of_set(4))
    )
    assert "0 of 4 on g-1" in await refused(backend, run(of_set(4)), overcommit=True)


async def test_the_scheduler_does_not_count_pins_but_a_gpu_that_one_has_is_not_given_silently(server, backend):
    put(server, node(gpus=2), foreign("pinned", env={"NVIDIA_VISIBLE_DEVICES": "1"}))
    assert not await refused(backend, run(of_set()))
    sentence = await refused(backend, run(of_set(2)))
    assert "pods on g-1 use GPUs of which the device plugin does not know: --overcommit shares them" in sentence
    assert not await refused(backend, run(of_set(2)), overcommit=True)


async def test_only_nodes_that_offer_the_resource_are_chosen(server, backend):
    none = node("a-1", 8)
    none["status"]["capacity"].pop("nvidia.com/gpu")
    none["status"]["allocatable"].pop("nvidia.com/gpu")
    put(server, none, node("b-1", 2))
    prepared = await planned(backend, run(of_set(2)))
    assert not launcher.refusals(prepared.findings)
    assert {pod.node for pod in prepared.plan.runs[0].pods} == {"b-1"}


async def test_unhealthy_gpus_are_said_and_not_placed(server, backend):
    put(server, *documents("17-unhealthy-gpu.yaml"))
    assert (await backend.snapshot()).nodes["xid-1"].message == "7 of 8 GPUs healthy"
    assert not await refused(backend, run(of_set(7)))
    assert "0 of 7 on xid-1" in await refused(backend, run(of_set(8)))


async def test_a_pod_that_names_its_gpu_beside_an_unhealthy_one_is_warned_of(server, backend):
    put(server, *documents("17-unhealthy-gpu.yaml"))
    prepared = await planned(backend, run(of_set(binding=Binding.ENV)), on="xid-1/0")
    words = " ".join(map(str, prepared.findings))
    assert "7 of 8 GPUs healthy on xid-1, and a pod that names its GPU may get another one" in words


async def test_slices_of_strategy_single_are_counted_and_no_index_names_one(server, backend):
    put(server, *documents("16-mig-single.yaml"))
    sentence = await refused(backend, run(of_set(binding=Binding.ENV)), on="mig-single/3")
    assert "is a slice of a card (MIG strategy single), and a variable names cards" in sentence
    assert "not fit" in await refused(backend, run(of_set(binding=Binding.ENV)))
    await launched(backend, run(of_set(7)))
    assert limits(server)[0] == {"nvidia.com/gpu": "1"}
    assert "0 of 7 on mig-single" in await refused(backend, run(of_set(), "s"))


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        ("nvidia.com/a100", ""),
        ("nvidia.com/a100", "nvidia.com/a100"),
        ("nvidia.com/rtxa6000", ""),
        ("amd.com/gpu", "amd.com/gpu"),
        ("gpu.intel.com/xe", "gpu.intel.com/xe"),
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/mig-small", "nvidia.com/mig-small"),
        ("volcano.sh/vgpu-number", "volcano.sh/vgpu-number"),
        ("habana.ai/gaudi", "habana.ai/gaudi"),
    ],
)
async def test_devices_of_every_name_are_placed_by_count(server, backend, resource, device):
    put(server, node(gpus=4, resource=resource), foreign("a", gpus=2, resource=resource))
    await launched(backend, run(of_set(2, device=device)))
    assert limits(server)[0] == {resource: "1"}
    assert f"{resource} (free for the whole plan: 0 of 4 on g-1)" in await refused(
        backend, run(of_set(device=device), "s")
    )


async def test_shares_are_counted_one_by_one(server, backend):
    sliced = node(gpus=20, **{labels.GPU_COUNT: "2", labels.GPU_REPLICAS: "10"})
    put(server, sliced, foreign("a", gpus=18))
    assert not await refused(backend, run(of_set(2)))
    assert not await refused(backend, run(of_set(binding=Binding.SHARED, slots=2)))
    assert "0 of 20 on g-1" in await refused(backend, run(of_set(3)))


async def test_two_launches_at_once_do_not_get_the_last_unit_both(server, backend):
    put(server, node(gpus=1))
    server.runs_controllers = False  # their pods do not exist yet
    first, second = await planned(backend, run(of_set())), await planned(backend, run(of_set(), "s"))
    assert [done.error for done in [done async for done in launcher.launch(backend, first)]]
    with pytest.raises(RefusedError, match="claimed by r just now"):
        [done async for done in launcher.launch(backend, second)]


async def test_a_scale_goes_by_the_counts(server, backend):
    put(server, node(gpus=3), foreign("a", gpus=1))
    part = replace(of_set(), restart=RestartPolicy.ALWAYS)
    await launched(backend, run(part))
    await launcher.scale(backend, "r", "w", 2)
    pods = [key for key in server.objects if key[0] == "Pod" and key[1] == "ml"]
    assert len(pods) == 2
    with pytest.raises(RefusedError, match="0 of 3 on g-1"):
        await launcher.scale(backend, "r", "w", 3)


# --- claims that are not plain requests -------------------------------------------------------------------------
async def test_gpus_of_other_names_are_not_free(server, backend):
    put(server, *documents("09-renamed-resources.yaml"))
    ledger = (await backend.snapshot()).ledger
    assert not [slot.id for slot in ledger.slots.values() if slot.state is SlotState.FREE and not slot.is_cpu]
    assert "0 of 2 on nrp-1" in await refused(backend, run(of_set()))
    assert "0 of 2 on vol-1" in await refused(backend, run(of_set(device="volcano.sh/vgpu-number")))


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_variable_of_a_config_map_is_read_where_it_can_be(server, backend, is_readable):
    put(server, node(), *documents("10-variable-by-envfrom.yaml"))
    if not is_readable:
        server.failures.append(Failure("GET", "ConfigMap", 403, name="gpu-3"))
    ledger = (await backend.snapshot()).ledger
    states = [slot.state for slot in ledger.of_gpu("g-1", 3)]
    if is_readable:
        assert states.count(SlotState.BUSY) == 1
        assert {slot.state for slot in ledger.of_gpu("g-1", 0)} == {SlotState.FREE}
    else:
        assert set(states) == {SlotState.UNKNOWN}


async def test_cuda_counts_among_the_gpus_of_a_request(server, backend):
    put(server, node(), *documents("11-relative-index.yaml"))
    snapshot = await backend.snapshot()
    assert not snapshot.ledger.problems
    assert {pod.devices for pod in snapshot.pods.values()} == {(DeviceUsage(None, None, 4),)}
    assert snapshot.ledger.nodes["g-1"].counts["nvidia.com/gpu"].free == 6


# --- several GPUs -----------------------------------------------------------------------------------------------
def imported(name):
    return read_kubernetes_yaml(documents(name), name)[0]


async def test_a_template_gets_as_many_gpus_as_its_set_asks_for(server, backend):
    put(server, node())
    await launched(backend, imported("02-several-gpus.yaml"))
    assert limits(server)[0] == {"nvidia.com/gpu": "4"}
    assert " 5 nvidia.com/gpu on one node" in await refused(backend, run(of_set(gpus=5), "s"))


async def test_cuda_stays_as_a_template_has_it_beside_a_request(server, backend):
    put(server, node())
    await launched(backend, imported("02c-cuda-relative.yaml"))
    amounts, variables = limits(server)
    assert (amounts, variables["CUDA_VISIBLE_DEVICES"]) == ({"nvidia.com/gpu": "2"}, "0,1")
    assert "NVIDIA_VISIBLE_DEVICES" not in variables


async def test_a_request_of_a_template_is_not_taken_away(server, backend):
    put(server, node(gpus=7, resource="nvidia.com/mig-1g.5gb"))
    await launched(backend, imported("03-other-device.yaml"))
    amounts, variables = limits(server)
    assert amounts == {"nvidia.com/mig-1g.5gb": "1"}
    assert not {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & set(variables)


async def test_by_variable_a_pod_names_all_its_gpus_and_holds_them_whole(server, backend):
    put(server, node(gpus=4))
    await launched(backend, run(of_set(binding=Binding.ENV, gpus=2)))
    _, variables = limits(server)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    snapshot = await backend.snapshot()
    (pod,) = snapshot.pods_of("r")
    held = [slot.id.gpu for slot in snapshot.ledger.slots.values() if slot.pod == pod.name]
    assert held == [0] * 4 + [1] * 4
    assert not snapshot.ledger.problems
    prepared = await planned(backend, run(of_set(binding=Binding.ENV, gpus=2), "s"))
    assert {slot.gpu for slot in prepared.plan.slots} == {2, 3}
    assert "2 whole GPUs of one node does not fit" in await refused(
        backend, run(of_set(2, binding=Binding.ENV, gpus=2), "s")
    )


async def test_a_model_and_a_memory_choose_the_node(server, backend):
    small = {labels.GPU_PRODUCT: "NVIDIA-A10", labels.GPU_MEMORY: "23028"}
    large = {labels.GPU_PRODUCT: "NVIDIA-A100-SXM4-40GB", labels.GPU_MEMORY: "40536"}
    put(server, node("a-1", **small), node("b-1", **large))
    part = of_set(gpus=1, gpu_model="A100", gpu_memory_bytes=40 << 30)
    for binding in (Binding.DEVICE_PLUGIN, Binding.ENV):
        prepared = await planned(backend, run(replace(part, pod=PodSettings(binding=binding))))
        assert [pod.node for pod in prepared.plan.runs[0].pods] == ["b-1"]
    assert "have no GPU of model H100, which the set w needs" in await refused(
        backend, run(replace(part, gpu_model="H100", gpu_memory_bytes=0))
    )


# --- display ------------------------------------------------------------------------------------------------
async def test_lists_and_the_app_say_what_is_used_by_count(server, backend):
    put(server, *documents("01-plugin-count.yaml"), *documents("17-unhealthy-gpu.yaml"))
    snapshot = await backend.snapshot()
    listed = {name: node_document(node, snapshot.ledger) for name, node in snapshot.nodes.items()}
    columns = {column.header: column.value for column in cluster.NODES.columns}
    by_plugin = {name: columns["BY PLUGIN"](document) for name, document in listed.items()}
    assert by_plugin == {"g-1": "gpu 7/8", "xid-1": "gpu 7/7 (1 unhealthy)"}
    assert listed["g-1"]["resources"][0] == {
        "resource": "nvidia.com/gpu",
        "capacity": 8,
        "allocatable": 8,
        "requested": 1,
        "free": 7,
    }
    slot = snapshot.ledger.slots[SlotId("g-1", 0, 0)]
    line = about_slot(slot, snapshot.nodes["g-1"], None, 0.0, unseen=snapshot.ledger.nodes["g-1"].unseen)[0]
    text = "".join(span.text for span in line)
    assert "may be in use: 1 of 8 GPUs in use through the device plugin (notebook)" in text


async def test_place_mode_stages_whole_gpus_also_where_their_use_is_only_counted(server, backend):
    put(server, node(gpus=4), foreign("a", gpus=1))
    ledger = (await backend.snapshot()).ledger
    draft = PlacementDraft((run(of_set(gpus=2)),)).put("w", [SlotId("g-1", 1, 0)], ledger)
    (seat,) = draft.seats.values()
    assert {slot.gpu for slot in seat.slots} == {1, 2}
    assert draft.still_free(ledger) == draft
    on = ",".join(map(str, draft.pins()))
    prepared = await planned(backend, run(of_set(gpus=2)), on=on)
    assert not launcher.refusals(prepared.findings)
    assert set(prepared.plan.slots) == set(seat.slots)
    by_env = PlacementDraft((run(of_set(binding=Binding.ENV, gpus=2)),)).put("w", [SlotId("g-1", 1, 0)], ledger)
    assert not by_env.seats


async def test_hami_is_placed_by_uuid_and_by_count(server, backend):
    uuids = ",".join(f"GPU-{index:08}-aaaa" for index in range(2))
    shares = node(gpus=20, **{labels.GPU_COUNT: "2"})
    shares["metadata"]["annotations"] = {labels.GPU_UUIDS: uuids}
    put(server, shares, foreign("a", gpus=18))
    prepared = await planned(backend, run(of_set(2, binding=Binding.HAMI)))
    assert not launcher.refusals(prepared.findings)
    assert {pod.seat.units for pod in prepared.plan.runs[0].pods} == {1}
    assert "0 of 20 on g-1" in await refused(backend, run(of_set(3, binding=Binding.HAMI)))
