"""Metrics of dcgm-exporter: read line by line, bounded, and checked against the node's GPUs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.structs import PodStruct
from l2rtui.backends.kubernetes.state import cluster_watch
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.dcgm import (
    MOST_BYTES,
    GpuSample,
    exporters,
    gpu_uses,
    parse_metrics,
    pods_by_gpu,
    read_samples,
)
from l2rtui.backends.kubernetes.state.node_devices import NodeDevices, SlotRule
from l2rtui.domain.node import Gpu, GpuUse
from l2rtui.domain.snapshot import ClusterSnapshot

SAYS = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 1410
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA A100",Hostname="n"} 87
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="odd \\"}, name"} 1024 1700000000000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a"} 3072
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 312.4
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 61
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 140737488355328.000000
DCGM_FI_DEV_GPU_UTIL{gpu="1", UUID="GPU-b"} 12.5
"""


def test_utilisation_and_memory_are_read_and_all_else_is_passed_over():
    assert parse_metrics(SAYS) == (
        GpuSample(0, "GPU-a", 87.0, 1 << 30, 3 << 30, 312.4, 61.0),
        GpuSample(1, "GPU-b", 12.5),
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "DCGM_FI_DEV_GPU_UTIL 87",
        "DCGM_FI_DEV_GPU_UTIL{} 87",
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"}',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0" 87',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0} 87',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} busy',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} NaN',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} +Inf',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} -1',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 101',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 1e999',
        'DCGM_FI_DEV_FB_USED{gpu="0"} 9223372036854775794',
        'DCGM_FI_DEV_FB_FREE{gpu="0"} -5',
        'DCGM_FI_DEV_GPU_UTIL{gpu="-1"} 5',
        'DCGM_FI_DEV_GPU_UTIL{gpu="\N{SUPERSCRIPT TWO}"} 5',
        'DCGM_FI_DEV_GPU_UTIL{gpu="99999"} 5',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",GPU_I_ID="1",GPU_I_PROFILE="1g.5gb"} 5',
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",x="' + "x" * 5000 + '"} 5',
        'OTHER_DCGM_FI_DEV_GPU_UTIL{gpu="0"} 5',
    ],
)
def test_an_odd_line_tells_nothing_and_spoils_no_other(line):
    good = 'DCGM_FI_DEV_GPU_UTIL{gpu="7"} 5'
    assert parse_metrics(f"{line}\n{good}\r\n{line}") == (GpuSample(7, "", 5.0),)


