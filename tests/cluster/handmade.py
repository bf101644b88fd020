"""Runs made by hand, object by object, so that a test needs no launch; and an API that fails on request."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import RunView

PAUSE = "debian:bookworm-slim"


class Run:
    """One run: ConfigMap, Secret, Service, a learner's Job and one ReplicaSet for each device."""

    def __init__(self, namespace: str, name: str, node: str = "phortx3") -> None:
        self.namespace, self.name, self.node = namespace, name, node
        self.run_id = uuid.uuid4().hex
        self.uid = ""

    @property
    def view(self) -> RunView:
        return RunView(self.run_id, self.name, self.name, "anna", namespace=self.namespace)

    def meta(self, name: str, **more: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": name,
            "namespace": self.namespace,
            "labels": {
                labels.APP_MANAGED_BY: labels.MANAGED_BY,
                labels.RUN: self.name,
                labels.RUN_ID: self.run_id,
                **more,
            },
        }
        if self.uid:
            owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": labels.run_object(self.name)}
            found["ownerReferences"] = [{**owner, "uid": self.uid, "blockOwnerDeletion": True}]
        return found

    async def create_head(self, api: Api) -> None:
        """Create the ConfigMap, which owns all other objects."""
        made = await api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": self.meta(labels.run_object(self.name)),
                "data": {labels.SPEC_KEY: '{"sets":[{"pod":{"mounts":[{"path":"/data","claim":"results"}]}}]}'},
            }
        )
        self.uid = made["metadata"]["uid"]

    def manifests(self, sets: int, replicas: int, template: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": self.meta(labels.run_object(self.name))}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.meta(labels.learner_service(self.name)),
            "spec": {
                "selector": {labels.RUN_ID: self.run_id, labels.ROLE: "learner"},
                "ports": [{"name": "data", "port": 5555}],
            },
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self.meta(labels.controller_name(self.name, "learner")),
            "spec": {"template": self.template("learner", "OnFailure", template), "backoffLimit": 100},
        }
        workers = [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": self.meta(labels.controller_name(self.name, "w", group)),
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {labels.RUN_ID: self.run_id, labels.SET: f"w{group}"}},
                    "template": self.template(f"w{group}", "Always", template),
                },
            }
            for group in range(sets)
        ]
        return [secret, service, job, *workers]

    def template(self, set_name: str, restart: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
        more = more or {}
        role = "learner" if set_name == "learner" else "worker"
        marks = {
            labels.APP_MANAGED_BY: labels.MANAGED_BY,
            labels.RUN: self.name,
            labels.RUN_ID: self.run_id,
            labels.SET: set_name,
            labels.ROLE: role,
        }
        container = {
            "name": "main",
            "image": PAUSE,
            "imagePullPolicy": "IfNotPresent",
            "command": more.get("command", ["sleep", "3600"]),
        }
        meta: dict[str, Any] = {"labels": marks, "annotations": more.get("annotations", {})}
        if "finalizers" in more:
            meta["finalizers"] = more["finalizers"]
        return {
            "metadata": meta,
            "spec": {
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": more.get("grace", 1),
                "nodeSelector": {labels.HOSTNAME: self.node},
                "containers": more.get("containers", [container]),
            },
        }

    async def create(
        self, api: Api, sets: int = 2, replicas: int = 2, template: dict[str, Any] | None = None
    ) -> None:
        await self.create_head(api)
        for manifest in self.manifests(sets, replicas, template):
            await api.create(manifest)

    async def claim(self, api: Api, gpu: int) -> None:
        """Claim one slot, like a launch does."""
        from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, SlotLeases, slots_by_device

        claimant = Claimant(self.name, self.run_id, self.namespace)
        await SlotLeases(api, self.namespace).claim(slots_by_device({claimant: [SlotId(self.node, gpu, 0)]}))


class FaultyApi(Api):
    """An API server that fails: before a request is executed, or after it, with the answer lost."""

    rate = 0.0
    """Share of requests that fail."""
    dice = random.Random(0)

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if self.dice.random() >= self.rate:
            return await super().request(method, path, **more)
        kind = self.dice.choice(("refused", "lost", "silent"))
        if kind == "lost":
            await super().request(method, path, **more)
        if kind == "refused":
            raise ApiError(f"The server did not {method} {path}: injected.", status=500, reason="InternalError")
        raise ApiError(f"No answer to {method} {path}: injected.")


async def faulty(rate: float, seed: int = 0) -> FaultyApi:
    """Connect to the same server through a faulty client."""
    good = await connect()
    made = FaultyApi(good.access)
    made.server_version = good.server_version
    await good.close()
    made.rate, made.dice = rate, random.Random(seed)
    return made


@asynccontextmanager
async def namespace(api: Api, prefix: str) -> AsyncIterator[str]:
    """A separate namespace, deleted afterwards."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        yield name
    finally:
        for pod in await api.list("Pod", name):
            if pod["metadata"].get("finalizers"):
                body = {"metadata": {"finalizers": None}}
                await api.patch("Pod", name, pod["metadata"]["name"], body)
        await api.delete("Namespace", None, name)
