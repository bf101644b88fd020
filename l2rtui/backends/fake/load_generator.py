"""A cluster of any size whose pods change at any rate: what screens are measured with, never a proof.

It is told which pods change instead of looking at all of them, so that what is measured is the app.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from types import MappingProxyType

from l2rtui.backends.base import LogLine, LogQuery
from l2rtui.backends.fake.backend import FakeBackend
from l2rtui.domain.change import Change, NodeChanged, PodChanged, RunChanged
from l2rtui.domain.ledger import Claim
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
NAME = "crowd"


class CrowdBackend(FakeBackend):
    """Pods of many runs on nodes of eight GPUs.

    Args:
        pods: How many. events_per_second: changes of single pods.
        lines_per_second: What every pod of the run ``crowd-0`` together write.
        beacon: Called with a number whenever the first pod of the first run shows it as its exit code.
    """

    def __init__(
        self,
        pods: int,
        events_per_second: float = 0.0,
        lines_per_second: float = 0.0,
        beacon: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(time.time, is_empty=True)
        self._rate = events_per_second
        self._lines = lines_per_second
        self._beacon = beacon
        self._chance = random.Random(1)  # noqa: S311  (which pod changes is no secret)
        self._crowd = crowd(pods, self.now())

    async def snapshot(self) -> ClusterSnapshot:
        """Everything."""
        return self._crowd

    async def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Everything, then changes at the rate that was asked for."""
        crowd = self._crowd
        yield (
            *(NodeChanged(node) for node in crowd.nodes.values()),
            *(RunChanged(run) for run in crowd.runs.values()),
            *(PodChanged(pod) for pod in crowd.pods.values()),
        )
        pods = list(crowd.pods.values())
        owed, number = 0.0, 0
        while True:
            await asyncio.sleep(BATCH_SECONDS)
            owed += self._rate * BATCH_SECONDS
            changed: dict[str, Change] = {}
            while owed >= 1.0:
                owed -= 1.0
                at = self._chance.randrange(1, len(pods))
                pods[at] = replace(pods[at], restarts=pods[at].restarts + 1, exit_code=1)
                changed[pods[at].uid] = PodChanged(pods[at])
            if self._beacon is not None:
                number += 1
                pods[0] = replace(pods[0], exit_code=10_000 + number)
                changed[pods[0].uid] = PodChanged(pods[0])
                self._beacon(10_000 + number)
            if changed:
                yield tuple(changed.values())

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Lines of the first run; those of others write nothing."""
        if query.seam:
            yield LogLine(self.now(), pod.name, "", is_seam=True)
        written, began = 0, time.monotonic()
        if query.follow and (not self._lines or pod.run != f"{NAME}-0"):
            await asyncio.Event().wait()  # writes nothing, and wakes nobody
        await asyncio.sleep(self._chance.random() * BATCH_SECONDS / 2)  # pods do not write in step
        while query.follow:
            await asyncio.sleep(BATCH_SECONDS / 2)
            due = (time.monotonic() - began) * self._lines / PER_RUN
            while written < due:
                written += 1
                yield LogLine(self.now(), pod.name, f"INFO step {written} of {pod.name} reward=41.7 loss=0.031")


def crowd(pods: int, now: float) -> ClusterSnapshot:
    """The cluster at its start."""
    nodes = {node.name: node for node in (_node(number) for number in range(-(-pods // (GPUS * SLOTS)) or 1))}
    slots = [slot for node in nodes.values() for gpu in node.gpus for slot in gpu.slot_ids()]
    runs: dict[str, RunView] = {}
    views: dict[str, PodView] = {}
    sets = (SetView("learner", Role.LEARNER, 1), *(SetView(name, Role.WORKER, REPLICAS) for name in SETS))
    for number in range(pods):
        run, place = divmod(number, PER_RUN)
        name = f"{NAME}-{run}"
        if place == 0:
            created = now - 86_400 + run
            runs[name] = RunView(name, name, NAME, f"u{run % 7}", run, "learner-workers", created, sets)
        set_number, index = divmod(place - 1, REPLICAS) if place else (-1, 0)
        set_name = SETS[set_number] if place else "learner"
        slot = slots[number]
        views[f"uid-{number}"] = PodView(
            f"uid-{number}",
            f"{name}-{set_name}-{index}",
            slot.node,
            f"u{run % 7}",
            name,
            set_name,
            Role.WORKER if place else Role.LEARNER,
            index,
            run,
            (Claim(slot.gpu, slot.slot),),
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
