"""Small scripted cluster: one node and one pod, with permissions and failures set by a test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from aiohttp import web

from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving

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
NODE_METRICS = {"metadata": {"name": "n", "resourceVersion": "3"}, "usage": {"cpu": "2", "memory": "1Gi"}}


class Cluster:
    """Answers of one API server.

    Attributes:
        allowed: Which (plural, namespace) may be listed; ``None`` as namespace stands for all of them.
        is_ill: Lists of pods break off after the first page, and probes fail.
        failing: Plurals that are answered by 500.
        groups: Served API groups, by path.
        running: If not set, requests are accepted but not answered, like a stopped server.
        is_compacted: Watches from the revision of the first lists are refused.
        watches: Number of watches that were requested.
        gone: Namespaces that do not exist.
        refuses_login: Every new request is refused by 401; open watches go on.
        has_reviews: Access reviews are answered and not forbidden.
    """

    def __init__(self):
        self.allowed = lambda *_: True
        self.is_ill = self.is_compacted = False
        self.failing = set()
        self.gone = set()
        self.refuses_login = False
        self.groups = {}
        self.has_reviews = True
        self.running = asyncio.Event()
        self.running.set()
        self.watches = 0
        self._open_watches = []
        self.items = {"nodes": [NODE], "pods": [POD]}
        self.pages = 0
        self.lists = []
        self.reviews = 0

    async def answer(self, request):
        await self.running.wait()
        *_, kind = parts = request.path.split("/")
        if self.refuses_login:
            return refusal(401, "Unauthorized", "Unauthorized")
        if kind == "selfsubjectaccessreviews":
            return await self._review(request)
        if parts[1] == "apis" and len(parts) <= 4:
            group = self.groups.get(request.path)
            return web.json_response(group) if group else web.Response(text="404 page not found\n", status=404)
        if kind == "version":
            return web.json_response({"major": "1", "minor": "29"})
        if parts[-2] == "namespaces":
            return self._namespace(kind)
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
        if kind == "readyz" or (kind == "pods" and "continue" in request.query):
            return web.json_response({}, status=503 if self.is_ill else 200)
        if kind in self.failing:
            return refusal(500, "InternalError", "broken")
        if not self.allowed(kind, namespace):
            return refusal(403, "Forbidden", f"you may not list {kind}")
        revision = "10" if self.is_compacted else "9"
        if "watch" in request.query:
            self.watches += 1
            if request.query["resourceVersion"] != revision:
                return refusal(410, "Expired")
            response = web.StreamResponse()
            await response.prepare(request)
            self._open_watches.append(request)
            await asyncio.Event().wait()
        self.lists.append((kind, namespace))
        meta = {"resourceVersion": revision}
        if kind == "pods" and self.is_ill:
            self.pages += 1
            meta["continue"] = "more"
        is_metrics = "metrics.k8s.io" in request.path
        return web.json_response(
            {"metadata": meta, "items": [NODE_METRICS] if is_metrics else self.items.get(kind, [])}
        )

    def cut_watches(self):
        """End all open watches."""
        for request in self._open_watches:
            if request.transport is not None:
                request.transport.abort()
        self._open_watches.clear()

    def _namespace(self, name):
        if name == "l2rtui-claims" or name in self.gone:
            return refusal(404, "NotFound", f"no namespace {name}")
        return web.json_response({"metadata": {"name": name}, "status": {"phase": "Active"}})

    async def _review(self, request):
        self.reviews += 1
        if "selfsubjectaccessreviews" in self.failing:
            return refusal(500, "InternalError", 'failed calling webhook "w": connection refused')
        if not self.has_reviews:
            return refusal(403, "Forbidden", "no reviews")
        attributes = (await request.json())["spec"]["resourceAttributes"]
        allowed = self.allowed(attributes["resource"], attributes.get("namespace"))
        return web.json_response({"status": {"allowed": allowed}})


@asynccontextmanager
async def connected(cluster, **kwargs):
    """A client of this cluster."""
    async with asyncio.timeout(60), serving(Server(on_request=cluster.answer)) as server:
        api = server.api(**kwargs)
        try:
            yield api
        finally:
            await api.close()
