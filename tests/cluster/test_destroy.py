"""Destroys on a real API server, each receipt compared with kubectl."""

from __future__ import annotations

import asyncio
import json

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import owned_objects
from l2rtui.backends.kubernetes.actions.destroy import destroy
from l2rtui.backends.kubernetes.actions.scale import kill
from l2rtui.backends.kubernetes.api.client import connect
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.receipt import DestroyProgress, Receipt
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError
from tests.bench.kubernetes_destroy import bench
from tests.cluster.conftest import kubectl, kubectl_json
from tests.cluster.handmade import Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
KINDS = "pods,rs,jobs,statefulsets,svc,cm,secret,endpoints,endpointslices,lease"


@pytest.fixture
async def api(kubeconfig):
    made = await connect()
    yield made
    await made.close()


async def receipt_of(api, run, **wishes):
    *progress, receipt = [item async for item in destroy(ClusterContext(api), run.view, **wishes)]
    assert isinstance(receipt, Receipt)
    assert all(isinstance(item, DestroyProgress) for item in progress)
    return progress, receipt


def seen(namespace, run):
    """Objects of a run seen by kubectl, by label, owner or name."""
    items = kubectl_json("get", KINDS, "-n", namespace)["items"]
    return [
        f"{one['kind']} {one['metadata']['name']}"
        for one in items
        if run.run_id in json.dumps(one["metadata"])
        or run.uid in json.dumps(one["metadata"].get("ownerReferences", []))
        or one["metadata"]["name"].startswith(f"{run.name}-")
    ]


async def pods_of(api, run):
    found = await api.list("Pod", run.namespace, labels=f"{labels.RUN_ID}={run.run_id}")
    return [PodView(one["metadata"]["uid"], one["metadata"]["name"], namespace=run.namespace) for one in found]


async def until(is_so, what):
    for _ in range(300):
        if found := await is_so():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(what)


@pytest.mark.smoke
async def test_a_run_goes_with_all_it_owns_and_results_are_named(api, namespace):
    before = kubectl("get", KINDS, "-n", namespace, "-o", "name")
    run = Run(namespace, "one")
    await run.create(api)
    await run.claim(api, 7)

    progress, receipt = await receipt_of(api, run)

    assert receipt.left == ()
    assert receipt.results_location == "claim results (/data)"
    assert receipt.objects >= 10
    assert progress[0].left
    assert seen(namespace, run) == []
    assert kubectl("get", KINDS, "-n", namespace, "-o", "name") == before
    with pytest.raises(NotFoundError):
        await receipt_of(api, run)


@pytest.mark.smoke
async def test_a_finalizer_is_named_and_a_second_destroy_goes_on(api, namespace):
    run = Run(namespace, "held")
    await run.create(api, template={"finalizers": ["l2r.test/hold"]})
    await until(lambda: pods_of(api, run), "no pods")

    _, receipt = await receipt_of(api, run, overtime_seconds=1.0)

    reasons = {one.reason for one in receipt.left if one.kind == "Pod"}
    assert reasons == {"the finalizer l2r.test/hold holds it"}
    marked = await api.read("ConfigMap", namespace, labels.run_object("held"))
    assert labels.TERMINATING in marked["metadata"]["annotations"]
    for pod in await pods_of(api, run):
        await api.patch("Pod", namespace, pod.name, {"metadata": {"finalizers": None}})
    _, receipt = await receipt_of(api, run)
    assert receipt.left == ()
    assert seen(namespace, run) == []


@pytest.mark.smoke
async def test_another_run_of_the_same_name_is_left_alone(api, namespace):
    old, new = Run(namespace, "twin"), Run(namespace, "twin")
    await old.create(api)
    await api.delete("ConfigMap", namespace, labels.run_object("twin"), propagation="Orphan")
    await until(lambda: gone(api, namespace, "twin"), "the ConfigMap stays")
    await new.create_head(api)

    _, receipt = await receipt_of(api, old)

    assert receipt.left == ()
    kept = await api.read("ConfigMap", namespace, labels.run_object("twin"))
    assert kept["metadata"]["labels"][labels.RUN_ID] == new.run_id


async def gone(api, namespace, name):
    found = await api.list("ConfigMap", namespace, fields=f"metadata.name={labels.run_object(name)}")
    return not found


@pytest.mark.smoke
async def test_force_takes_pods_out_and_says_that_they_may_live(api, namespace):
    run = Run(namespace, "forced")
    await run.create(api, sets=1, replicas=1, template={"annotations": {"l2r.fake/stop": "600"}})
    await until(lambda: running(api, run), "nothing runs")

    _, receipt = await receipt_of(api, run, force=True, overtime_seconds=1.0)

    assert {one.kind for one in receipt.left} == {"Container"}
    assert all("by force" in one.reason for one in receipt.left)
    assert seen(namespace, run) == []


async def running(api, run):
    found = await api.list("Pod", run.namespace, labels=f"{labels.RUN_ID}={run.run_id}")
    return found and all(one["status"]["phase"] == "Running" for one in found)


@pytest.mark.smoke
async def test_killed_pods_are_replaced_and_gone_ones_not_found(api, namespace):
    run = Run(namespace, "killed")
    await run.create(api)
    pods = await until(lambda: pods_of(api, run), "no pods")
    await kill(api, pods, 0.0)

    async def are_replaced():
        now = {pod.uid for pod in await pods_of(api, run)}
        return now and not now & {pod.uid for pod in pods}

    await until(are_replaced, "the pods were not replaced")
    with pytest.raises(NotFoundError, match="gone"):
        await kill(api, pods)
    await receipt_of(api, run)


@pytest.mark.smoke
async def test_leaks_tell_what_a_lost_run_left_and_nothing_else(api, namespace):
    api.namespaces = (namespace,)
    alive, lost = Run(namespace, "alive"), Run(namespace, "lost")
    await alive.create(api)
    await lost.create(api)
    assert (await owned_objects.find_leaks(ClusterContext(api))).leaks == ()
    await api.delete("ConfigMap", namespace, labels.run_object("lost"), propagation="Orphan")
    await until(lambda: gone(api, namespace, "lost"), "the ConfigMap stays")
    found = (await owned_objects.find_leaks(ClusterContext(api))).leaks
    assert {one.run for one in found} == {"lost"}
    assert {"Pod", "ReplicaSet", "Job", "Service", "Secret"} <= {one.kind for one in found}
    for run in (lost, alive):
        assert (await receipt_of(api, run))[1].left == ()
    assert (await owned_objects.find_leaks(ClusterContext(api))).leaks == ()


async def test_no_receipt_lies_under_injected_faults(kubeconfig):
    tally = await bench(20, 11)
    assert tally.rounds == 20
    assert tally.false_zero == []
