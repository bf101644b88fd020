"""Kubernetes at scale: the first snapshot against a bare list, memory, CPU at 100 events a second, lists when idle.

    python -m tests.bench.kubernetes_scale fill --pods 10000     # once; then
    python -m tests.bench.kubernetes_scale measure
    python -m tests.bench.kubernetes_scale idle --seconds 60

It needs a separate cluster behind $KUBECONFIG with 200 stand-in nodes that are not otherwise used. The watcher and
the process that changes pods are separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import statistics
import subprocess
import sys
import time
from contextlib import aclosing
from pathlib import Path

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import PAGE, Api, connect
from l2rtui.backends.kubernetes.api.decode import LineBuffer
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.domain.change import apply
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT

NAMESPACE = "scale"
_AT_ONCE = 24
_TURNS = 3


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


async def told(word: str) -> None:
    """Report that this process is ready for the next part, and wait for the parent's signal."""
    print(word, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def disturb(rate: float, seconds: float) -> None:
    """Change one pod after another, and print which, and when that started; each second one gets another owner."""
    api = await connect()
    names = [one["metadata"]["name"] for one in await api.list("Pod", NAMESPACE)]
    tasks = []
    base = int(time.time()) % 1_000_000 * 1000  # numbers are unique
    gate = asyncio.Semaphore(_AT_ONCE)
    await told("READY")
    began = time.monotonic()

    async def change(number: int, name: str) -> None:
        async with gate:
            sent = time.monotonic()
            meta: dict[str, dict[str, str]] = {"labels": {labels.SEED: str(base + number)}}
            if number % 2:  # a slot's holder has another owner: work for the ledger too
                meta["annotations"] = {labels.OWNER: f"user{number}"}
            await api.patch("Pod", NAMESPACE, name, {"metadata": meta})
        print(json.dumps([name, base + number, sent, time.monotonic()]), flush=True)

    for number in range(1, int(rate * seconds) + 1):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(change(number, names[number % len(names)])))
    await asyncio.gather(*tasks)
    await api.close()


class Following:
    """A watcher's newest snapshot, and the time when it contained each change."""

    def __init__(self, api: Api) -> None:
        self.feed = ClusterWatch(api, SlotRule())
        self.snapshot = EMPTY_SNAPSHOT
        self.seen: dict[str, float] = {}
        self.is_first = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self.feed.watch()) as batches:
            async for batch in batches:
                self.snapshot = apply(self.snapshot, batch)
                _ = self.snapshot.ledger
                now = time.monotonic()
                for change in batch:
                    pod = getattr(change, "pod", None)
                    if pod is not None and pod.seed:
                        self.seen[f"{pod.name}/{pod.seed}"] = now
                self.is_first.set()


async def follow() -> None:
    """Watch until told to stop; CPU is counted from the parent's first message to its second."""
    began = time.monotonic()
    api = await connect()
    following = Following(api)
    task = asyncio.create_task(following.run())
    await following.is_first.wait()
    report: dict[str, object] = {"first": time.monotonic() - began, "cpu_first": time.process_time()}
    report["pods"] = len(following.snapshot.pods)
    await told("READY")
    wall, busy = time.monotonic(), time.process_time()
    await told("FOLLOWING")
    report["core"] = (time.process_time() - busy) / (time.monotonic() - wall)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    status = Path("/proc/self/status").read_text()
    for name, field in (("rss_mib", "VmRSS"), ("peak_mib", "VmHWM")):
        report[name] = int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024
    report |= {"slots": len(following.snapshot.ledger.slots), "seen": following.seen}
    print(json.dumps(report), flush=True)
    await api.close()


