"""Kubernetes at scale: the first snapshot beside a bare list, memory, CPU at 100 events a second, lists when idle.

    python -m tests.bench.kubernetes_scale fill --pods 10000     # once; then
    python -m tests.bench.kubernetes_scale measure

It wants a cluster of its own behind $KUBECONFIG with stand-in nodes (shared/cluster/up --no-real-node
--fake-nodes 200). The watcher and the one who changes pods are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api, connect
from l2rtui.backends.kubernetes.devices import SlotRule
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.feed import Feed
from l2rtui.domain.change import apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT

NAMESPACE = "scale"
_AT_ONCE = 24


async def fill(pods: int) -> None:
    """Create pods on all nodes in turn, each pinned to a GPU by variable, and wait until all run."""
    api = await connect()
    nodes = sorted(one["metadata"]["name"] for one in await api.list("Node", None))
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    gate = asyncio.Semaphore(_AT_ONCE)

    async def create(number: int) -> None:
        gpu = str(number // len(nodes) % 8)
        container = {
            "name": "main",
            "image": "worker:1",
            "env": [{"name": name, "value": gpu} for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        }
        spec = {
            "nodeName": nodes[number % len(nodes)],
            "containers": [container],
            "automountServiceAccountToken": False,
        }
        meta = {"name": f"p{number:05}", "namespace": NAMESPACE, "annotations": {"l2r.fake/log-rate": "0"}}
        async with gate:
            try:
                await api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
            except ApiError as error:
                if not error.is_taken:
                    raise

    for first in range(0, pods, 1000):
        await asyncio.gather(*(create(number) for number in range(first, min(first + 1000, pods))))
        print(first + 1000, file=sys.stderr)
    while True:
        waiting = await api.list("Pod", NAMESPACE, fields="status.phase!=Running")
        print(f"{len(waiting)} do not run yet", file=sys.stderr)
        if not waiting:
            break
        await asyncio.sleep(5)
    await api.close()


async def disturb(rate: float, seconds: float) -> None:
    """Change one pod after another, and print which, and when that began."""
    api = await connect()
    names = [one["metadata"]["name"] for one in await api.list("Pod", NAMESPACE)]
    tasks = []
    base = int(time.time()) % 1_000_000 * 1000  # no number comes twice
    gate = asyncio.Semaphore(_AT_ONCE)
    began = time.monotonic()

    async def change(number: int, name: str) -> None:
        async with gate:
            sent = time.monotonic()
            body = {"metadata": {"labels": {labels.SEED: str(base + number)}}}
            await api.patch("Pod", NAMESPACE, name, body)
        print(json.dumps([name, base + number, sent, time.monotonic()]), flush=True)

    for number in range(1, int(rate * seconds) + 1):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(change(number, names[number % len(names)])))
    await asyncio.gather(*tasks)
    await api.close()


async def follow(seconds: float) -> None:
    """Watch, keep the newest snapshot and its ledger, and say when each change was in it."""
    began = time.monotonic()
    api = await connect()
    feed = Feed(api, SlotRule())
    snapshot, seen, busy_since = EMPTY_SNAPSHOT, {}, 0.0
    report = {}
    async with aclosing(feed.watch()) as batches:
        async for batch in batches:
            snapshot = apply(snapshot, batch)
            _ = snapshot.ledger
            now = time.monotonic()
            if not report:
                busy_since = time.process_time()
                report = {"first": now - began, "cpu_first": busy_since, "pods": len(snapshot.pods), "at": now}
                print("READY", flush=True)
            for change in batch:
                pod = getattr(change, "pod", None)
                if pod is not None and pod.seed:
                    seen[f"{pod.name}/{pod.seed}"] = now
            if now - report["at"] > seconds:
                break
    wall = time.monotonic() - report["at"]
    report["core"] = (time.process_time() - busy_since) / wall
    report["rss_mib"] = int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    report["peak_mib"] = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    print(json.dumps({**report, "slots": len(snapshot.ledger.slots), "seen": seen}), flush=True)
    await api.close()


async def first() -> None:
    """One snapshot beside one bare list of the same kinds, by turns; prints seconds of each."""
    for turn in range(6):
        api = await connect()
        began = time.monotonic()
        if turn % 2:
            await Feed(api, SlotRule()).snapshot()
        else:
            for kind in ("nodes", "pods"):
                await api.request("GET", f"/api/v1/{kind}", timeout_seconds=120)
        print("snapshot" if turn % 2 else "bare", time.monotonic() - began, flush=True)
        await api.close()


async def lists(api: Api) -> dict[str, float]:
    """How many lists the server has served, by resource."""
    text = (await api.request("GET", "/metrics")).decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="LIST"' in line:
            resource = re.search(r'resource="([^"]*)"', line)[1]
            found[resource] = found.get(resource, 0.0) + float(line.rpartition(" ")[2])
    return found


def _child(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.kubernetes_scale", *words], stdout=subprocess.PIPE, text=True
    )


def measure(seconds: float) -> None:
    """All figures."""
    out = _child("first").communicate()[0]
    times: dict[str, list[float]] = {}
    for line in out.splitlines():
        name, value = line.split()
        times.setdefault(name, []).append(float(value))
    best = {name: min(found) for name, found in times.items()}
    ratio = best["snapshot"] / best["bare"]
    print(f"bare list {best['bare']:.2f} s, snapshot {best['snapshot']:.2f} s: {ratio:.2f} x")
    watcher = _child("follow", "--seconds", str(seconds + 4))
    assert watcher.stdout is not None
    watcher.stdout.readline()
    changes = [
        json.loads(line) for line in _child("disturb", "--seconds", str(seconds)).communicate()[0].splitlines()
    ]
    report = json.loads(watcher.communicate()[0])
    waits = sorted(
        report["seen"][f"{name}/{number}"] - sent
        for name, number, sent, _ in changes
        if f"{name}/{number}" in report["seen"]
    )
    print(
        f"{report['pods']} pods, {report['slots']} slots: first rows {report['first']:.2f} s "
        f"({report['cpu_first']:.2f} s CPU), {report['rss_mib']:.0f} MiB (peak {report['peak_mib']:.0f})"
    )
    print(
        f"{len(changes) / seconds:.0f} changes/s for {seconds:.0f} s: {100 * report['core']:.1f} % of a core; "
        f"{len(waits)} of {len(changes)} seen, request to snapshot p50 {1000 * statistics.median(waits):.0f} ms, "
        f"p95 {1000 * waits[int(0.95 * len(waits))]:.0f} ms"
    )
    asyncio.run(idle())


async def idle() -> None:
    """Lists that the server has served in a minute without us, and in one with us."""
    api = await connect()
    counted = []
    for is_watching in (False, True):
        watcher = _child("follow", "--seconds", "75") if is_watching else None
        if watcher is not None:
            await asyncio.to_thread(watcher.stdout.readline)
        before = await lists(api)
        await asyncio.sleep(60)
        after = await lists(api)
        counted.append(
            {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}
        )
        if watcher is not None:
            await asyncio.to_thread(watcher.communicate)
    await api.close()
    print(f"lists in a minute without a watcher: {counted[0]}; with one: {counted[1]}")


def main() -> None:
    """Choose what to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fill", "measure", "first", "follow", "disturb", "idle"])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0)
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.seconds)
        return
    work = {
        "fill": lambda: fill(asked.pods),
        "first": first,
        "idle": idle,
        "follow": lambda: follow(asked.seconds),
        "disturb": lambda: disturb(asked.rate, asked.seconds),
    }
    asyncio.run(work[asked.what]())


if __name__ == "__main__":
    main()
