"""The Backend over values in memory. Pods start, stop and come back as time goes by, whoever's clock that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from uuid import NAMESPACE_DNS, uuid5

from l2rtui.backends.base import (
    Capabilities,
    Captured,
    DestroyProgress,
    Leak,
    LogLine,
    LogQuery,
    Receipt,
    StepDone,
)
from l2rtui.backends.fake import output, world
from l2rtui.backends.fake.simulators import Simulators
from l2rtui.backends.fake.volumes import Volumes
from l2rtui.domain.change import Change, apply, difference
from l2rtui.domain.ledger import Claim, SlotState
from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan, ScalePlan, Step
from l2rtui.domain.preflight import Finding, Weight
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView, SetView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role, RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

EPOCH = 1_750_000_000.0
"""Where the clock of the cluster stands when nobody gives another: 15 June 2025, 15:06:40 UTC."""
START_SECONDS = 1.0
STOP_SECONDS = 0.6
JOB_SECONDS = 60.0
TICK_SECONDS = 0.1
"""How often a clock that runs by itself is looked at."""


@dataclass(slots=True)
class _Run:
    view: RunView
    spec: RunSpec


class FakeBackend:
    """An in-memory cluster; see the package for what it is not.

    Args:
        clock: Seconds since the epoch; None stands for a clock that moves by advance() alone.
        owner: Who the demo cluster takes for the person at the screen.
        slots_per_gpu: Slots of each device of the demo cluster.
        is_empty: Open without nodes, runs and pods; put_node() and put_pod() then fill it.
        step_seconds: How long each step of a launch takes.

    Attributes:
        outage: Set to a sentence, and every look at the cluster raises BackendError with it.
        broken_pods: Name of a pod → sentence with which its step of a launch fails.
        leaked: What leaks() finds.
    """

    name = "demo"
    capabilities = Capabilities()

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
        self._pods: dict[str, PodView] = {}
        self._stops: dict[str, float] = {}
        self._runs: dict[str, _Run] = {}
        self._uids = count(1)
        self._snapshot = EMPTY_SNAPSHOT
        self._step_seconds = step_seconds
        self._simulators = Simulators()
        self._volumes = Volumes(self.now)
        self.outage = ""
        self.broken_pods: dict[str, str] = {}
        self.leaked: list[Leak] = []
        self._populate(
            world.EMPTY_WORLD if is_empty else world.demo_world(owner, self.now(), slots_per_gpu),
        )

    # --- the caller's side: time and what happens on the cluster by itself ------------------------------------
    def now(self) -> float:
        """Seconds since the epoch, as the cluster counts them."""
        return (self._clock() if self._clock else EPOCH) + self._moved

    def advance(self, seconds: float) -> None:
        """Let time pass; pods that were due start, end or come back."""
        self._moved += seconds
        self._wake()

    def put_node(self, node: Node) -> None:
        """Add a node, or replace it."""
        self._nodes[node.name] = node
        self._wake()

    def put_pod(self, pod: PodView) -> None:
        """Add a pod, or replace the one with its uid: a failure, a restart, somebody else's work."""
        self._pods[pod.uid] = pod
        self._wake()

    def drop_pod(self, uid: str) -> None:
        """Let a pod vanish without a trace, as when its node dies."""
        self._pods.pop(uid, None)
        self._stops.pop(uid, None)
        self._wake()

    # --- the Backend protocol ---------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything."""
        return self._look()

    async def watch(self) -> AsyncGenerator[tuple[Change, ...], None]:
        """Give changes as they happen."""
        seen, is_first = EMPTY_SNAPSHOT, True
        while True:
            newest = self._look()
            changes = difference(seen, newest)
            if changes or is_first:
                seen, is_first = newest, False
                yield changes
            else:
                await self._next_moment()

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Say that nothing of a plan will really run."""
        names = ", ".join(run.spec.name for run in plan.runs)
        return (
            Finding(Weight.WARNING, names, "the demo cluster runs nothing: it only shows", "Use --backend local."),
        )

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone, None]:
        """Carry out a plan; slots are claimed before the first step."""
        self._claim(plan.runs)
        steps = iter(plan.steps())
        for run in plan.runs:
            self._add_run(run, self.now())
            yield await self._step(next(steps))
            for pod in run.pods:
                step = next(steps)
                if sentence := self.broken_pods.get(pod.name):
                    yield StepDone(step, sentence)
                    continue
                self._add_pod(run.spec, run.owner, pod, self.now())
                yield await self._step(step)

    async def spec(self, run: str) -> RunSpec:
        """The spec of a run with its present replicas."""
        return self._named(run).spec

    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas."""
        run = self._named(plan.run)
        run.spec = run.spec.with_replicas(plan.set_name, plan.replicas)
        run.view = replace(run.view, sets=_set_views(run.spec))
        for pod in plan.added:
            self._add_pod(run.spec, run.view.owner, pod, self.now())
        names = set(plan.removed)
        self._stop((pod for pod in self._pods.values() if pod.name in names), grace_seconds)

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; those of a run come back under a new uid."""
        for pod in pods:
            if pod.uid not in self._pods:
                raise NotFoundError(f"pod {pod.name} is gone.", "Look at the pods again.")
        self._stop(pods, grace_seconds)

    async def destroy(
        self,
        run: RunView,
        *,
        grace_seconds: float | None = None,
        purge: bool = False,  # noqa: ARG002  (the protocol's argument; nothing is kept here that could be purged)
        force: bool = False,  # noqa: ARG002  (no pod here outstays its grace)
    ) -> AsyncGenerator[DestroyProgress | Receipt, None]:
        """Remove a run; there are no results to keep or purge here."""
        held = self._runs.get(run.uid)
        if held is None:
            raise NotFoundError(f"run {run.name} is gone.", "Look at the runs again.")
        began = self.now()
        held.view = replace(held.view, is_terminating=True)
        pods = self._look().pods_of(run.name)
        self._stop(pods, grace_seconds)
        while left := self._look().pods_of(run.name):
            yield DestroyProgress((("Pod", len(left)), ("Run", 1)))
            await self._next_moment()
        del self._runs[run.uid]
        self._wake()
        yield Receipt(run.name, len(pods) + 1, (), self.now() - began)

    async def leaks(self) -> tuple[Leak, ...]:
        """What the caller has put into ``leaked``."""
        return tuple(self.leaked)

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine, None]:
        """Drawn lines of one pod."""
        last, is_seam_due = 0.0, query.seam and query.follow
        found = output.lines(self._pods.get(pod.uid, pod), query, self.now())
        while True:
            for line in found:
                last = line.time
                yield line
            if is_seam_due:
                is_seam_due = False
                yield LogLine(self.now(), pod.name, "", is_seam=True)
            if not query.follow or pod.uid not in self._pods:
                return
            await self._next_moment()
            newer = LogQuery(since=max(last, query.since or 0.0))
            found = output.lines(self._pods.get(pod.uid, pod), newer, self.now())

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Refuse: there is no process to be beside."""
        raise BackendError(
            f"{argv[0]} cannot run beside {pod.name}: the demo cluster has no processes.", "Use --backend local."
        )

    async def capture(self, pod: PodView, argv: Sequence[str]) -> Captured:
        """Answer for the simulators that the demo's workers tell of."""
        return self._simulators.answer(pod, argv)

    def volumes(self, owner: str, image: str = "") -> Volumes:  # noqa: ARG002  (no pod is needed)
        """Two invented volumes."""
        return self._volumes

    async def doctor(self) -> tuple[Finding, ...]:
        """Say what this cluster is."""
        return (Finding(Weight.OK, "demo", "an in-memory cluster of invented nodes, gone when the program ends"),)

    async def close(self) -> None:
        """Nothing is held."""

    # --- the cluster by itself --------------------------------------------------------------------------------
    def _populate(self, contents: world.World) -> None:
        self._nodes = {node.name: node for node in contents.nodes}
        for plan, age in contents.plans:
            for run in plan.runs:
                self._add_run(run, self.now() - age)
                for planned in run.pods:
                    self._add_pod(run.spec, run.owner, planned, self.now() - age)
        for stranger in contents.strangers:
            self._pods[stranger.uid] = stranger
        for uid, pod in self._pods.items():
            if pod.name == world.CRASHING:
                self._pods[uid] = replace(
                    pod,
                    phase=Phase.RUNNING,
                    reason="CrashLoopBackOff",
                    message="back-off 5m0s after OOMKilled",
                    started=pod.created + START_SECONDS,
                    restarts=5,
                    exit_code=137,
                )

    def _look(self) -> ClusterSnapshot:
        if self.outage:
            raise BackendError(self.outage)
        while self._settle():
            pass
        newest = ClusterSnapshot(
            MappingProxyType(dict(self._nodes)),
            MappingProxyType(dict(self._pods)),
            MappingProxyType({uid: run.view for uid, run in self._runs.items()}),
        )
        self._snapshot = apply(self._snapshot, difference(self._snapshot, newest))
        return self._snapshot

    def _settle(self) -> bool:
        """Bring every pod one state further if it is due; tell whether one was."""
        now, has_moved = self.now(), False
        for pod in tuple(self._pods.values()):
            if pod.is_terminating:
                if now < self._stops[pod.uid]:
                    continue
                self._end(pod)
            elif pod.phase is Phase.PENDING and not pod.reason and now >= pod.created + START_SECONDS:
                self._pods[pod.uid] = replace(
                    pod, phase=Phase.RUNNING, ready=True, started=pod.created + START_SECONDS
                )
            elif pod.role is Role.JOB and pod.phase is Phase.RUNNING and now >= pod.created + JOB_SECONDS:
                self._pods[pod.uid] = replace(pod, phase=Phase.SUCCEEDED, ready=False, exit_code=0)
            else:
                continue
            has_moved = True
        return has_moved

    def _end(self, pod: PodView) -> None:
        """Take a stopped pod away; its set replaces it while it is wanted."""
        del self._pods[pod.uid]
        at = self._stops.pop(pod.uid)
        run = next((run for run in self._runs.values() if run.view.name == pod.run), None)
        wanted = run.spec.set_named(pod.set_name) if run and not run.view.is_terminating else None
        if any(other.name == pod.name for other in self._pods.values()):
            return  # a scale has put another in its place already
        if wanted is not None and pod.index < wanted.replicas:
            fresh = PodView(
                uid=self._uid(pod.name),
                name=pod.name,
                node=pod.node,
                owner=pod.owner,
                run=pod.run,
                set_name=pod.set_name,
                role=pod.role,
                index=pod.index,
                seed=pod.seed,
                claims=pod.claims,
                created=at,
            )
            self._pods[fresh.uid] = fresh

    def _stop(self, pods: Iterable[PodView], grace_seconds: float | None) -> None:
        due = self.now() + (STOP_SECONDS if grace_seconds is None else min(STOP_SECONDS, grace_seconds))
        for pod in tuple(pods):
            self._stops.setdefault(pod.uid, due)
            self._pods[pod.uid] = replace(self._pods[pod.uid], is_terminating=True, ready=False)
        self._wake()

    def _claim(self, runs: Sequence[RunPlan]) -> None:
        ledger = self._look().ledger
        for run in runs:
            for slot in (slot for pod in run.pods for slot in pod.seat.slots):
                held = ledger.slots.get(slot)
                if held is None or held.state is not SlotState.FREE:
                    holder = f" by {held.pod}" if held and held.pod else ""
                    raise RefusedError(f"Slot {slot} is no longer free{holder}.", "Plan the launch again.")
            if self._snapshot.run_named(run.spec.name):
                raise RefusedError(f"A run named {run.spec.name} exists.", "Choose another name with --name.")

    def _add_run(self, run: RunPlan, created: float) -> None:
        spec = run.spec
        view = RunView(
            uid=run.uid,
            name=spec.name,
            experiment=spec.experiment,
            owner=run.owner,
            seed=spec.seed,
            kind=spec.kind,
            created=created,
            sets=_set_views(spec),
        )
        self._runs[view.uid] = _Run(view, spec)
        self._wake()

    def _add_pod(self, spec: RunSpec, owner: str, plan: PodPlan, created: float) -> None:
        pod = PodView(
            uid=self._uid(plan.name),
            name=plan.name,
            node=plan.node or next((node.name for node in self._nodes.values() if node.is_schedulable), ""),
            owner=owner,
            run=spec.name,
            set_name=plan.set_spec.name,
            role=plan.set_spec.role,
            index=plan.index,
            seed=spec.seed,
            claims=_claims(plan.seat.slots),
            created=created,
        )
        self._pods[pod.uid] = pod
        self._wake()

    def _named(self, name: str) -> _Run:
        run = next((run for run in self._runs.values() if run.view.name == name), None)
        if run is None:
            raise NotFoundError(f"There is no run {name}.", "`l2rtui runs` lists them.")
        return run

    def _uid(self, name: str) -> str:
        return str(uuid5(NAMESPACE_DNS, f"{next(self._uids)}.{name}.demo"))

    async def _step(self, step: Step) -> StepDone:
        await asyncio.sleep(self._step_seconds)
        return StepDone(step)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    async def _next_moment(self) -> None:
        """Wait until something may have changed: a call, advance(), or a tick of a clock that runs by itself."""
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            async with asyncio.timeout(TICK_SECONDS if self._clock else None):
                await event.wait()
        except TimeoutError:
            pass  # the clock has moved by itself
        finally:
            self._waiting.discard(event)


def _set_views(spec: RunSpec) -> tuple[SetView, ...]:
    return tuple(SetView(one.name, one.role, one.replicas) for one in spec.sets)


def _claims(slots: Sequence[SlotId]) -> tuple[Claim, ...]:
    return tuple(Claim(slot.gpu, slot.slot) for slot in slots)
