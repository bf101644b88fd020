"""GPU figures of an exporter in a real pod, read through the API server's proxy."""

from __future__ import annotations

import asyncio
import os

import pytest

from l2rtui.backends.kubernetes.api.client import connect
from tests.cluster.conftest import Cli, eventually, kubectl
from tests.cluster.following import following
from tests.cluster.test_cluster_watch import grant
from tests.cluster.test_logs import manifest, running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
SERVE = (
    "use IO::Socket::INET;"
    "my $door = IO::Socket::INET->new(LocalPort => 9400, Listen => 16, ReuseAddr => 1) or die;"
    "while (my $one = $door->accept) { while (<$one>) { last if /^\\r?$/ }"
    'print $one "HTTP/1.0 200 OK\\r\\nContent-Type: text/plain\\r\\n\\r\\n$ENV{SAYS}"; close $one }'
)
SAYS = """\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a0",device="nvidia0",modelName="A100",Hostname="phortx0"} 87
DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-a3",device="nvidia3",modelName="A100",Hostname="phortx0"} 0
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a0",device="nvidia0",modelName="A100",Hostname="phortx0"} 69632
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a0",device="nvidia0",modelName="A100",Hostname="phortx0"} 12288
"""


@pytest.fixture
async def exporter(kubeconfig, namespace):
    """A pod on the real node that serves recorded output of an exporter; yields the connection that made it."""
    api = await connect(kubeconfig=kubeconfig)
    made = manifest(namespace, "exporter", "phortx0", ("perl", "-e", SERVE))
    made["metadata"]["labels"] = {"app.kubernetes.io/name": "dcgm-exporter"}
    made["spec"]["containers"][0]["env"] = [{"name": "SAYS", "value": SAYS}]
    await api.create(made)
    await running(api, namespace, ["exporter"])
    yield api
    await api.delete("Pod", namespace, "exporter", grace_seconds=0)
    await api.close()


async def test_gpus_show_what_the_exporter_of_their_node_says(exporter, cli, kubeconfig):
    def measured():
        nodes = {gpu["node"]: gpu for gpu in cli.json("nodes")}
        result = {gpu["gpu"]: gpu for gpu in nodes["phortx0"]["gpus"]}
        return result if result[0]["use_percent"] is not None else None

    gpus = await asyncio.to_thread(eventually, "figures of GPU 0", measured)
    assert {index for index, gpu in gpus.items() if gpu["use_percent"] is not None} == {0, 3}
    reported = [gpus[0][key] for key in ("use_percent", "memory_used_bytes", "memory_bytes")]
    assert (reported, gpus[3]["use_percent"]) == ([87.0, 12 << 30, 80 << 30], 0.0)
    slots = await asyncio.to_thread(cli.json, "slots")
    assert {gpu["gpu_use_percent"] for gpu in slots if gpu["id"].startswith("phortx0/0.")} == {87.0}
    async with following(kubeconfig) as follower, asyncio.timeout(60):
        while (use := follower.snapshot.nodes["phortx0"].use(0)) is None:
            await asyncio.sleep(0.05)
        assert use.percent == 87.0


def percent_of_the_first(cli):
    return next(item["gpu_use_percent"] for item in cli.json("slots") if item["id"] == "phortx0/0.0")


async def test_without_the_right_there_are_no_figures_and_no_complaint(exporter, namespace, tmp_path):
    rules = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}]
    proxy = [{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}]
    name = await grant(exporter, "researcher", rules)
    reader = Cli(tmp_path, namespace, f"{os.environ['L2R_CLUSTER_DIR']}/researcher.kubeconfig")
    try:
        nodes = {gpu["node"]: gpu for gpu in await asyncio.to_thread(reader.json, "nodes")}
        assert {gpu["use_percent"] for gpu in nodes["phortx0"]["gpus"]} == {None}
        assert "proxy" not in (await asyncio.to_thread(reader.call, "nodes")).stderr
        await grant(exporter, "researcher", proxy, namespace)  # in the exporter's namespace only
        await asyncio.to_thread(eventually, "figures by the right", lambda: percent_of_the_first(reader) == 87.0)
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", name)
