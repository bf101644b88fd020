"""Backend over values in memory. Pods start, stop and restart as the given clock advances."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType
from uuid import NAMESPACE_DNS, uuid5

from msgspec.structs import replace

from l2rtui.backends.base import AttachedProcess, Inspector
from l2rtui.backends.common.refusals import SlotTakenError, has_no_input, refuse_taken_slots, run_exists
from l2rtui.backends.common.reservations import MemoryReservations
from l2rtui.backends.fake import demo_cluster, demo_logs
from l2rtui.backends.fake.demo_inspector import DemoInspector
from l2rtui.backends.fake.demo_logs import DemoSimulators
from l2rtui.backends.fake.demo_volumes import DemoVolumes
from l2rtui.domain.change import Change, apply, difference
from l2rtui.domain.history import spec_id
from l2rtui.domain.log import CommandOutput, LogLine, LogQuery
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan, PlanStep, PodPlan, RunPlan, ScalePlan, StepDone, planned_view
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.receipt import DestroyProgress, Leak, LeakReport, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import BackendError, NotFoundError

EPOCH = 1_750_000_000.0
"""Start of the default clock, seconds since the epoch: 15 June 2025, 15:06:40 UTC."""
START_SECONDS = 1.0
"""Time from the creation of a pod to its start; shorter than on any cluster, as tests wait for it."""
STOP_SECONDS = 0.6
JOB_SECONDS = 60.0
TICK_SECONDS = 0.1
"""Polling period with a real clock."""


@dataclass(slots=True)
class _Run:
    view: RunView
    spec: RunSpec
    plans: dict[str, PodPlan]


class FakeBackend:
    """An in-memory cluster; see the package docstring for its limits.

    Args:
        clock: Returns seconds since the epoch; None for a clock that only advance() moves.
        owner: Name of the user; two of the runs of the demo cluster are theirs.
        slots_per_gpu: Slots of each device of the demo cluster.
        is_empty: Open without nodes, runs and pods; put_node() and put_pod() then fill it.
        step_seconds: Duration of each step of a launch.

    Attributes:
        silent_since: Time since which the cluster pretends not to respond; shown from the next change on.
        outage: If set to a sentence, every read of the cluster raises BackendError with it.
        broken_pods: Name of a pod → sentence with which its launch step fails.
        leaked: Result of leaks().
    """

    name = "demo"
    location = contexts = renderer = secrets = adopt = records = results = kept_results = queue = None
    history_to = ""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        owner: str = "me",
        slots_per_gpu: int = 4,
        is_empty: bool = False,
        step_seconds: float = 0.0,
    ) -> None:
        self._clock = clock
        self._moved = 0.0
        self._waiting: set[asyncio.Event] = set()
        self._nodes: dict[str, Node] = {}
        self._demo_nodes: frozenset[str] = frozenset()
        self._pods: dict[str, PodView] = {}
        self._stops: dict[str, float] = {}
        self._runs: dict[str, _Run] = {}
        self._launching: list[LaunchPlan] = []
        self._uids = count(1)
        self._addresses = count(2)
        self._snapshot = EMPTY_SNAPSHOT
        self._step_seconds = step_seconds
        self._simulators = DemoSimulators()
        self.volumes = DemoVolumes(self.now)
        self.reservations = MemoryReservations(self._wake, self.snapshot, owner, self.now)
        self._history = DemoInspector(self.snapshot)
        self.inspector: Inspector = self._history
        self.outage = ""
        self.silent_since: float | None = None
        self.broken_pods: dict[str, str] = {}
        self.leaked: list[Leak] = []
        self.populate(
            demo_cluster.EMPTY if is_empty else demo_cluster.demo_cluster(owner, self.now(), slots_per_gpu)
        )

    # --- for the caller: the clock, and events of the cluster itself ---------------------------------------------
    def now(self) -> float:
        """Return the time of the cluster, seconds since the epoch."""
        return (self._clock() if self._clock else EPOCH) + self._moved

    def advance(self, seconds: float) -> None:
        """Move the clock; pods that are due start, end or restart."""
        self._moved += seconds
        self._wake()

    def put_node(self, node: Node) -> None:
        """Add a node, or replace it."""
        self._nodes[node.name] = node
        self._demo_nodes -= {node.name}
        self._wake()

    def put_pod(self, pod: PodView) -> None:
        """Add a pod, or replace the pod with its uid: a failure, a restart, another user's pod."""
        self._pods[pod.uid] = pod
        self._wake()

    def drop_pod(self, uid: str) -> None:
        """Remove a pod immediately, as when its node dies."""
        self._pods.pop(uid, None)
        self._stops.pop(uid, None)
        self._wake()

    def drop_node(self, name: str) -> None:
        """Remove a node; its pods stay."""
        self._nodes.pop(name, None)
        self._wake()

    def put_runs(self, plan: LaunchPlan, age_seconds: float = 0.0) -> None:
        """Add the runs and pods of a plan, as if they had been launched so long ago."""
        created = self.now() - age_seconds
        for run in plan.runs:
            record = self._add_run(run, created)
            for planned in run.pods:
                self._add_pod(record, planned, created)
        self._wake()

    def populate(self, contents: demo_cluster.DemoCluster) -> None:
        """Replace the nodes, and add the runs and pods of these contents."""
        self._nodes = {node.name: node for node in contents.nodes}
        self._demo_nodes = frozenset(self._nodes)
        for plan, age in contents.plans:
            self.put_runs(plan, age)
        for foreign_pod in contents.foreign_pods:
            self._pods[foreign_pod.uid] = foreign_pod
        for uid, pod in self._pods.items():
            if pod.name == demo_cluster.CRASHING:
                self._pods[uid] = replace(
                    pod,
                    phase=Phase.RUNNING,
                    reason=demo_logs.CRASH_LOOP,
                    message="back-off 5m0s after OOMKilled",
                    started=pod.created + START_SECONDS,
                    restarts=5,
                    exit_code=137,
                )

    # --- the Backend protocol ---------------------------------------------------------------------------------
    def acts_on(self, namespaces: Collection[str] = ()) -> str:  # noqa: ARG002  (there are none here)
        """Return the place of a change, for its confirmation."""
        return "on the demo cluster"

    async def snapshot(self) -> ClusterSnapshot:
        """Return the current state of the cluster."""
        return self._present()

    async def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Yield changes as they happen."""
        latest, is_first = EMPTY_SNAPSHOT, True
        while True:
            newest = self._present()
            changes = difference(latest, newest)
            if changes or is_first:
                latest, is_first = newest, False
                yield changes
            else:
                await self._wait_for_change()

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Return a warning that nothing of a plan will really run."""
        names = ", ".join(run.spec.name for run in plan.runs)
        sentence = "demo: nothing is launched"
        return (Finding(Severity.WARNING, names, sentence, "Use --backend local."),)

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        """Execute a plan; slots and names are checked before the first step."""
        self._refuse_taken(plan)
        self._launching.append(plan)
        try:
            async for done in self._carry_out(plan):
                yield done
        finally:
            self._launching.remove(plan)

    async def _carry_out(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        steps = iter(plan.steps())
        for run in plan.runs:
            record = self._add_run(run, self.now())
            yield await self._step(next(steps))
            for pod in run.pods:
                step = next(steps)
                # A failed step creates no pod.
                if sentence := self.broken_pods.get(pod.name):
                    yield StepDone(step, sentence)
                    continue
                self._add_pod(record, pod, self.now())
                yield await self._step(step)

    async def spec(self, run: str) -> RunSpec:
        """Return the spec of a run with the current numbers of replicas."""
        return self._named(run).spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas."""
        run = self._named(plan.run)
        run.spec = run.spec.with_replicas(plan.set_name, plan.replicas)
        run.view = replace(run.view, sets=_set_views(run.spec))
        for pod in plan.added:
            self._add_pod(run, pod, self.now())
        names = set(plan.removed)
        self._stop((pod for pod in self._pods.values() if pod.name in names), grace_seconds)

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; pods of a run are replaced under a new uid."""
        for pod in pods:
            if pod.uid not in self._pods:
                raise NotFoundError(f"pod {pod.name} is gone.", "Look at the pods again.")
        self._stop(pods, grace_seconds)

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,
        purge: bool = False,  # noqa: ARG002  (there are no results to purge)
        force: bool = False,  # noqa: ARG002  (every pod ends within its grace period)
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        """Remove a run; it has no results."""
        record = self._runs.get(run.uid)
        if record is None:
            raise NotFoundError(f"run {run.name} is gone.", "Look at the runs again.")
        began = self.now()
        record.view = replace(record.view, is_terminating=True)
        pods = self._present().pods_of(run.name)
        self._stop(pods, grace_seconds)
        while left := self._present().pods_of(run.name):
            yield DestroyProgress((("Pod", len(left)), ("Run", 1)))
            await self._wait_for_change()
        del self._runs[run.uid]
        self._wake()
        yield Receipt(run.name, len(pods) + 1, (), self.now() - began)

    async def leaks(self) -> LeakReport:
        """Return ``leaked``, which the caller fills."""
        return LeakReport(tuple(self.leaked))

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Yield invented lines of one pod."""
        last, is_seam_due = 0.0, query.seam and query.follow
        lines = self._log_lines(pod, query)
        while True:
            for line in lines:
                last = line.time
                yield line
            if is_seam_due:
                is_seam_due = False
                yield LogLine(self.now(), pod.name, "", is_seam=True)
            if not query.follow or pod.uid not in self._pods:
                return
            await self._wait_for_change(demo_logs.seconds_to_next(self._pods[pod.uid], self.now()))
            # One line later than the last: `since` is exclusive, so nothing is repeated.
            newer = LogQuery(since=max(last, query.since or 0.0))
            lines = self._log_lines(pod, newer)

    def _log_lines(self, pod: PodView, query: LogQuery) -> list[LogLine]:
        peers: list[str] = []
        if pod.role is Role.LEARNER:
            peers = sorted(row.name for row in self._pods.values() if row.run == pod.run and row.ready)
            peers = [name for name in peers if name != pod.name]
        return demo_logs.lines(self._pods.get(pod.uid, pod), query, self.now(), peers)

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Refuse: there are no processes."""
        sentence = f"{argv[0]} cannot run in {pod.name}: the demo cluster has no processes."
        raise BackendError(sentence, "Use --backend local.")

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Refuse: there are no processes."""
        raise has_no_input(pod.name)
        yield  # type: ignore[unreachable]  # makes it a generator

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run the simulator commands of the demo's workers."""
        return self._simulators.run_command(pod, argv)

    async def denied(self) -> Mapping[str, str]:
        """Permit everything."""
        return {}

    async def doctor(self) -> tuple[Finding, ...]:
        """Return one finding that describes this cluster."""
        return (Finding(Severity.OK, "demo", "an in-memory cluster of invented nodes, gone when the program ends"),)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    # --- the cluster itself -----------------------------------------------------------------------------------
    def _present(self) -> ClusterSnapshot:
        if self.outage:
            raise BackendError(self.outage)
        # Until nothing is due: after a large step of the clock a pod may end, be replaced, and start.
        while self._advance_pods():
            pass
        newest = ClusterSnapshot(
            MappingProxyType({name: self._with_load(node) for name, node in self._nodes.items()}),
            MappingProxyType(dict(self._pods)),
            MappingProxyType({uid: run.view for uid, run in self._runs.items()}),
            silent_since=self.silent_since,
        )
        # Through the differences, so that unchanged rows stay the same objects, as with a real watch.
        changes = difference(self._snapshot, newest)
        self._history.note(self._snapshot, changes, self.now())
        self._snapshot = apply(self._snapshot, changes)
        return self._snapshot

    def _with_load(self, node: Node) -> Node:
        # Nodes that a caller has added stay as they are.
        if node.name in self._demo_nodes:
            node = demo_cluster.with_gpu_use(node, self._pods.values())
        return self.reservations.applied_to(node)

    def _advance_pods(self) -> bool:
        """Move every pod that is due to its next state; return True if there was one."""
        now, has_moved = self.now(), False
        for pod in tuple(self._pods.values()):
            if pod.is_terminating:
                if now < self._stops[pod.uid]:
                    continue
                self._end(pod)
            elif pod.phase is Phase.PENDING and not pod.reason and now >= pod.created + START_SECONDS:
                ip = f"10.21.{next(self._addresses) % 256}.{pod.index + 2}"
                self._pods[pod.uid] = replace(
                    pod, phase=Phase.RUNNING, ready=True, started=pod.created + START_SECONDS, ip=ip
                )
            elif pod.role is Role.JOB and pod.phase is Phase.RUNNING and now >= pod.created + JOB_SECONDS:
                self._pods[pod.uid] = replace(pod, phase=Phase.SUCCEEDED, ready=False, exit_code=0)
            else:
                continue
            has_moved = True
        return has_moved

    def _end(self, pod: PodView) -> None:
        """Remove a stopped pod, and replace it if its set still has this index."""
        del self._pods[pod.uid]
        at = self._stops.pop(pod.uid)
        run = next((run for run in self._runs.values() if run.view.name == pod.run), None)
        if run is None or run.view.is_terminating or any(other.name == pod.name for other in self._pods.values()):
            return  # a scale may already have made another pod of this name
        set_spec, plan = run.spec.set_named(pod.set_name), run.plans.get(pod.name)
        if set_spec is not None and plan is not None and pod.index < set_spec.replicas:
            self._add_pod(run, plan, at)

    def _stop(self, pods: Iterable[PodView], grace_seconds: float | None) -> None:
        due = self.now() + (STOP_SECONDS if grace_seconds is None else min(STOP_SECONDS, grace_seconds))
        for pod in tuple(pods):
            # setdefault: a second kill does not postpone the first.
            self._stops.setdefault(pod.uid, due)
            self._pods[pod.uid] = replace(self._pods[pod.uid], is_terminating=True, ready=False)
        self._wake()

    def _refuse_taken(self, plan: LaunchPlan) -> None:
        snapshot = self._present()
        claimed = {slot for other in self._launching for slot in other.slots}
        if refused := claimed.intersection(plan.slots).difference(plan.overcommitted):
            name = plan.runs[0].spec.name
            raise SlotTakenError(f"Slot {min(refused)} was claimed just now, so {name} cannot sit there.", refused)
        refuse_taken_slots((pod for run in plan.runs for pod in run.pods), snapshot, plan.overcommitted)
        for run in plan.runs:
            if snapshot.run_named(run.spec.name):
                raise run_exists(run.spec.name)

    def _add_run(self, run: RunPlan, created: float) -> _Run:
        spec = run.spec
        sets = _set_views(spec)
        about = (spec.name, spec.experiment, run.owner, spec.seed, spec.kind, created, sets)
        view = RunView(run.uid, *about, trial=spec.trial, spec_id=spec_id(spec))
        record = self._runs[view.uid] = _Run(view, spec, {})
        self._wake()
        return record

    def _add_pod(self, run: _Run, plan: PodPlan, created: float) -> None:
        run.plans[plan.name] = plan
        uid, (name, owner, seed) = self._uid(plan.name), (run.spec.name, run.view.owner, run.spec.seed)
        node = next((node.name for node in self._nodes.values() if node.is_schedulable), "")
        self._pods[uid] = planned_view(plan, name, owner, seed, uid=uid, node=node, created=created)
        self._wake()

    def _named(self, name: str) -> _Run:
        run = next((run for run in self._runs.values() if run.view.name == name), None)
        if run is None:
            raise NotFoundError(f"There is no run {name}.", "`l2rtui runs` lists them.")
        return run

    def _uid(self, name: str) -> str:
        return str(uuid5(NAMESPACE_DNS, f"{next(self._uids)}.{name}.demo"))

    async def _step(self, step: PlanStep) -> StepDone:
        await asyncio.sleep(self._step_seconds)
        return StepDone(step)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def _wait_for_change(self, seconds: float = TICK_SECONDS) -> None:
        """Wait until the state may have changed: a call, advance(), or these seconds of a real clock."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(max(TICK_SECONDS, seconds) if self._clock else None):
                await event.wait()
        except TimeoutError:
            pass  # a tick: the clock has moved
        finally:
            self._waiting.discard(event)


def _set_views(spec: RunSpec) -> tuple[SetView, ...]:
    return tuple(SetView(part.name, part.role, part.replicas, part.slots > 0) for part in spec.sets)
