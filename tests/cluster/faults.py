"""Faults for a real API server: a proxy that cuts, freezes and refuses; and the expected state from kubectl."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from l2rtui.domain.snapshot import ClusterSnapshot


class Proxy:
    """Forwards TCP to one address, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen, on the same port as before."""
        self._flow.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Stop listening, and cut open connections."""
        if self._server is not None:
            for one in self._server.sockets:  # a connection that arrives while asyncio closes is never closed by it
                asyncio.get_running_loop().remove_reader(one.fileno())
            await asyncio.sleep(0)
            self._server.close()
            self._server = None
        self.cut()

    async def close(self) -> None:
        """Stop, with every connection."""
        self.thaw()
        await self.refuse()
        while self._writers:
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    def freeze(self) -> None:
        """Stop forwarding, but close nothing: half-open connections."""
        self._flow.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flow.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._writers |= ends
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            ends.add(far_writer)
            self._writers |= ends
            if writer.is_closing() or self._server is None:  # cut in the meantime
                return
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        except OSError:
            pass  # no server there: the caller gets a reset
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                await self._flow.wait()
                writer.write(chunk)
                await writer.drain()
            writer.transport.abort()


@asynccontextmanager
async def proxied(kubeconfig: str, folder: Any) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of a kubeconfig, and a kubeconfig that uses it."""
    config = yaml.safe_load(Path(kubeconfig).read_text())
    cluster = config["clusters"][0]["cluster"]
    host, _, port = cluster["server"].removeprefix("https://").partition(":")
    proxy = Proxy(host, int(port))
    await proxy.open()
    cluster["server"] = f"https://127.0.0.1:{proxy.port}"
    path = folder / "proxied.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    try:
        yield proxy, str(path)
    finally:
        await proxy.close()


async def kubectl_items(kind: str, kubeconfig: str, *words: str) -> list[dict[str, Any]]:
    """All objects of a kind, from kubectl."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "--kubeconfig", kubeconfig, "get", kind, *words, "-o", "json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    items: list[dict[str, Any]] = json.loads(out)["items"]
    return items


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _pod(item: dict[str, Any]) -> tuple[Any, ...]:
    meta, spec, status = item["metadata"], item["spec"], item["status"]
    ready = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
    statuses = status.get("containerStatuses", [])
    running = [one["state"]["running"] for one in statuses if "running" in one["state"]]
    env = {one["name"]: one.get("value") for one in spec["containers"][0].get("env", [])}
    owners = [one for one in meta.get("ownerReferences", []) if one.get("controller")]
    return (
        meta["name"],
        meta["namespace"],
        spec.get("nodeName") or spec.get("nodeSelector", {}).get("kubernetes.io/hostname", ""),
        status["phase"],
        "deletionTimestamp" in meta,
        bool(ready) and ready[0]["status"] == "True",
        sum(one["restartCount"] for one in statuses),
        int(meta.get("labels", {}).get("l2rtui.io/seed", 0)),
        _seconds(meta["creationTimestamp"]),
        min((_seconds(one["startedAt"]) for one in running), default=None),
        [f"{one['kind']} {one['name']}" for one in owners],
        [int(one) for one in (env.get("NVIDIA_VISIBLE_DEVICES") or "").split(",") if one],
    )


def _node(item: dict[str, Any]) -> tuple[Any, ...]:
    allocatable = item["status"]["allocatable"]
    conditions = item["status"]["conditions"]
    return (
        item["spec"].get("unschedulable", False),
        any(one["type"] == "Ready" and one["status"] == "True" for one in conditions),
        item["metadata"]["labels"],
        [(one["key"], one.get("value", ""), one["effect"]) for one in item["spec"].get("taints", [])],
        int(allocatable.get("nvidia.com/gpu") or item["status"]["capacity"].get("nvidia.com/gpu", 0)),
    )


def _run(item: dict[str, Any]) -> tuple[Any, ...]:
    meta, spec = item["metadata"], json.loads(item["data"]["spec.json"])
    return (
        meta["labels"]["l2rtui.io/run"],
        meta["namespace"],
        _seconds(meta["creationTimestamp"]),
        [(one["name"], one["role"], one["replicas"]) for one in spec["sets"]],
    )


Truth = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


async def truth(kubeconfig: str, namespace: str) -> Truth:
    """Nodes by name, pods and runs of a namespace by uid, field by field."""
    ours = ("-n", namespace, "-l", "app.kubernetes.io/managed-by=l2rtui")
    pods, nodes, runs = await asyncio.gather(
        kubectl_items("pods", kubeconfig, "-n", namespace),
        kubectl_items("nodes", kubeconfig),
        kubectl_items("configmaps", kubeconfig, *ours),
    )
    return (
        {item["metadata"]["name"]: _node(item) for item in nodes},
        {item["metadata"]["uid"]: _pod(item) for item in pods},
        {item["metadata"]["labels"]["l2rtui.io/run-id"]: _run(item) for item in runs},
    )


def shown(snapshot: ClusterSnapshot, namespace: str) -> Truth:
    """The same fields of a snapshot."""
    return (
        {
            node.name: (
                not node.is_schedulable,
                node.ready,
                dict(node.labels),
                [(one.key, one.value, one.effect) for one in node.taints],
                sum(not gpu.is_cpu for gpu in node.gpus),
            )
            for node in snapshot.nodes.values()
        },
        {
            pod.uid: (
                pod.name,
                pod.namespace,
                pod.node,
                str(pod.phase),
                pod.is_terminating,
                pod.ready,
                pod.restarts,
                pod.seed,
                pod.created,
                pod.started,
                [pod.controller] if pod.controller else [],
                [claim.gpu for claim in pod.devices],
            )
            for pod in snapshot.pods.values()
            if pod.namespace == namespace
        },
        {
            run.uid: (
                run.name,
                run.namespace,
                run.created,
                [(one.name, str(one.role), one.replicas) for one in run.sets],
            )
            for run in snapshot.runs.values()
            if run.namespace == namespace
        },
    )


def compact(etcd: str = "http://127.0.0.1:12379") -> None:
    """Compact etcd up to now, so that older revisions are dropped; through its JSON gateway."""

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{etcd}/v3/{path}", json.dumps(body).encode(), method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  (etcd of the test cluster)
            found: dict[str, Any] = json.load(answer)
        return found

    revision = ask("maintenance/status", {})["header"]["revision"]
    with contextlib.suppress(urllib.error.HTTPError):  # another process has compacted as far
        ask("kv/compaction", {"revision": revision})
