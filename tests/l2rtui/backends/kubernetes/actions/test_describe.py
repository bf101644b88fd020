"""Descriptions and events against an API server in memory."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.actions import describe
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError


def event(server, number, kind, item, reason, message=""):
    about = {"kind": kind, "name": item["metadata"]["name"], "uid": item["metadata"]["uid"], "namespace": "ml"}
    when = f"2026-01-01T00:00:{number:02d}Z"
    body = {"involvedObject": about, "reason": reason, "message": message, "type": "Warning", "lastTimestamp": when}
    server.put({"kind": "Event", "metadata": {"name": f"e{number}"}, **body})


async def view_of(cluster):
    return next(pod for pod in (await cluster.context.snapshot()).pods.values() if pod.run == "r")


async def test_a_pod_is_described_with_its_events_newest_last_and_secrets_hidden(cluster, server):
    await cluster.launch(replicas=1, pins="n1/0.0")
    view = await view_of(cluster)
    pod = server.get("Pod", view.name)
    pod["spec"]["containers"][0]["env"] = [
        {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
        {"name": "PLAIN", "value": "y"},
    ]
    event(server, 2, "Pod", pod, "Started")
    event(server, 1, "Pod", pod, "Pulled", "an image")
    lines = await describe.describe(cluster.context.api, view)
    assert lines[0] == f"pod {view.name}"
    assert "  env AWS_SECRET_ACCESS_KEY=(hidden)" in lines
    assert "  env PLAIN=y" in lines
    assert [line.split()[4] for line in lines[-2:]] == ["Pulled", "Started"]


async def test_another_pod_under_the_same_name_is_not_described(cluster):
    await cluster.launch(replicas=1, pins="n1/0.0")
    view = await view_of(cluster)
    with pytest.raises(NotFoundError, match="another has its name"):
        await describe.describe(cluster.context.api, PodView("other", view.name, namespace="ml"))


async def test_a_runs_events_are_those_of_all_its_objects_and_of_pods_that_are_gone(cluster, server):
    await cluster.launch(replicas=1, pins="n1/0.0")
    controller = server.get("ReplicaSet", "r-w")
    event(server, 1, "ReplicaSet", controller, "FailedCreate")
    event(server, 2, "Pod", {"metadata": {"name": "r-w-gone", "uid": "gone"}}, "Killed")
    event(server, 3, "Pod", {"metadata": {"name": "else", "uid": "else"}}, "Other")
    run = await cluster.run()
    results = await describe.events(cluster.context.api, run)
    assert [item.reason for item in results] == ["FailedCreate", "Killed"]
    lines = await describe.describe(cluster.context.api, run)
    assert any(line.startswith("ReplicaSet r-w") for line in lines)
    assert any(line.startswith("Pod r-w-") for line in lines)


async def test_a_node_is_described_with_what_it_offers(cluster):
    snapshot = await cluster.context.snapshot()
    lines = await describe.describe(cluster.context.api, snapshot.nodes["n1"])
    assert lines[0] == "node n1"
    assert any("cpu 16" in line for line in lines)
    assert "  none are kept" in lines
