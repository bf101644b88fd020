"""Follows a cluster through faults: changes during them, and the time until the shown state matches kubectl's."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from l2rtui.backends.kubernetes.api.backoff import Timing
from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.domain.change import apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from tests.cluster.faults import shown, truth

_LOOK_SECONDS = 0.5


class Follower:
    """Keeps the newest snapshot of a feed."""

    def __init__(self, feed: ClusterWatch) -> None:
        self.feed = feed
        self.snapshot = EMPTY_SNAPSHOT
        self.is_first = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self.feed.watch()) as batches:
            async for batch in batches:
                self.snapshot = apply(self.snapshot, batch)
                self.is_first.set()

    async def until_true(self, kubeconfig: str, namespace: str, most_seconds: float) -> float:
        """Wait until the shown state matches kubectl's, field by field; return the seconds that took.

        They count from now, or from the last time when kubectl reported a change: the cluster's own controllers
        continue after a fault, too. More than ``most_seconds`` means that it never matched.
        """
        asked = since = time.monotonic()
        told = await truth(kubeconfig, namespace)
        while True:
            end = time.monotonic() + _LOOK_SECONDS
            while time.monotonic() < end:
                if told == shown(self.snapshot, namespace):
                    return time.monotonic() - since
                await asyncio.sleep(0.02)
            if (waited := time.monotonic() - since) > most_seconds:
                print("kubectl:", told, "\nshown:", shown(self.snapshot, namespace), self.snapshot.problems)
                return waited
            asked, before = time.monotonic(), told
            told = await truth(kubeconfig, namespace)
            since = since if told == before else asked


@asynccontextmanager
async def following(
    kubeconfig: str, timing: Timing | None = None, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Follower]:
    """A follower that has its first snapshot."""
    api = await connect(kubeconfig=kubeconfig, namespaces=namespaces)
    follower = Follower(ClusterWatch(api, SlotRule(), timing))
    task = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(60):
            await follower.is_first.wait()
        yield follower
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


def pod(name: str, namespace: str, gpu: str = "", node: str = "phortx1", **labels: str) -> dict[str, Any]:
    """A foreign pod that sleeps, pinned by the two variables if it names a GPU."""
    env = [{"name": key, "value": gpu} for key in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")] if gpu else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "worker:1", "env": env}],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "automountServiceAccountToken": False,
        },
    }


def run(name: str, namespace: str, replicas: int) -> dict[str, Any]:
    """The ConfigMap of a run of one set."""
    spec = {"experiment": name, "sets": [{"name": "w", "role": "worker", "replicas": replicas}]}
    marks = {"managed-by": "app.kubernetes.io/managed-by", "run": "l2rtui.io/run", "id": "l2rtui.io/run-id"}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-run",
            "namespace": namespace,
            "labels": {marks["managed-by"]: "l2rtui", marks["run"]: name, marks["id"]: uuid.uuid4().hex},
        },
        "data": {"spec.json": json.dumps(spec)},
    }


class Disturbance:
    """Creates, changes and deletes pods and runs, and marks a node."""

    def __init__(self, api: Api, namespace: str, chance: random.Random) -> None:
        self._api, self._namespace, self._chance = api, namespace, chance
        self._pods: list[str] = []
        self._runs: list[str] = []

    async def once(self) -> None:
        """Make one change."""
        what = self._chance.random()
        if what < 0.75:
            await self._pod()
        elif what < 0.9:
            await self._run()
        else:
            marks = {"labels": {"l2r.test/mark": f"m{self._chance.randrange(1000)}"}}
            await self._api.patch("Node", None, "phortx1", {"metadata": marks})

    async def _pod(self) -> None:
        api, namespace, chance = self._api, self._namespace, self._chance
        if len(self._pods) < 3 or (len(self._pods) < 8 and chance.random() < 0.4):
            name = f"p{chance.randrange(10**9)}"
            await api.create(pod(name, namespace, str(chance.randrange(8))))
            self._pods.append(name)
        elif chance.random() < 0.5:
            body = {"labels": {"l2rtui.io/seed": str(chance.randrange(1000))}}
            await api.patch("Pod", namespace, chance.choice(self._pods), {"metadata": body})
        else:
            gone = self._pods.pop(chance.randrange(len(self._pods)))
            await api.delete("Pod", namespace, gone, grace_seconds=0)

    async def _run(self) -> None:
        api, namespace, chance = self._api, self._namespace, self._chance
        if not self._runs or (len(self._runs) < 3 and chance.random() < 0.4):
            name = f"r{chance.randrange(10**9)}"
            await api.create(run(name, namespace, chance.randrange(1, 9)))
            self._runs.append(name)
        elif chance.random() < 0.6:
            name = chance.choice(self._runs)
            body = {"data": run(name, namespace, chance.randrange(1, 9))["data"]}
            await api.patch("ConfigMap", namespace, f"{name}-run", body)
        else:
            await api.delete("ConfigMap", namespace, f"{self._runs.pop()}-run")
