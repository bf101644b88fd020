"""The RuntimeClass of pods with a GPU, for a cluster like k3s."""

from __future__ import annotations

from copy import deepcopy

from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions.preflight import check_plan
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from tests.l2rtui.backends.kubernetes.actions.conftest import NODE, Cluster

CLASS = {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


def k3s(server, **status):
    node = deepcopy(NODE)
    node["status"] |= {"nodeInfo": {"kubeletVersion": "v1.30.4+k3s1"}, **status}
    server.objects["Node", "", "n1"] = {**server.objects["Node", "", "n1"], **node}


async def runtime_of(cluster, server):
    async for _ in launching.launch(cluster.context, await cluster.plan()):
        pass
    return {item["spec"].get("runtimeClassName") for (kind, _, _), item in server.objects.items() if kind == "Pod"}


async def test_pods_of_k3s_get_the_class_and_the_plan_says_why(cluster, server):
    k3s(server)
    server.put(CLASS)
    sentences = [item.sentence for item in await check_plan(cluster.context, await cluster.plan())]
    why = "pods with a GPU get runtimeClassName nvidia on n1: the default runtime of v1.30.4+k3s1 has no GPU"
    assert why in sentences
    assert await runtime_of(cluster, server) == {"nvidia"}
    reads = [request for request in server.requests if request[1] == "RuntimeClass"]
    assert len(reads) == 1


async def test_a_node_that_reports_its_runtimes_is_believed(cluster, server):
    k3s(server, runtimeHandlers=[{"name": ""}, {"name": "runc"}])
    server.put(CLASS)
    assert await runtime_of(cluster, server) == {None}


async def test_a_class_that_may_not_be_read_is_warned_of_and_asked_for_again(cluster, server):
    k3s(server)
    server.put(CLASS)
    server.denied.add(("get", "runtimeclasses"))
    plan = await cluster.plan()
    sentences = [item.sentence for item in await check_plan(cluster.context, plan)]
    assert any("no RuntimeClass nvidia can be seen" in sentence for sentence in sentences)
    server.denied.clear()
    assert await runtime_of(cluster, server) == {"nvidia"}


async def test_other_clusters_are_not_asked_and_the_setting_decides(cluster, server):
    assert await runtime_of(cluster, server) == {None}
    assert "RuntimeClass" not in {kind for _, kind, _ in server.requests}
    context = ClusterContext(cluster.context.api, Settings(runtime_class="gpu"))
    assert (await context.server_facts([])).runtime_classes == {"n1": "gpu"}
    assert await Cluster(context).plan(name="s")
