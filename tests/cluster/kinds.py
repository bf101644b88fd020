"""Shared parts of the tests of kinds: a volume of the real node, and an elastic job that is scaled and damaged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Cli, eventually, kubectl, kubectl_json

NODE = "phortx0"
"""The node whose pods are real containers."""
SECONDS = 240.0
"""Longest time for one change of an elastic job on a busy machine: processes start, torch is imported."""


@contextmanager
def claim(namespace: str, name: str, folder: Path) -> Iterator[Path]:
    """A claim that many pods may mount, bound to a folder of the real node, which is this machine."""
    folder.mkdir(exist_ok=True)
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o777)  # the pods run as another user
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"{name}-{namespace}"
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": str(folder)},
                "claimRef": {"namespace": namespace, "name": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    try:
        yield folder
    finally:
        kubectl("delete", "pv", volume, "--wait=false")


def pods(namespace: str, run: str, role: str = "") -> dict[str, dict[str, Any]]:
    """The pods of a run that are not being deleted, from kubectl."""
    selector = f"l2rtui.io/run={run}" + (f",l2rtui.io/role={role}" if role else "")
    items = kubectl_json("-n", namespace, "get", "pods", "-l", selector)["items"]
    return {one["metadata"]["name"]: one for one in items if "deletionTimestamp" not in one["metadata"]}


def left(namespace: str) -> list[str]:
    """Objects in a namespace other than the default ones."""
    kinds = "pods,services,jobs,replicasets,statefulsets,configmaps,secrets,leases"
    found = kubectl("-n", namespace, "get", kinds, "-o", "name").split()
    return [name for name in found if "kube-root-ca" not in name and "default-token" not in name]


@dataclass(frozen=True, slots=True)
class Look:
    """State of an elastic job: sizes, and the furthest step with its loss."""

    nodes: int
    world_size: int
    round: int
    step: int
    loss: float


def look(cli: Cli, run: str, nodes: int) -> Look | None:
    """State of the job, once this many nodes train together in the newest round; None before that."""
    done = cli.call("metrics", run, "-o", "json")
    rows = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
    told = [row for row in rows if row["round"] is not None]
    newest = max((row["round"] for row in told), default=-1)
    there = [row for row in told if row["round"] == newest and row["state"] == "training"]
    steps = [row for row in there if row["step"] is not None and row["loss"] is not None]
    if len(there) != nodes or not steps or {row["world_size"] for row in there} != {nodes}:
        return None
    furthest = max(steps, key=lambda row: row["step"])
    return Look(len(there), furthest["world_size"], newest, furthest["step"], furthest["loss"])


def snapshot(folder: Path) -> int:
    """The step of the newest snapshot in the folder of a run; 0 before the first."""
    return max((int(path.stem.split("-")[1]) for path in folder.glob("checkpoints/*.json")), default=0)


def hurt(
    cli: Cli, run: str, folder: Path, sizes: Sequence[int], say: Callable[[str], None] = lambda _: None
) -> list[tuple[str, Look]]:
    """Scale an elastic job to each size, and force-delete one of its pods there; return the state after each.

    A pod is deleted when the folder holds a newer snapshot than before, and training must continue from no older
    one.
    """
    seen: list[tuple[str, Look]] = []
    began = time.monotonic()

    def trains(what: str, size: int, after: int) -> Look:
        saved = snapshot(folder)

        def further() -> Look | None:
            now = look(cli, run, size)
            return now if now is not None and now.round > after and now.step > saved else None

        found: Look = eventually(what, further, SECONDS)
        seen.append((what, found))
        say(
            f"{time.monotonic() - began:5.0f} s  {what:32} {found.nodes} nodes  round {found.round:2}  "
            f"step {found.step:5}  loss {found.loss:.4f}"
        )
        return found

    now = -1
    for number, size in enumerate(sizes):
        if number:
            cli.run("scale", f"{run}/nodes", str(size))
        saved = snapshot(folder)
        now = trains(f"{size} nodes train", size, now).round
        eventually("a snapshot of this size", lambda before=saved: snapshot(folder) > before, SECONDS)
        names = set(pods(cli.namespace, run, "worker"))
        victim = min(name for name, one in pods(cli.namespace, run, "worker").items() if _runs(one))
        kubectl("-n", cli.namespace, "delete", "pod", victim, "--force", "--grace-period=0")
        now = trains(f"after {victim[-5:]} was deleted", size, now).round
        assert set(pods(cli.namespace, run, "worker")) - names, "its place is taken again"
    return seen


def _runs(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running")
