"""Kills against an API server in memory."""

from __future__ import annotations

import pytest

from l2rtui.backends.kubernetes.actions.scale import kill
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import NotFoundError
from tests.fakes.kubernetes_objects import Failure
from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving


def views(server):
    return [
        PodView(item["metadata"]["uid"], name, namespace="ml")
        for (kind, _, name), item in server.objects.items()
        if kind == "Pod"
    ]


async def test_killed_pods_are_replaced_by_others(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    before = views(server)
    await kill(cluster.context.api, before, 0.0)
    assert len(views(server)) == 2
    assert {pod.uid for pod in before}.isdisjoint(pod.uid for pod in views(server))


async def test_a_pod_of_the_same_name_that_came_since_is_not_hit(cluster, server):
    await cluster.launch(pins="n1/0.0-1")
    pod = views(server)[0]
    stale = PodView("another-uid", pod.name, namespace="ml")
    with pytest.raises(NotFoundError, match=f"{pod.name} is gone"):
        await kill(cluster.context.api, [stale])
    assert pod in views(server)


async def test_a_grace_below_one_second_is_one_so_that_the_process_ends_first(cluster, server):
    server.has_stubborn_pods = True
    await cluster.launch(pins="n1/0.0-1")
    await kill(cluster.context.api, views(server), 0.0)
    pods = [item for (kind, _, _), item in server.objects.items() if kind == "Pod"]
    assert {pod["metadata"]["deletionGracePeriodSeconds"] for pod in pods} == {1}


async def test_a_server_that_is_busy_is_asked_again(cluster, server):
    await cluster.launch(replicas=1, pins="n1/0.0")
    before = views(server)
    server.failures.append(Failure("DELETE", "Pod", 503, "ServiceUnavailable", times=2))
    await kill(cluster.context.api, before)
    assert views(server)[0].uid != before[0].uid


async def test_a_lost_answer_is_no_error_when_the_pod_is_gone_then(cluster, server, monkeypatch):
    await cluster.launch(replicas=1, pins="n1/0.0")
    server.runs_controllers = False
    delete, calls = cluster.context.api.delete, []

    async def lost(*args, **kwargs):
        calls.append(args)
        await delete(*args, **kwargs)
        if len(calls) == 1:
            raise ApiError("No answer.")

    monkeypatch.setattr(cluster.context.api, "delete", lost)
    await kill(cluster.context.api, views(server))
    assert (len(calls), views(server)) == (2, [])


async def test_without_the_right_the_first_pod_is_named_and_nothing_is_tried_twice(cluster, server):
    await cluster.launch(replicas=1, pins="n1/0.0")
    server.denied.add(("delete", "pods"))
    with pytest.raises(ApiError, match="lacks the right to delete pods"):
        await kill(cluster.context.api, views(server))
    assert [method for method, kind, _ in server.requests if kind == "Pod"].count("DELETE") == 1


@pytest.mark.parametrize("is_cut", [True, False])
async def test_a_deletion_that_was_cut_and_repeated_by_the_http_client_is_done(is_cut):
    deletions = []

    async def answer(request):
        deletions.append(request.path)
        if is_cut and len(deletions) == 1:
            await request.read()
            request.transport.abort()  # the server has deleted it, but its answer is lost
        return refusal(404, "NotFound", "pods r-w-0 not found")

    async with serving(Server(on_request=answer)) as server:
        api = server.api()
        pod = PodView("uid", "r-w-0", namespace="ml")
        if is_cut:
            await kill(api, [pod])
        else:
            with pytest.raises(NotFoundError, match="r-w-0 is gone"):
                await kill(api, [pod])
        await api.close()
    assert len(deletions) == 1 + is_cut