async def first() -> None:
    """A snapshot and a bare list of the same kinds, alternating; prints wall and CPU seconds of each.

    ``look`` is one consistent look; ``watch`` the first batch of a watch. ``bare`` is the request of `kubectl get
    --raw`, ``bare pages`` the same pages as ours, ``bare cached`` the server's in-memory state.
    """
    names = ("bare", "look", "bare pages", "bare cached", "watch")
    for turn in range(len(names) * _TURNS):
        name = names[turn % len(names)]
        api = await connect()
        gc.collect()
        began, busy = time.monotonic(), time.process_time()
        if name == "look":
            _ = (await ClusterWatch(api, SlotRule()).snapshot()).ledger
        elif name == "watch":
            async with aclosing(ClusterWatch(api, SlotRule()).watch()) as batches:
                _ = apply(EMPTY_SNAPSHOT, await anext(batches)).ledger
        elif name == "bare pages":
            await asyncio.gather(*(_bare_pages(api, f"/api/v1/{kind}") for kind in ("nodes", "pods")))
        else:
            query = {"resourceVersion": "0"} if "cached" in name else {}
            paths = (f"/api/v1/{kind}" for kind in ("nodes", "pods"))
            await asyncio.gather(*(api.request("GET", one, query=query, timeout_seconds=120) for one in paths))
        took = time.monotonic() - began, time.process_time() - busy
        print(json.dumps([name, *took]), flush=True)
        await api.close()


async def _bare_pages(api: Api, path: str) -> None:
    """The pages that we request, one after the other, reading only the continue token."""
    more = ""
    while True:
        query = {"limit": str(PAGE)} | ({"continue": more} if more else {})
        body = await api.request("GET", path, query=query, timeout_seconds=120)
        found = re.search(rb'"continue":"([^"]*)"', body[:8192])
        if found is None:
            return
        more = found[1].decode()


async def bare() -> None:
    """A raw watch of the pods: the time at which the server sent each change, seen by another process."""
    api = await connect()
    version = json.loads(await api.request("GET", "/api/v1/pods", query={"limit": "1"}))["metadata"][
        "resourceVersion"
    ]
    query = {"watch": "true", "resourceVersion": version}
    seen: dict[str, float] = {}
    wanted = re.compile(rb'"name":"(p\d+)","namespace":"scale".{,2000}?"l2rtui.io/seed":"(\d+)"', re.DOTALL)

    async def read() -> None:
        lines = LineBuffer()
        async with aclosing(api.stream("/api/v1/pods", query, idle_timeout_seconds=600)) as chunks:
            async for chunk in chunks:
                now = time.monotonic()
                for line in lines.feed(chunk):
                    if (match := wanted.search(line)) is not None:
                        seen.setdefault(f"{match[1].decode()}/{match[2].decode()}", now)

    task = asyncio.create_task(read())
    await told("READY")
    await told("FOLLOWING")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print(json.dumps(seen), flush=True)
    await api.close()


async def lists(api: Api) -> dict[str, float]:
    """Number of lists that the server has served, by resource."""
    text = (await api.request("GET", "/metrics")).decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="LIST"' in line:
            resource = ".".join(re.search(rf'[{{,]{name}="([^"]*)"', line)[1] for name in ("resource", "group"))
            found[resource] = found.get(resource, 0.0) + float(line.rpartition(" ")[2])
    return found


class Child:
    """A part of the measurement in a separate process."""

    def __init__(self, *words: str) -> None:
        argv = [sys.executable, "-m", "tests.bench.kubernetes_scale", *words]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ready(self) -> None:
        """Wait until it is ready for the next part."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the child has ended early"

    def go(self) -> None:
        """Let it continue."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def rest(self) -> list[str]:
        """Its output until it ends."""
        return self._process.communicate()[0].splitlines()


