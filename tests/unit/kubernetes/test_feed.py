"""The feed of a server whose pods cannot be listed yet: what nobody has seen is unknown."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

from aiohttp import web

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.devices import SlotRule
from l2rtui.backends.kubernetes.feed import Feed
from l2rtui.backends.kubernetes.kubeconfig import Access, User
from l2rtui.domain.change import apply
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT

NODE = {
    "metadata": {"name": "n", "uid": "n", "resourceVersion": "1"},
    "status": {"capacity": {"nvidia.com/gpu": "1"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
POD = {
    "metadata": {"name": "p", "namespace": "ml", "uid": "p", "resourceVersion": "2"},
    "spec": {
        "nodeName": "n",
        "containers": [{"name": "c", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]}],
    },
    "status": {"phase": "Running"},
}


class Cluster:
    """One node and one pod; lists of pods break off after the first page while it is ill."""

    def __init__(self):
        self.is_ill = True
        self.pages = 0

    async def answer(self, request):
        kind = request.path.rpartition("/")[2]
        if kind == "selfsubjectaccessreviews":
            return web.json_response({"status": {"allowed": True}})
        if kind in ("resource.k8s.io", "v1beta1"):
            return web.json_response({}, status=404)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        if kind == "readyz" or (kind == "pods" and "continue" in request.query):
            return web.json_response({}, status=503 if self.is_ill else 200)
        meta = {"resourceVersion": "9"}
        if kind == "pods" and self.is_ill:
            self.pages += 1
            meta["continue"] = "more"
        return web.json_response({"metadata": meta, "items": {"nodes": [NODE], "pods": [POD]}.get(kind, [])})


@asynccontextmanager
async def feeding(cluster):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", cluster.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = Api(Access("test", "test", f"http://127.0.0.1:{runner.addresses[0][1]}", User("tester")))
    try:
        yield Feed(api, SlotRule())
    finally:
        await api.close()
        await runner.cleanup()


async def test_slots_are_unknown_until_all_pods_have_been_listed():
    cluster = Cluster()
    async with asyncio.timeout(60), feeding(cluster) as feed, aclosing(feed.watch()) as batches:
        first = apply(EMPTY_SNAPSHOT, await anext(batches))
        assert cluster.pages >= 1
        assert first.pods == {}  # half a list is no list
        assert {one.state for one in first.ledger.slots.values()} == {SlotState.UNKNOWN}
        assert any(one.startswith("pods are not read yet") for one in first.problems)
        cluster.is_ill = False
        snapshot = first
        while not snapshot.pods or snapshot.problems:
            snapshot = apply(snapshot, await anext(batches))
        states = [one.state for one in snapshot.ledger.slots.values()]
        assert sorted(states) == [SlotState.BUSY] + [SlotState.FREE] * 3