@given(st.text())
def test_any_text_is_read(text):
    assert parse_metrics(text) == ()
    assert isinstance(parse_metrics(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0"{text}}} {text}'), tuple)


@pytest.mark.timeout(60)  # takes a fifth of a second; a backtracking pattern would take hours
@pytest.mark.parametrize("piece", ['gpu="', ",a", ',a="\\', "}", " ", 'gpu="0",'])
def test_the_longest_hostile_text_is_read_in_one_pass(piece):
    line = "DCGM_FI_DEV_GPU_UTIL{" + piece * (4000 // len(piece)) + "\n"
    assert parse_metrics(line * (MOST_BYTES // len(line))) == ()


def test_no_more_gpus_are_kept_than_a_node_can_have():
    assert len(parse_metrics("\n".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{n}"}} 1' for n in range(1000)))) == 64


GPUS = (Gpu("n", 0, "GPU-a", memory_bytes=80), Gpu("n", 1, "GPU-b"), Gpu("n", 2))
DEVICES = NodeDevices("n", GPUS, {"GPU-a": 0, "GPU-b": 1})


@pytest.mark.parametrize(
    ("sample", "use"),
    [
        (GpuSample(0, "", 5.0), GpuUse(0, 5.0, None, 80)),
        (GpuSample(1, "GPU-a", 5.0), GpuUse(0, 5.0, None, 80)),  # the UUID identifies the GPU, whatever its index
        (GpuSample(None, "GPU-b", None, 3, 4), GpuUse(1, None, 3, 7)),
        (GpuSample(2, "GPU-c", 5.0, 3), GpuUse(2, 5.0, 3)),
        (GpuSample(0, "GPU-c", 5.0), None),
        (GpuSample(3, "", 5.0), None),
        (GpuSample(None, "GPU-c", 5.0), None),
    ],
)
def test_a_sample_is_of_the_gpu_with_its_uuid_or_index_if_there_is_one(sample, use):
    assert gpu_uses(DEVICES, [sample]) == ((use,) if use else ())


def test_a_node_without_a_gpu_has_none_in_use():
    assert gpu_uses(NodeDevices("n", (Gpu("n", 0, is_cpu=True),)), [GpuSample(0, "", 5.0)]) == ()


def pod(name="e", node="n", phase="Running", **labels) -> PodStruct:
    raw = {"metadata": {"name": name, "namespace": "gpu", "uid": name, "labels": labels},
           "spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}}  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode(raw), type=PodStruct)


EXPORTER = {"app.kubernetes.io/name": "dcgm-exporter"}


def test_exporters_are_known_by_their_labels_and_run():
    pods = [
        pod("a", **EXPORTER),
        pod("b", "n2", app="nvidia-dcgm-exporter"),
        pod("c", "n3", app="dcgm-exporter"),
        pod("d", "n4", app="other"),
        pod("e", "n5", phase="Pending", **EXPORTER),
        pod("f", "", **EXPORTER),
        pod("g", "n"),
    ]
    assert [item.metadata.name for item in exporters(pods)] == ["a", "b", "c"]


class Cluster:
    """A node with two GPUs and an exporter, which answers as specified by a test."""

    def __init__(self, answer):
        self.answer_metrics = answer
        self.asked = []

    async def answer(self, request):
        if "proxy" in request.path:
            self.asked.append(request.path)
            return await self.answer_metrics(request)
        kind = request.path.rpartition("/")[2]
        if kind == "selfsubjectaccessreviews":
            return web.json_response({"status": {"allowed": True}})
        if kind in ("resource.k8s.io", "v1beta1"):
            return web.json_response({}, status=404)
        node = {
            "metadata": {"name": "n", "uid": "n", "resourceVersion": "1"},
            "status": {"capacity": {"nvidia.com/gpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        exporter = msgspec.to_builtins(pod(**EXPORTER))
        items = {"nodes": [node], "pods": [exporter]}.get(kind, [])
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})


@asynccontextmanager
async def served(answer):
    cluster = Cluster(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = Api(Access("test", "test", f"http://127.0.0.1:{runner.addresses[0][1]}", User("tester")))
    try:
        yield cluster, api
    finally:
        await api.close()
        await runner.cleanup()


async def said(_request):
    return web.Response(text=SAYS)


async def forbidden(_request):
    return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)


async def too_long(_request):
    return web.Response(text=SAYS + "x" * MOST_BYTES)


async def silent(_request):
    await asyncio.sleep(30)
    return web.Response(text=SAYS)


async def test_a_look_shows_what_the_exporter_says():
    async with served(said) as (cluster, api):
        snapshot: ClusterSnapshot = await ClusterWatch(api, SlotRule()).snapshot()
        assert snapshot.nodes["n"].gpu_use == (
            GpuUse(0, 87.0, 1 << 30, 4 << 30, 312.4, 61.0),
            GpuUse(1, 12.5),
        )
        assert cluster.asked == ["/api/v1/namespaces/gpu/pods/e:9400/proxy/metrics"]


@pytest.mark.parametrize("answer", [forbidden, too_long, silent])
async def test_no_figures_are_no_problem_and_are_not_waited_for_twice(answer, monkeypatch):
    monkeypatch.setattr(cluster_watch, "_SNAPSHOT_SAMPLES_SECONDS", 0.2)
    async with served(answer) as (cluster, api):
        watch = ClusterWatch(api, SlotRule())
        for _ in range(2):
            snapshot = await watch.snapshot()
            assert (snapshot.nodes["n"].gpu_use, snapshot.problems) == ((), ())
        assert len(cluster.asked) == 1


async def test_what_has_come_by_the_deadline_counts():
    async def answer(request):
        return await (silent if "slow" in request.path else said)(request)

    async with served(answer) as (_, api):
        pods = [pod("slow", "m", **EXPORTER), pod("e", "n", **EXPORTER)]
        assert set(await read_samples(api, pods, 2.0)) == {"n"}
        assert await read_samples(api, [], 2.0) == {}


def test_the_pods_that_the_kubelet_gave_a_gpu_to_are_read():
    text = (
        'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",pod="p",namespace="x"} 5\n'
        'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",exported_pod="p",exported_namespace="x",pod="e"} 5\n'
        'DCGM_FI_DEV_GPU_UTIL{gpu="2",UUID="GPU-c",pod="",namespace=""} 5\n'
    )
    assert pods_by_gpu({"n": parse_metrics(text)}, {}) == {("x", "p"): (0, 1)}