def measure(seconds: float, rate: float) -> None:
    """All figures."""
    _first_figures()
    raw, watcher = Child("bare"), Child("follow")
    changer = Child("disturb", "--seconds", str(seconds), "--rate", str(rate))
    for child in (raw, watcher, changer):
        child.ready()
    raw.go()
    watcher.go()
    changer.go()
    changes = [json.loads(line) for line in changer.rest()]
    time.sleep(1)
    for child in (raw, watcher):
        child.ready()
        child.go()
    given = json.loads(raw.rest()[-1])
    report = json.loads(watcher.rest()[-1])
    seen = report["seen"]
    waits = sorted(
        seen[f"{name}/{number}"] - sent for name, number, sent, _ in changes if f"{name}/{number}" in seen
    )
    ours = sorted(seen[key] - given[key] for key in seen.keys() & given.keys())
    asked = sorted(done - sent for _, _, sent, done in changes)
    print(
        f"{report['pods']} pods, {report['slots']} slots: first rows {report['first']:.2f} s "
        f"({report['cpu_first']:.2f} s CPU with imports), "
        f"{report['rss_mib']:.0f} MiB (peak {report['peak_mib']:.0f})"
    )
    print(
        f"event given out (as a raw watch beside us gets it) to snapshot: {len(ours)} events, "
        f"p50 {1000 * _at(ours, 0.5):.0f} ms, p95 {1000 * _at(ours, 0.95):.0f} ms"
    )
    print(
        f"{len(changes) / seconds:.0f} changes/s for {seconds:.0f} s: {100 * report['core']:.1f} % of a core; "
        f"{len(waits)} of {len(changes)} seen, request to snapshot p50 {1000 * _at(waits, 0.5):.0f} ms, "
        f"p95 {1000 * _at(waits, 0.95):.0f} ms (answer to the request itself: "
        f"p50 {1000 * _at(asked, 0.5):.0f} ms, p95 {1000 * _at(asked, 0.95):.0f} ms)"
    )


def _at(ordered: list[float], part: float) -> float:
    return ordered[int(part * len(ordered))] if ordered else float("nan")


def _first_figures() -> None:
    times: dict[str, list[tuple[float, float]]] = {}
    for line in Child("first").rest():
        name, wall, busy = json.loads(line)
        times.setdefault(name, []).append((wall, busy))
    for ours, theirs in (
        ("look", "bare"),
        ("watch", "bare"),
        ("look", "bare pages"),
        ("watch", "bare pages"),
        ("watch", "bare cached"),
    ):
        (least, busy), (bare, bare_busy) = min(times[ours]), min(times[theirs])
        middle, bare_middle = (statistics.median(wall for wall, _ in times[one]) for one in (ours, theirs))
        print(
            f"{theirs} {bare:.2f} s (CPU here {bare_busy:.2f} s), {ours} {least:.2f} s (CPU here {busy:.2f} s): "
            f"{least / bare:.2f} x; medians {bare_middle:.2f} s and {middle:.2f} s: {middle / bare_middle:.2f} x"
        )


async def idle(seconds: float) -> None:
    """Lists that the server has served for a while without us, and then with us."""
    api = await connect()
    counted = []
    for is_watching in (False, True):
        watcher = Child("follow") if is_watching else None
        if watcher is not None:
            await asyncio.to_thread(watcher.ready)
        before = await lists(api)
        await asyncio.sleep(seconds)
        after = await lists(api)
        counted.append(
            {name: after[name] - before.get(name, 0) for name in after if after[name] > before.get(name, 0)}
        )
        if watcher is not None:
            watcher.go()
            watcher.ready()
            watcher.go()
            watcher.rest()
    await api.close()
    print(f"lists in {seconds:.0f} s without a watcher: {counted[0]}; with one: {counted[1]}")


def main() -> None:
    """Select a part and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["fill", "measure", "first", "follow", "bare", "disturb", "idle"])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=100.0)
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.seconds, asked.rate)
        return
    work = {
        "fill": lambda: fill(asked.pods),
        "first": first,
        "bare": bare,
        "idle": lambda: idle(asked.seconds),
        "follow": follow,
        "disturb": lambda: disturb(asked.rate, asked.seconds),
    }
    asyncio.run(work[asked.what]())


if __name__ == "__main__":
    main()
