"""Cluster of any size whose pods change at any rate, for measurements of the screens.

It chooses the pods that change instead of comparing all of them, so that measured time is the app's, not its own.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Callable
from types import MappingProxyType

from msgspec.structs import replace

from l2rtui.backends.fake.backend import FakeBackend
from l2rtui.domain.change import Change, NodeChanged, PodChanged, RunChanged
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role

SETS = ("w0", "w1", "w2", "w3")
REPLICAS = 12
PER_RUN = 1 + len(SETS) * REPLICAS
GPUS = 8
SLOTS = 4
BATCH_SECONDS = 0.1
LONG_EVERY = 100
LONG_LINE = "0123456789" * 100_000
NAME = "crowd"


class LoadBackend(FakeBackend):
    """Pods of many runs on nodes of eight GPUs.

    Args:
        pods: Number of pods. events_per_second: Changes of single pods.
        lines_per_second: Log lines per second of all pods of the run ``crowd-0``; infinity for as many as can be
            read. Some lines are very long.
        most_lines: Number of lines of that run after which it writes no more.
        beacon: Called with a number when the first pod of the first run gets it as its exit code, to measure
            latency.
        clock: Returns seconds since the epoch; None for a clock that stands still until it is moved.
    """

    def __init__(
        self,
        pods: int,
        events_per_second: float = 0.0,
        lines_per_second: float = 0.0,
        beacon: Callable[[int], None] | None = None,
        clock: Callable[[], float] | None = time.time,
        *,
        most_lines: float = math.inf,
    ) -> None:
        super().__init__(clock, is_empty=True)
        self._rate = events_per_second
        self._lines = lines_per_second
        self._most_lines = most_lines
        self._beacon = beacon
        self._random = random.Random(1)
        self._cluster = generate_cluster(pods, self.now())

    async def snapshot(self) -> ClusterSnapshot:
        """Return the initial cluster."""
        return self._cluster

    async def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Yield everything, then changes at the given rate."""
        cluster = self._cluster
        yield (
            *(NodeChanged(node) for node in cluster.nodes.values()),
            *(RunChanged(run) for run in cluster.runs.values()),
            *(PodChanged(pod) for pod in cluster.pods.values()),
        )
        pods = list(cluster.pods.values())
        # Fractions of an event carry over, so that any rate is met on average.
        owed, number = 0.0, 0
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            owed += self._rate * BATCH_SECONDS
            changed: dict[str, Change] = {}
            while owed >= 1.0:
                owed -= 1.0
                at = self._random.randrange(1, len(pods))
                pods[at] = replace(pods[at], restarts=pods[at].restarts + 1, exit_code=1)
                changed[pods[at].uid] = PodChanged(pods[at])
            # A number that only this pod shows: the benchmark finds it in the output of the terminal.
            if self._beacon is not None:
                number += 1
                pods[0] = replace(pods[0], exit_code=10_000 + number)
                changed[pods[0].uid] = PodChanged(pods[0])
                self._beacon(10_000 + number)
            if changed:
                yield tuple(changed.values())

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Yield lines of the first run; pods of other runs write nothing."""
        if query.seam:
            yield LogLine(self.now(), pod.name, "", is_seam=True)
        written, began = 0, time.monotonic()
        # Only the first run writes: the benchmark opens its log, and other followers must not disturb.
        if query.follow and (not self._lines or pod.run != f"{NAME}-0"):
            await asyncio.Event().wait()  # without end: a pod without lines causes no wake-ups
        await asyncio.sleep(self._random.random() * BATCH_SECONDS / 2)  # so that pods do not write in step
        while query.follow:
            await asyncio.sleep(BATCH_SECONDS / 2)
            due = min((time.monotonic() - began) * self._lines, self._most_lines) / PER_RUN
            while written < due:
                written += 1
                text = f"INFO step {written} of {pod.name} reward=41.7 loss=0.031"
                is_long = due == math.inf and not written % LONG_EVERY
                yield LogLine(self.now(), pod.name, LONG_LINE if is_long else text)


def generate_cluster(pods: int, now: float) -> ClusterSnapshot:
    """Return a cluster with ``pods`` pods, one slot each."""
    nodes = {node.name: node for node in (_node(number) for number in range(-(-pods // (GPUS * SLOTS)) or 1))}
    slots = [slot for node in nodes.values() for gpu in node.gpus for slot in gpu.slot_ids()]
    runs: dict[str, RunView] = {}
    views: dict[str, PodView] = {}
    sets = (SetView("learner", Role.LEARNER, 1), *(SetView(name, Role.WORKER, REPLICAS) for name in SETS))
    for number in range(pods):
        run, position = divmod(number, PER_RUN)
        name = f"{NAME}-{run}"
        if position == 0:
            created = now - 86_400 + run
            runs[name] = RunView(name, name, NAME, f"u{run % 7}", run, "learner-workers", created, sets)
        set_number, index = divmod(position - 1, REPLICAS) if position else (-1, 0)
        set_name = SETS[set_number] if position else "learner"
        slot = slots[number]
        views[f"uid-{number}"] = PodView(
            f"uid-{number}",
            f"{name}-{set_name}-{index}",
            slot.node,
            f"u{run % 7}",
            name,
            set_name,
            Role.WORKER if position else Role.LEARNER,
            index,
            run,
            (DeviceUsage(slot.gpu, slot.slot),),
            Phase.RUNNING,
            ready=True,
            created=now - 86_400 + run,
            started=now - 86_000,
        )
    return ClusterSnapshot(MappingProxyType(nodes), MappingProxyType(views), MappingProxyType(runs), 1)


def _node(number: int) -> Node:
    name = f"node{number:03d}"
    gpus = tuple(
        Gpu(name, index, f"GPU-{number}-{index}", "NVIDIA A100", 80 * 2**30, SLOTS) for index in range(GPUS)
    )
    return Node(name, gpus, cpu_cores=96.0, memory_bytes=2**39)
