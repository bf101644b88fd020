"""Launch, scale, kill and destroy: plan first, act second, and roll back incomplete work.

The app and the commands share these functions, so they show and do the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.base import Backend
from l2rtui.backends.common import workdirs
from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.config import user_name
from l2rtui.domain.change import apply
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Pin, PlacementPolicy, Seat, bound_to_cpu, place
from l2rtui.domain.plan import (
    NO_PLACES,
    LaunchPlan,
    PlannedPlaces,
    ScalePlan,
    StepDone,
    plan_launch,
    plan_pod,
)
from l2rtui.domain.preflight import Finding, cluster_fields, preflight, refusals
from l2rtui.domain.receipt import DestroyProgress, Receipt
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView
from l2rtui.domain.status import Level, Phase
from l2rtui.domain.workload import RunSpec, pod_name, with_binding, without_shared_pods
from l2rtui.errors import L2RError, LaunchError, LeftBehindError, NotFoundError, RefusedError
from l2rtui.services.history import journal
from l2rtui.services.history.recorder import DestroyRecording, LaunchRecording
from l2rtui.services.spec.spec_file import LaunchRequest
from l2rtui.services.sweeps import halving_findings, watch_sweeps
from l2rtui.services.training_preflight import check_training

_log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.5
"""Time that a pod must stay Running to count."""
_TAKE_BACK_GRACE_SECONDS = 2.0


class Placing(Struct, frozen=True):
    """Choice of slots for a plan, so that its runs can be placed again.

    Attributes:
        excluded: Slots that other launches took before an earlier plan of these runs could.
    """

    pins: tuple[Pin, ...] = ()
    policy: PlacementPolicy = PlacementPolicy.PACK
    overcommit: bool = False
    excluded: frozenset[SlotId] = frozenset()


class CheckedPlan(Struct, frozen=True):
    """A plan and the findings of preflight.

    Attributes:
        placing: Pins and policy with which it was placed.
        source: Spec file of the plan, for the history; empty without one.
        notes: Findings from the import of a file.
    """

    plan: LaunchPlan
    findings: tuple[Finding, ...]
    source: str = ""
    placing: Placing = Placing()
    notes: tuple[Finding, ...] = ()


async def prepare(
    backend: Backend,
    wish: LaunchRequest,
    *,
    seeds: tuple[int, ...] = (),
    pins: tuple[Pin, ...] | None = None,
    policy: PlacementPolicy | None = None,
    overcommit: bool = False,
    wave: int = 0,
    binding: Binding | None = None,
) -> CheckedPlan:
    """Place the runs of a request on free slots and check the plan. Nothing is created.

    Args:
        seeds: One run for each, of each trial of a sweep; empty means the seeds of the sweep, or the spec's own.
        pins, policy: Replace the spec's own if given.
        overcommit, wave, binding: As in prepare_runs().
    """
    specs = wish.runs(seeds)
    return await prepare_runs(
        backend,
        specs,
        pins=wish.pins if pins is None else pins,
        policy=wish.policy if policy is None else policy,
        overcommit=overcommit,
        wave=wave,
        binding=binding,
        notes=(*wish.notes, *halving_findings(backend, specs)),
        source=wish.source,
    )


async def prepare_runs(
    backend: Backend,
    specs: Sequence[RunSpec],
    *,
    pins: tuple[Pin, ...] = (),
    policy: PlacementPolicy = PlacementPolicy.PACK,
    overcommit: bool = False,
    wave: int = 0,
    binding: Binding | None = None,
    notes: tuple[Finding, ...] = (),
    uids: Sequence[str] = (),
    source: str = "",
    excluded: frozenset[SlotId] = frozenset(),
) -> CheckedPlan:
    """Place runs on free slots and check the plan. Nothing is created.

    Args:
        overcommit: Use occupied slots if no slot is free; several pods then share one.
        wave: Number of pods started before the next are; 0 starts all together.
        binding: How pods get their GPU; replaces the binding of the specs.
        notes: Findings of the import of a file, shown with the plan.
        uids: Id of each run, if chosen before; empty makes new ones.
        source: Spec file, for the history.
        excluded: As in ``Placing``.
    """
    snapshot = await backend.snapshot()
    ledger = snapshot.ledger.without(excluded) if excluded else snapshot.ledger
    if binding is not None:
        specs = [with_binding(spec, binding) for spec in specs]
    if backend.renderer is None:  # no device plugin: workers share a GPU by its slots
        specs = [without_shared_pods(spec) for spec in specs]
    # Written into the launched spec: a later scale, and every reader of the run, sees the mode that it got.
    specs = bound_to_cpu(specs, ledger, pins, overcommit=overcommit)
    nodes = snapshot.nodes.values()
    placement = place(specs, ledger, policy=policy, pins=pins, overcommit=overcommit, nodes=nodes)
    # Made here, not by a backend: a failed launch is rolled back by exactly these ids.
    uids = uids or [uuid.uuid4().hex for _ in specs]
    plan = plan_launch(specs, placement, snapshot.nodes, owner=user_name(), uids=uids)
    plan = replace(plan, wave=wave, pins=pins)
    if backend.renderer is not None:
        plan = await backend.renderer.planned(plan)
    facts = dict.fromkeys((*notes, *await checks_of(backend, plan, snapshot)))
    placing = Placing(pins, policy, overcommit, excluded)
    return CheckedPlan(plan, preflight(plan, snapshot, facts), source, placing, notes)


async def checks_of(backend: Backend, plan: LaunchPlan, snapshot: ClusterSnapshot) -> tuple[Finding, ...]:
    """Return the findings about a plan that need more than the plan and the snapshot: ignored fields, own code,
    training, and the checks of the backend.
    """
    specs = [run.spec for run in plan.runs]
    ignored = () if backend.renderer is not None else cluster_fields(specs)
    own_code = await asyncio.to_thread(lambda: tuple(workdirs.findings_of(specs)))
    return (*ignored, *own_code, *check_training(plan, snapshot), *await backend.check(plan))


async def replan(backend: Backend, prepared: CheckedPlan, error: SlotTakenError) -> CheckedPlan:
    """Place the runs of a plan on other slots, since another launch was faster. Nothing is created.

    For launches whose places the user has neither chosen nor confirmed. Each call excludes at least one slot more
    than the last, so the number of attempts is limited by the number of slots.

    Raises:
        SlotTakenError: the given one, if the user named exact slots.
    """
    placing, plan = prepared.placing, prepared.plan
    # Excluded even with a new snapshot: on a cluster the pods of a launch appear some time after its claim.
    excluded = placing.excluded.union(error.slots)
    if excluded == placing.excluded or any(pin.slot is not None for pin in placing.pins):
        raise error
    return await prepare_runs(
        backend,
        [run.spec for run in plan.runs],
        pins=placing.pins,
        policy=placing.policy,
        overcommit=placing.overcommit,
        wave=plan.wave,
        uids=[run.uid for run in plan.runs],
        source=prepared.source,
        excluded=excluded,
    )


async def launch(backend: Backend, prepared: CheckedPlan) -> AsyncGenerator[StepDone, None]:
    """Execute a plan and yield each step.

    If a step fails, or the caller cancels (Ctrl-C), everything that this launch created is destroyed again.

    Raises:
        RefusedError: preflight refuses; nothing is left.
        SlotTakenError: another launch took a slot first; nothing is left.
        LaunchError: a step failed, and the launch was rolled back.
        LeftBehindError: a step failed, and the roll-back left objects; names them.
    """
    if refused := refusals(prepared.findings):
        reasons = "; ".join(finding.sentence for finding in refused)
        raise RefusedError(f"The launch is refused: {reasons}.", refused[0].hint)
    plan = prepared.plan
    recording = LaunchRecording(backend, plan, prepared.source)
    try:
        await watch_sweeps(backend, [(run.uid, run.spec) for run in plan.runs])
        async with aclosing(backend.launch(plan)) as steps:
            async for done in steps:
                yield done
                if done.error:
                    raise LaunchError(f"{done.step.kind} {done.step.name} was not started: {done.error}.")
    except L2RError as error:
        receipts = await take_back(backend, plan)
        await recording.failed(error)
        if left := [receipt.sentence for receipt in receipts if receipt.left]:
            raise LeftBehindError(f"{error.message} {'. '.join(left)}.", "Try `l2rtui destroy` again.") from error
        if isinstance(error, RefusedError):
            raise
        back = "The launch was rolled back; nothing is left." if receipts else "Nothing was created."
        raise LaunchError(f"{error.message} {back}", error.hint) from error
    except (asyncio.CancelledError, GeneratorExit):
        # Shielded: a second Ctrl-C must not leave half a roll-back behind.
        await asyncio.shield(asyncio.ensure_future(take_back(backend, plan)))
        await asyncio.shield(asyncio.ensure_future(recording.interrupted()))
        raise
    await recording.done()


async def take_back(
    backend: Backend, plan: LaunchPlan, destroy_run: Callable[..., AsyncGenerator[object, None]] | None = None
) -> list[Receipt]:
    """Roll a launch back: destroy its runs, found by their unique ids.

    Args:
        destroy_run: ``destroy`` of this module, bound to the backend, for a launch that was complete and is
            journalled; None for the backend's own.
    """
    snapshot = await backend.snapshot()
    receipts: list[Receipt] = []
    for run in plan.runs:
        # By uid, not by name: a run of the same name may belong to another user.
        view = snapshot.runs.get(run.uid)
        if view is not None:
            items = (destroy_run or backend.destroy)(view, grace_seconds=_TAKE_BACK_GRACE_SECONDS, purge=True)
            receipts.extend([item async for item in items if isinstance(item, Receipt)])
    return receipts


async def wait_running(
    backend: Backend, runs: Sequence[str], timeout_seconds: float, *, settle_seconds: float = SETTLE_SECONDS
) -> ClusterSnapshot:
    """Wait until every pod of the runs is Running, and stays so for `settle_seconds`, or has finished well.

    Raises:
        LaunchError: a pod failed, or the timeout expired; names the pod and its state. The runs stay as they are.
    """
    snapshot = EMPTY_SNAPSHOT
    try:
        async with asyncio.timeout(timeout_seconds), aclosing(backend.watch()) as batches:
            async for changes in batches:
                snapshot = apply(snapshot, changes)
                if _all_run(snapshot, runs) and await _stay_running(backend, runs, snapshot, settle_seconds):
                    break
    except TimeoutError:
        snapshot = await backend.snapshot()
        pods = [pod for run in runs for pod in snapshot.pods_of(run)]
        late = next((pod for pod in pods if not pod.ready and pod.phase is not Phase.SUCCEEDED), None)
        what = "they have only just started" if pods else "no pod has appeared"
        if late is not None:
            what = f"{late.name} {late.status.sentence}".rstrip(".")
        sentence = f"Not every worker runs after {timeout_seconds:g} s: {what}."
        raise LaunchError(sentence, _next_step(late, runs)) from None
    return snapshot


async def _stay_running(
    backend: Backend, runs: Sequence[str], before: ClusterSnapshot, settle_seconds: float
) -> bool:
    """Return True if the same processes still run after a time: a process that dies soon was Running, too."""

    def processes(snapshot: ClusterSnapshot) -> set[tuple[str, int]]:
        return {(pod.uid, pod.restarts) for run in runs for pod in snapshot.pods_of(run)}

    until = time.monotonic() + settle_seconds
    while True:
        await asyncio.sleep(min(SETTLE_SECONDS, settle_seconds))
        # Restarts are compared too: a pod that crashed and came back is Running again, with another count.
        after = await backend.snapshot()
        if not _all_run(after, runs) or processes(after) != processes(before):
            return False
        if time.monotonic() >= until or all(
            pod.phase is Phase.SUCCEEDED for run in runs for pod in after.pods_of(run)
        ):
            return True


def _next_step(pod: PodView | None, runs: Sequence[str]) -> str:
    target = pod.name if pod else " ".join(runs)
    return f"See `l2rtui logs {target}`; what was launched stays until `l2rtui destroy {' '.join(runs)}`."


def _all_run(snapshot: ClusterSnapshot, runs: Sequence[str]) -> bool:
    for name in runs:
        run, pods = snapshot.run_named(name), snapshot.pods_of(name)
        for pod in pods:
            if pod.status.level is Level.BAD:
                sentence = f"{pod.name} {pod.status.sentence}".rstrip(".")
                raise LaunchError(f"{sentence}.", _next_step(pod, runs))
        required = sum(worker_set.replicas for worker_set in run.sets) if run else 1
        if sum(pod.ready or pod.phase is Phase.SUCCEEDED for pod in pods) < required:
            return False
    return True


async def scale(
    backend: Backend,
    run: str,
    set_name: str,
    replicas: int,
    grace_seconds: float | None = None,
    *,
    overcommit: bool = False,
    planned: Callable[[ScalePlan], None] = lambda _: None,
) -> ScalePlan:
    """Change the number of replicas of a set; arguments and errors as for `plan_scale`.

    If a launch claims the slots first, new replicas get others, unless the run was launched on exact slots.

    Args:
        grace_seconds: Of the pods that are removed; None keeps their own.
        planned: Called with each plan before it is carried out.

    Raises:
        SlotTakenError: another launch took a slot first, and there is no other for it; nothing was changed.
    """
    excluded = frozenset[SlotId]()
    refusal: SlotTakenError | None = None
    while True:
        try:
            plan = await plan_scale(backend, run, set_name, replicas, overcommit=overcommit, excluded=excluded)
        except RefusedError:
            if refusal is None:
                raise
            raise refusal from None
        planned(plan)
        _log.info("scale %s/%s to %d: begins", run, set_name, replicas)
        try:
            await backend.scale(plan, grace_seconds)
        except SlotTakenError as error:
            refusal = error
            if excluded.issuperset(error.slots):
                raise
            excluded = excluded.union(error.slots)
        else:
            journal.record("scale", f"{run}/{set_name}", "asked", replicas=replicas)
            return plan


async def plan_scale(
    backend: Backend,
    run: str,
    set_name: str,
    replicas: int,
    *,
    overcommit: bool = False,
    excluded: frozenset[SlotId] = frozenset(),
) -> ScalePlan:
    """Plan another number of replicas for a set; nothing is changed.

    Replicas come back to the places of the run's plan; more of them stay on the slots that the person named at the
    launch, if any.

    Args:
        overcommit: Share slots with other pods where none is free.
        excluded: As in ``Placing``.

    Raises:
        NotFoundError: there is no such run or set.
        RefusedError: the number is not possible, or there is no free slot.
    """
    snapshot = await backend.snapshot()
    if snapshot.run_named(run) is None:
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
    spec = await backend.spec(run)
    set_spec = spec.set_named(set_name)
    if set_spec is None:
        sentence = f"{run} has no set {set_name}: it has {', '.join(set_spec.name for set_spec in spec.sets)}."
        raise NotFoundError(sentence)
    if problem := spec.scale_problem() or set_spec.scale_problem(replicas):
        raise RefusedError(f"{run}/{set_name} cannot be scaled to {replicas}: {problem}.")
    pods = [pod for pod in snapshot.pods_of(run, set_name) if not pod.is_terminating]
    # More pods than replicas, by `kubectl scale`, share an index: the oldest stays.
    oldest = {pod.index: pod.uid for pod in sorted(pods, key=lambda pod: -pod.created) if not pod.phase.is_over}
    remaining = [pod for pod in pods if pod.index < replicas and oldest.get(pod.index, pod.uid) == pod.uid]
    # A pod that an earlier scale removed may still be terminating: according to the spec its slots are free.
    present = {other.name: other.replicas for other in spec.sets}
    in_pod = {other.name: other.workers_in_pod for other in spec.sets}
    existing = [
        Seat(run, other.set_name, other.index // in_pod[other.set_name], other.slots)
        for other in snapshot.pods_of(run)
        if other.index < present.get(other.set_name, 0)
    ]
    wish = [spec.with_replicas(set_name, replicas)]
    places = await backend.renderer.places(run) if backend.renderer is not None else NO_PLACES
    ledger = snapshot.ledger.without(excluded)
    back = _seats_of_the_plan(wish[0], set_name, places, ledger, existing)
    ledger = ledger.without(frozenset(slot for seat in back for slot in seat.slots))
    pins = _open_pins(places.pins, ledger, overcommit=overcommit)
    on = ",".join(map(str, places.pins))
    if on and not pins and len(existing) + len(back) < sum(part.num_pods for part in wish[0].sets):
        hint = "Free slots first, or scale to fewer."
        raise RefusedError(f"{run}/{set_name} was launched on {on}, where no slot is free.", hint)
    placement = place(wish, ledger, pins=pins, existing=[*existing, *back], overcommit=overcommit)
    scaled = spec.set_named(set_name) or set_spec
    seats = [*back, *(seat for seat in placement.seats if seat.set_name == set_name)]
    plan = ScalePlan(
        run,
        set_name,
        replicas,
        added=tuple(plan_pod(spec, scaled, seat, snapshot.nodes) for seat in seats),
        removed=tuple(pod.name for pod in sorted(pods, key=lambda pod: -pod.index) if pod not in remaining),
        conflicts=placement.conflicts,
        overcommitted=placement.overcommitted,
    )
    if plan.conflicts:
        pinned = f"; it was launched on {on}" if on else ""
        raise RefusedError(f"{'; '.join(plan.conflicts)}{pinned}.", "Free slots first, or scale to fewer.")
    return plan


def _open_pins(pins: Iterable[Pin], ledger: Ledger, *, overcommit: bool) -> tuple[Pin, ...]:
    """Return the pins without exact slots that are in use, by the run itself most often."""
    states = {(slot.node, slot.gpu, slot.slot): usage.state for slot, usage in ledger.slots.items()}
    return tuple(
        pin
        for pin in pins
        if pin.slot is None or overcommit or states.get((pin.node, pin.gpu, pin.slot)) is SlotState.FREE
    )


def _seats_of_the_plan(
    spec: RunSpec, set_name: str, places: PlannedPlaces, ledger: Ledger, existing: Iterable[Seat]
) -> list[Seat]:
    """Return the seats of a set's missing replicas that the launch has chosen, as far as they are free now."""
    part = spec.set_named(set_name)
    if part is None or not part.pod.binding.chooses_gpu or part.pod.binding.is_counted:
        return []
    seated, in_use = {seat.pod for seat in existing}, set[SlotId]()
    back = []
    for index in range(part.num_pods):
        seat = Seat(spec.name, set_name, index, places.slots.get(pod_name(spec.name, set_name, index), ()))
        is_free = all(
            (slot := ledger.slots.get(slot_id)) is not None
            and slot.state is SlotState.FREE
            and slot_id not in in_use
            for slot_id in seat.slots
        )
        if seat.pod not in seated and seat.slots and is_free:
            in_use.update(seat.slots)
            back.append(seat)
    return back


async def kill(backend: Backend, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
    """Stop pods; their sets replace them."""
    _log.info("kill %s: begins", ", ".join(pod.name for pod in pods))
    await backend.kill(pods, grace_seconds)
    journal.record("kill", ", ".join(pod.name for pod in pods), "asked")


async def destroy(
    backend: Backend, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
) -> AsyncGenerator[DestroyProgress | Receipt, None]:
    """Remove a run and all it owns; the last item is the Receipt, which is also written to journal and history.

    Its spec is kept: ``relaunch`` launches it again.
    """
    recording = DestroyRecording(backend, run)
    await recording.gather()
    async with aclosing(backend.destroy(run, grace_seconds=grace_seconds, purge=purge, force=force)) as items:
        async for item in items:
            if isinstance(item, Receipt):
                await recording.done(item)
            yield item
