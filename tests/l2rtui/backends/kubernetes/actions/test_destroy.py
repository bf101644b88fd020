"""Destroys against an API server in memory: order, verification, refusals, pods that stay or reappear."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import destroy as destroying
from l2rtui.backends.kubernetes.actions import owned_objects
from l2rtui.backends.kubernetes.actions.destroy import destroy
from l2rtui.domain.receipt import Receipt
from l2rtui.errors import NotFoundError
from tests.fakes.kubernetes_objects import Failure


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(destroying, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(destroying, "_ROUND_SECONDS", (0.01,))
    monkeypatch.setattr(destroying, "REST_SECONDS", 0.5)
    monkeypatch.setattr(destroying, "FORCED_SECONDS", 0.5)
    for module in (destroying, owned_objects):
        monkeypatch.setattr(module, "_FIRST_PAUSE_SECONDS", 0.001)


async def destroyed(cluster, server, **options):
    view = cluster.view(server)
    options = {"grace_seconds": 0.0, "overtime_seconds": -0.5} | options
    *progress, receipt = [item async for item in destroy(cluster.context, view, **options)]
    assert isinstance(receipt, Receipt)
    return progress, receipt


def reasons(receipt):
    return {f"{item.kind}/{item.name.rpartition('-')[0] or item.name}": item.reason for item in receipt.left}


async def test_everything_goes_and_the_receipt_counts_it(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    kinds = [name.partition("/")[0] for name in server.names() if name != "Node/n1"]
    assert kinds == ["ConfigMap", "Lease", "Pod", "Pod", "ReplicaSet", "Secret"]
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    claims = 2  # on two slots, in the Lease of their GPU
    assert receipt.objects == len(kinds) - 1 + claims
    assert server.names() == ["Node/n1"]


async def test_controllers_go_before_their_pods_and_the_config_map_last(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.requests.clear()
    await destroyed(cluster, server)
    deleted = [kind for method, kind, _ in server.requests if method == "DELETE"]
    assert deleted[0] == "ReplicaSet"
    assert deleted[-1] == "ConfigMap"


async def test_a_run_that_is_not_there_is_not_found(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    view = cluster.view(server)
    await destroyed(cluster, server)
    with pytest.raises(NotFoundError, match="The run r is gone"):
        [item async for item in destroy(cluster.context, view)]


async def test_a_pod_that_outlasts_its_grace_is_in_the_receipt_and_the_config_map_stays(cluster, server):
    server.has_stubborn_pods = True
    await cluster.launch(pins="n1/0.0-1")
    _, receipt = await destroyed(cluster, server)
    left = {(item.kind, item.name) for item in receipt.left}
    assert {kind for kind, _ in left} == {"Pod", "Lease", "ConfigMap"}
    assert server.get("ConfigMap", "l2r-r") is not None
    server.has_stubborn_pods = False
    _, receipt = await destroyed(cluster, server, force=True)
    assert {item.kind for item in receipt.left} <= {"Container"}


async def test_force_takes_pods_out_and_says_that_they_may_still_run(cluster, server):
    server.has_stubborn_pods = True
    await cluster.launch(pins="n1/0.0-1")
    for key, pod in server.objects.items():
        if key[0] == "Pod":
            pod["spec"]["nodeName"] = "n1"
    _, receipt = await destroyed(cluster, server, force=True)
    assert {item.kind for item in receipt.left} == {"Container"}
    assert all("taken out of the API by force" in item.reason for item in receipt.left)


async def test_an_object_that_hangs_on_a_finalizer_is_named_with_it(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    secret = server.get("Secret", "l2r-r") or server.put(
        {
            "kind": "Secret",
            "metadata": {"name": "l2r-r", "labels": server.get("ConfigMap", "l2r-r")["metadata"]["labels"]},
        }
    )
    secret["metadata"]["finalizers"] = ["example.io/wait"]
    _, receipt = await destroyed(cluster, server)
    assert "example.io/wait" in {item.kind: item.reason for item in receipt.left}["Secret"]
    server.remove_finalizers("Secret", "l2r-r")
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()


async def test_a_pod_that_comes_back_after_its_deletion_is_deleted_again(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    pod_labels = next(item for key, item in server.objects.items() if key[0] == "Pod")["metadata"]["labels"]
    comebacks = []

    def come_back(method, kind, _):
        if (method, kind) == ("DELETE", "ReplicaSet") and not comebacks:
            comebacks.append(
                server.put({"kind": "Pod", "metadata": {"name": "late", "labels": pod_labels}, "spec": {}})
            )

    server.hooks.append(come_back)
    _, receipt = await destroyed(cluster, server)
    assert comebacks
    assert receipt.left == ()
    assert server.names("Pod") == []


async def test_without_the_right_to_delete_the_receipt_says_so_at_once(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.denied.add(("delete", "replicasets"))
    _, receipt = await destroyed(cluster, server)
    assert "lacks the right to delete" in {item.kind: item.reason for item in receipt.left}["ReplicaSet"]


async def test_a_deletion_that_is_refused_for_a_time_is_said_meanwhile(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.failures.append(Failure("DELETE", "ReplicaSet", 500, "InternalError", times=2))
    progress, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    assert [item.refusal for item in progress if item.refusal] == [
        "ReplicaSet r-w: The server did not delete replicasets/r-w in the namespace ml: no."
    ]
    assert progress[-1].refusal == ""


async def test_a_list_that_fails_is_tried_again_and_is_never_taken_for_an_empty_one(cluster, server, monkeypatch):
    await cluster.launch(pins="n1/0.0-1")
    server.failures.append(Failure("GET", "Pod", 503, "ServiceUnavailable", times=2))
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    assert server.names("Pod") == []


async def test_a_pod_that_somebody_set_apart_from_its_controller_goes_too(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    name = server.names("Pod")[0].removeprefix("Pod/")
    meta = server.get("Pod", name)["metadata"]
    del meta["labels"][labels.RUN_ID], meta["ownerReferences"]
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    assert server.names() == ["Node/n1"]


async def test_kinds_that_may_not_be_listed_are_named_in_the_receipt(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.denied |= {("list", "networkpolicies"), ("list", "endpoints")}
    _, receipt = await destroyed(cluster, server)
    assert (receipt.left, receipt.not_seen) == ((), "networkpolicies, which you may not list")


async def test_a_server_that_fails_at_first_does_not_end_the_destroy(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.failures.append(Failure("GET", "Namespace", 503, "ServiceUnavailable", times=2))
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    assert server.failures == []


async def test_a_kind_that_cannot_be_listed_is_a_gap_in_the_receipt(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    server.denied.add(("list", "services"))
    _, receipt = await destroyed(cluster, server)
    reason = {item.kind: item.reason for item in receipt.left}["Service"]
    assert reason.startswith("could not be counted")
    assert "lacks the right to list services. Ask an administrator" in reason


async def test_another_run_of_the_same_name_is_left_alone(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    view = cluster.view(server)
    await destroyed(cluster, server)
    await cluster.launch(pins="n1/0.0-1")
    before = server.names()
    with pytest.raises(NotFoundError):
        [item async for item in destroy(cluster.context, view)]
    assert server.names() == before


async def test_claims_are_released_with_the_run_and_others_stay(cluster, server):
    await cluster.launch("r", 1, "n1/0.0")
    await cluster.launch("s", 1, "n1/0.1")
    await destroyed(cluster, server)
    assert server.names("Lease") == ["Lease/l2r-claim-n1-0"]
    assert '"run":"s"' in server.get("Lease", "l2r-claim-n1-0")["metadata"]["annotations"][labels.CLAIMS]


async def test_a_lease_that_cannot_be_written_is_in_the_receipt(cluster, server):
    await cluster.launch("r", 1, "n1/0.0")
    server.denied.add(("delete", "leases"))
    _, receipt = await destroyed(cluster, server)
    reason = {item.kind: item.reason for item in receipt.left}["Lease"]
    assert reason.startswith("1 could not be removed")
    assert "lacks the right to delete leases. Ask an administrator" in reason


@pytest.mark.parametrize(("status", "page"), [(403, "<h1>Blocked</h1>"), (404, "default backend"), (200, "{}")])
@pytest.mark.parametrize("kind", ["Lease", "Job", "Endpoints"])
async def test_what_a_proxy_keeps_from_being_counted_is_not_nothing(cluster, server, kind, status, page):
    await cluster.launch(pins="n1/0.0-1")
    server.failures = [Failure("GET", kind, status, times=-1, page=page)]
    _, receipt = await destroyed(cluster, server)
    assert any(item.kind == kind and "could not be counted" in item.reason for item in receipt.left)
    server.failures = []
    _, receipt = await destroyed(cluster, server)
    assert receipt.left == ()
    assert server.names() == ["Node/n1"]
