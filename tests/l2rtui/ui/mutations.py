"""Seeded mutations of a cluster as an app sees it: nodes, pods, runs, metric records and time."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from msgspec.structs import replace

from l2rtui.domain.change import apply, difference
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.metrics import LearnerProgress, PodMetrics, RunMetrics
from l2rtui.domain.node import Gpu, GpuUse, Node
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role

GIB = 2**30
NAMES = ("a", "racing", "a-name-that-is-much-longer-than-its-column", "Ω-車", "x" * 60)
OWNERS = ("me", "u17", "somebody-with-a-long-name", "")
STATES: tuple[dict[str, object], ...] = (
    {"phase": Phase.RUNNING, "ready": True},
    {"phase": Phase.RUNNING, "reason": "CrashLoopBackOff", "message": "back-off 5m0s", "exit_code": 137},
    {"phase": Phase.PENDING},
    {"phase": Phase.PENDING, "reason": "ImagePullBackOff", "message": "no such image \x1b[31m"},
    {"phase": Phase.FAILED, "reason": "OOMKilled", "exit_code": 137},
    {"phase": Phase.SUCCEEDED, "exit_code": 0},
    {"phase": Phase.UNKNOWN, "reason": "NodeLost"},
    {"is_terminating": True},
)
SIMULATORS = ("ready", "hung", "starting", "restarting", "")


class World:
    """Values that an app shows, and the ways in which they change.

    Attributes:
        snapshot: After every mutation so far, each applied as a watch applies it.
        metrics, records: By uid of the run, and of the pod.
        now: The clock, seconds since the epoch.
    """

    def __init__(self, chance: random.Random, snapshot: ClusterSnapshot, now: float) -> None:
        self.snapshot = snapshot
        self.metrics: dict[str, RunMetrics] = {}
        self.records: dict[str, PodMetrics] = {}
        self.now = now
        self._chance = chance
        self._number = 0
        self._ways: tuple[tuple[int, Callable[[], str]], ...] = (
            (8, self._change_pod),
            (2, self._add_pod),
            (2, self._drop_pod),
            (1, self._replace_pod),
            (3, self._change_node),
            (1, self._add_node),
            (1, self._drop_node),
            (3, self._change_run),
            (1, self._add_run),
            (1, self._drop_run),
            (6, self._report_run),
            (5, self._report_pods),
            (1, self._change_sight),
            (3, self._pass_time),
        )

    def mutate(self) -> str:
        """Change something; return a description of it."""
        weights, ways = zip(*self._ways, strict=True)
        return self._chance.choices(ways, weights)[0]()

    # --- parts -------------------------------------------------------------------------------------------------
    def _show(self, **parts: object) -> None:
        newest = dataclasses.replace(self.snapshot, basis=None, **parts)  # type: ignore[arg-type]
        self.snapshot = apply(self.snapshot, difference(self.snapshot, newest))

    def _pick(self, rows: dict[str, object]) -> str | None:
        return self._chance.choice(list(rows)) if rows else None

    def _uid(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _change_pod(self) -> str:
        uid = self._pick(dict(self.snapshot.pods))
        if uid is None:
            return self._add_pod()
        calm: dict[str, object] = {"reason": "", "message": "", "ready": False, "is_terminating": False}
        change = self._chance.choice(
            (
                {**calm, **self._chance.choice(STATES)},
                {"restarts": self._chance.choice((0, 1, 9, 10, 12345))},
                {"devices": self._devices()},
                {"node": self._chance.choice([*self.snapshot.nodes, "", "gone"])},
                {"flags": self._chance.choice(((), ("pinned to GPU 3, which is not the slot's",)))},
                {"started": self.now - self._chance.choice((0, 59, 3600, 10**7))},
                {"owner": self._chance.choice(OWNERS)},
                {"pid": self._chance.choice((None, 1, 4194304))},
            )
        )
        self._show(pods={**self.snapshot.pods, uid: replace(self.snapshot.pods[uid], **change)})  # type: ignore[arg-type]
        return f"pod {self.snapshot.pods[uid].name}: {change}"

    def _devices(self) -> tuple[DeviceUsage, ...]:
        chance = self._chance
        return chance.choice(
            (
                (),
                (DeviceUsage(chance.randrange(9), chance.randrange(4)),),
                (DeviceUsage(chance.randrange(8), None, 3),),
                (DeviceUsage(None, None, 1),),
                (DeviceUsage(chance.randrange(8), None, 2, is_unsure=True),),
            )
        )

    def _add_pod(self) -> str:
        run_uid = self._pick(dict(self.snapshot.runs))
        run = self.snapshot.runs[run_uid] if run_uid and self._chance.random() < 0.8 else None
        uid = self._uid("pod")
        part = self._chance.choice(run.sets) if run and run.sets else None
        pod = PodView(
            uid,
            f"{run.name if run else self._chance.choice(NAMES)}-{uid}",
            node=self._pick(dict(self.snapshot.nodes)) or "",
            owner=run.owner if run else self._chance.choice(OWNERS),
            run=run.name if run else "",
            set_name=part.name if part else "",
            role=part.role if part else None,
            index=self._number,
            devices=self._devices(),
            created=self.now - self._chance.choice((1, 100, 10**6)),
            **self._chance.choice(STATES),  # type: ignore[arg-type]
        )
        self._show(pods={**self.snapshot.pods, uid: pod})
        return f"a new pod {pod.name}"

    def _drop_pod(self) -> str:
        uid = self._pick(dict(self.snapshot.pods))
        self._show(pods={other: pod for other, pod in self.snapshot.pods.items() if other != uid})
        self.records.pop(uid or "", None)
        return f"pod {uid} is gone"

    def _replace_pod(self) -> str:
        uid = self._pick(dict(self.snapshot.pods))
        if uid is None:
            return self._add_pod()
        new = replace(self.snapshot.pods[uid], uid=self._uid("pod"), created=self.now, phase=Phase.PENDING)
        pods = {other: pod for other, pod in self.snapshot.pods.items() if other != uid}
        self._show(pods={**pods, new.uid: new})
        self.records.pop(uid, None)
        return f"pod {new.name} is replaced"

    def _change_node(self) -> str:
        name = self._pick(dict(self.snapshot.nodes))
        if name is None:
            return self._add_node()
        node, chance = self.snapshot.nodes[name], self._chance
        uses = tuple(
            GpuUse(gpu.index, chance.choice((None, 0.0, 7.4, 100.0)), chance.randrange(80) * GIB, 80 * GIB)
            for gpu in node.gpus
            if chance.random() < 0.8
        )
        change: dict[str, object] = chance.choice(
            (
                {"is_schedulable": not node.is_schedulable, "message": chance.choice(("", "for a driver"))},
                {"ready": not node.ready},
                {"is_use_known": not node.is_use_known},
                {"gpu_use": uses},
                {"cpu_used": chance.choice((None, 0.0, 95.9)), "memory_used_bytes": chance.choice((None, GIB))},
                {"gpus": self._gpus(name)},
            )
        )
        self._show(nodes={**self.snapshot.nodes, name: replace(node, **change)})  # type: ignore[arg-type]
        return f"node {name}: {list(change)}"

    def _gpus(self, node: str) -> tuple[Gpu, ...]:
        count, slots = self._chance.choice((0, 1, 2, 8)), self._chance.choice((1, 4, 7))
        return tuple(Gpu(node, index, f"GPU-{node}-{index}", "A100", 80 * GIB, slots) for index in range(count))

    def _add_node(self) -> str:
        name = f"{self._chance.choice(('n', 'node-with-a-long-name'))}{self._uid('')}"
        node = Node(name, self._gpus(name), cpu_cores=8.0, memory_bytes=64 * GIB)
        self._show(nodes={**self.snapshot.nodes, name: node})
        return f"a new node {name}"

    def _drop_node(self) -> str:
        name = self._pick(dict(self.snapshot.nodes))
        self._show(nodes={other: node for other, node in self.snapshot.nodes.items() if other != name})
        return f"node {name} is gone"

    def _change_run(self) -> str:
        uid = self._pick(dict(self.snapshot.runs))
        if uid is None:
            return self._add_run()
        run, chance = self.snapshot.runs[uid], self._chance
        change: dict[str, object] = chance.choice(
            (
                {"is_terminating": not run.is_terminating},
                {"reason": chance.choice(("", "Degraded")), "message": "its supervisor does not answer"},
                {"silent_since": chance.choice((None, self.now - 30.0))},
                {"sets": tuple(replace(part, replicas=chance.randrange(1, 12)) for part in run.sets)},
                {"sets": (*run.sets[:3], SetView(f"w{chance.randrange(3)}", Role.WORKER, 2))},
            )
        )
        self._show(runs={**self.snapshot.runs, uid: replace(run, **change)})  # type: ignore[arg-type]
        return f"run {run.name}: {change}"

    def _add_run(self) -> str:
        uid, chance = self._uid("run"), self._chance
        sets = (SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, chance.randrange(1, 5)))
        name, kind = f"{chance.choice(NAMES)}-{uid}", chance.choice((Kind.LEARNER_WORKERS, Kind.JOB))
        created = self.now - chance.choice((0, 10**5))
        run = RunView(uid, name, name, chance.choice(OWNERS), chance.randrange(20), kind, created, sets)
        self._show(runs={**self.snapshot.runs, uid: run})
        return f"a new run {name}"

    def _drop_run(self) -> str:
        uid = self._pick(dict(self.snapshot.runs))
        if uid is None:
            return self._add_run()
        name = self.snapshot.runs[uid].name
        runs = {other: run for other, run in self.snapshot.runs.items() if other != uid}
        pods = {other: pod for other, pod in self.snapshot.pods.items() if pod.run != name}
        self._show(runs=runs, pods=pods)
        self.metrics.pop(uid, None)
        self.records = {other: record for other, record in self.records.items() if other in pods}
        return f"run {name} is gone"

    def _report_run(self) -> str:
        uid = self._pick(dict(self.snapshot.runs))
        if uid is None:
            return self._add_run()
        chance, steps = self._chance, self._chance.choice((0, 999, 10**6, 10**10))
        value = chance.choice((None, 0.0, -3.25, 99.99, 1e6, float("nan")))
        self.metrics = {
            **self.metrics,
            uid: RunMetrics(
                self.snapshot.runs[uid].name,
                steps,
                steps // 100,
                steps // 1000,
                chance.random() * 4,
                4.0,
                value,
                chance.choice((None, value)),
                env_steps_per_second=chance.choice((0.0, 9.9, 1017.0, 123456.0)),
                updates_per_second=chance.choice((0.0, 11.2)),
                workers=chance.randrange(8),
                time=self.now,
                interval_seconds=2.0,
                device=chance.choice(("", "cuda:0 NVIDIA H100 80GB HBM3")),
                gpu_percent=chance.choice((None, 38.0)),
                returns=tuple(chance.random() for _ in range(chance.randrange(30))),
                rates=tuple(chance.random() for _ in range(chance.randrange(30))),
                progress=LearnerProgress(
                    2.0, 2.0, self.now - chance.choice((0.0, 300.0)), self.now, waits_since=0.0
                ),
            ),
        }
        return f"a record of run {uid}"

    def _report_pods(self) -> str:
        pods = list(self.snapshot.pods)
        chosen = self._chance.sample(pods, min(len(pods), self._chance.randrange(1, 5)))
        chance = self._chance
        new = {
            uid: PodMetrics(
                chance.choice(("worker", "evaluator", "elastic")),
                self.now,
                chance.choice((None, 0.0, 481.5)),
                chance.choice(SIMULATORS),
                chance.choice((0, 12)),
                chance.choice((0.0, 99.3)),
                rank=chance.choice((None, None, 3)),
                step=chance.choice(("", "", "train 3/10")),
                gpu_percent=chance.choice((None, 55.0)),
                has_steps=True,
            )
            for uid in chosen
        }
        self.records = {**self.records, **new}
        return f"records of {chosen}"

    def _change_sight(self) -> str:
        if self._chance.random() < 0.5:
            self._show(problems=self._chance.choice(((), ("pods of namespace b cannot be read",))))
        else:
            self._show(silent_since=self._chance.choice((None, self.now - 20.0)))
        return f"problems {self.snapshot.problems}, silent since {self.snapshot.silent_since}"

    def _pass_time(self) -> str:
        seconds = self._chance.choice((0.5, 6.0, 20.0, 400.0, 90_000.0))
        self.now += seconds
        return f"{seconds:g} s pass"
