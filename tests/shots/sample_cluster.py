"""An in-memory cluster for pictures: four nodes, five runs of two users, other people's pods, and faults.

Nothing really runs: it is the demo backend with other contents, whose clock is moved by the script. Each fault
looks like a backend's report of a real one: a worker that the kernel ended for its memory, a simulator that hangs,
a learner whose updates stop, an image that cannot be pulled, a node that is cordoned.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from uuid import NAMESPACE_DNS, uuid5

from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend, demo_logs
from l2rtui.backends.fake.demo_cluster import DemoCluster
from l2rtui.backends.fake.demo_logs import HUNG
from l2rtui.domain.ledger import DeviceUsage
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import PlacementPolicy, place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, with_seeds
from runtime.base.contract import METRIC_PREFIX

GIB = 2**30
ME = "mia"
STALLED_SECONDS = 190.0
"""Time since which the stalled learner has made no update, and the simulator hangs."""
STALLED_RUN = "vision-ppo"
HUNG_POD = "circuit-sac-s2-w-1"
NODES = (("h100-01", "NVIDIA H100 80GB HBM3", 8), ("h100-02", "NVIDIA H100 80GB HBM3", 8))
NODES += (("a100-01", "NVIDIA A100-SXM4-80GB", 8), ("a100-02", "NVIDIA A100-SXM4-80GB", 8))
CORDONED = "a100-02"
LAST_WORDS_SECONDS = 2.0
"""A worker prints every two seconds: its last line gives the reason for its end."""
WORKER_RATE = demo_logs.STEPS_PER_SECOND / 4
COUNTS = ("env_steps", "updates", "policy_version")
RUNS = ((ME, "circuit-sac", 5, (0, 1, 2), 4_150.0), ("jonas", "drift-impala", 9, (), 90_000.0))
RUNS += ((ME, STALLED_RUN, 7, (), 1_300.0),)


class SampleBackend(FakeBackend):
    """The in-memory backend with the sample cluster, and logs that show its faults."""

    def __init__(self, *, has_faults: bool) -> None:
        super().__init__(is_empty=True, owner=ME)
        self.faulty: set[str] = {STALLED_RUN, HUNG_POD} if has_faults else set()
        self._ended: dict[str, float] = {}
        self._stalled_at = self.now() - STALLED_SECONDS
        self.populate(sample_cluster(self.now()))
        self.advance(5.0)
        self._present()  # the pods start
        if has_faults:
            self.run_out_of_memory("circuit-sac-s1-w-3")
            self._refuse_image("drift-impala-w-8")

    def run_out_of_memory(self, name: str) -> None:
        """Let the kernel end a pod repeatedly."""
        self._ended[name] = self.now()
        self._change(
            name,
            reason="CrashLoopBackOff",
            message="back-off 40s after OOMKilled",
            ready=False,
            restarts=4,
            exit_code=137,
        )

    def _refuse_image(self, name: str) -> None:
        message = "registry.example/drift:v12: not found"
        state = {"phase": Phase.PENDING, "reason": "ImagePullBackOff", "message": message}
        self._change(name, **state, ready=False, started=None)

    def _change(self, name: str, **change: object) -> None:
        pod = next(pod for pod in self._pods.values() if pod.name == name)
        self.put_pod(replace(pod, **change))  # type: ignore[arg-type]

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Yield the invented lines, with the faults in them."""
        async for line in super().logs(pod, query):
            ended = self._ended.get(pod.name, line.time)
            if line.time <= ended or line.is_seam:
                yield replace(line, text=self._with_fault(pod, line))
            elif line.time - ended <= LAST_WORDS_SECONDS:
                text = "ERROR out of memory: 16.0Gi of 16.0Gi in use; killed"
                yield replace(line, text=text)

    def _with_fault(self, pod: PodView, line: LogLine) -> str:
        if not line.text.startswith(METRIC_PREFIX):
            return line.text
        values, started = json.loads(line.text), pod.started or 0.0
        is_late = line.time > self._stalled_at
        if pod.role is Role.WORKER:
            is_hung = pod.name in self.faulty and is_late
            values["env_steps"] = int(((self._stalled_at if is_hung else line.time) - started) * WORKER_RATE)
            if is_hung:
                values |= {"simulator_state": "hung", "simulator_fps": 0.0, "simulator_error": HUNG}
                values["env_steps_per_second"] = 0.0
        elif pod.run in self.faulty and is_late:
            last = demo_logs.learner_values(pod, self._stalled_at - started)
            values |= {name: last[name] for name in COUNTS}
            values |= {"env_steps_per_second": 0.0, "updates_per_second": 0.0, "gpu_percent": 0}
        return json.dumps(values, separators=(",", ":"))


def sample_cluster(now: float) -> DemoCluster:
    """Return the contents."""
    nodes = tuple(_node(number, *facts) for number, facts in enumerate(NODES, 1))
    by_name = {node.name: node for node in nodes}
    ledger = ClusterSnapshot(by_name).ledger
    specs_of = [(_spec(name, workers), seeds) for _, name, workers, seeds, _ in RUNS]
    experiments = [with_seeds(spec, seeds) if seeds else (spec,) for spec, seeds in specs_of]
    specs = tuple(spec for experiment in experiments for spec in experiment)
    placement = place(specs, ledger, policy=PlacementPolicy.SPREAD)
    plans = []
    for experiment, (owner, _, _, _, age) in zip(experiments, RUNS, strict=True):
        uids = [_uid(spec.name) for spec in experiment]
        plans.append((plan_launch(experiment, placement, by_name, owner=owner, uids=uids), age))
    foreign = (
        _foreign_pod("notebook-7f9c", "h100-02", "lena", DeviceUsage(6, None, 4), now - 7_200.0),
        _foreign_pod("segment-train-0", "a100-01", "lena", DeviceUsage(7, None, 4), now - 900.0),
        _foreign_pod("render-farm-0", CORDONED, "omar", DeviceUsage(0, None, 2), now - 172_800.0),
    )
    return DemoCluster(nodes, tuple(plans), foreign)


def _node(number: int, name: str, model: str, gpus: int) -> Node:
    return Node(
        name,
        tuple(Gpu(name, index, f"GPU-{_uid(f'{index}.{name}')}", model, 80 * GIB, 4) for index in range(gpus)),
        is_schedulable=name != CORDONED,
        cpu_cores=96.0,
        memory_bytes=768 * GIB,
        cpu_used=(61.0, 44.5, 38.2, 3.1)[number - 1],
        memory_used_bytes=(310, 262, 240, 41)[number - 1] * GIB,
        message="cordoned for a driver update" if name == CORDONED else "",
        ip=f"10.20.0.{number}",
    )


def _spec(name: str, workers: int) -> RunSpec:
    command = ("l2r-runtime",)
    sets = (
        SetSpec("learner", Role.LEARNER, (*command, "learner")),
        SetSpec("w", Role.WORKER, (*command, "worker"), replicas=workers),
        SetSpec("eval", Role.EVALUATOR, (*command, "evaluator")),
    )
    return RunSpec(Kind.LEARNER_WORKERS, name, name, sets)


def _foreign_pod(name: str, node: str, owner: str, usage: DeviceUsage, created: float) -> PodView:
    return PodView(
        _uid(name),
        name,
        node,
        owner,
        devices=(usage,),
        phase=Phase.RUNNING,
        ready=True,
        created=created,
        started=created + 2.0,
    )


def _uid(name: str) -> str:
    return str(uuid5(NAMESPACE_DNS, f"{name}.sample"))
