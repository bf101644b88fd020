"""States of runs → rows of a snapshot (pure, but for the question whether an unsupervised process still lives)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from l2rtui.backends.local import processes
from l2rtui.backends.local.records import PodRecord
from l2rtui.backends.local.store import CORRUPT, RunState
from l2rtui.domain.ledger import Claim
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import Phase

UNSUPERVISED = "Unsupervised"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one run."""

    run: RunView
    pods: tuple[PodView, ...]


class RowCache:
    """Makes rows, and gives the same ones again while neither the files nor the clock change what they say."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[RunState, Rows]] = {}

    def rows(self, states: Sequence[RunState], node: str, now: float) -> list[Rows]:
        """The rows of all runs, in their order."""
        fresh: dict[str, tuple[RunState, Rows]] = {}
        for state in states:
            known = self._known.get(state.uid)
            if known is None or _may_differ(known[0], state):
                known = state, Rows(run_view(state), tuple(pod_views(state, node, now)))
            fresh[state.uid] = known
        self._known = fresh
        return [rows for _, rows in fresh.values()]


def _may_differ(old: RunState, new: RunState) -> bool:
    """Whether the rows must be made again: the store gives the same objects while the files are the same."""
    is_timeless = new.is_supervised and not any(pod.next_start for pod in (new.status.pods if new.status else ()))
    is_same = old.record is new.record and old.status is new.status and old.is_stopping == new.is_stopping
    return not (is_timeless and is_same and old.is_supervised)


def run_view(state: RunState) -> RunView:
    """One run."""
    record = state.record
    if record is None:
        return RunView(
            state.uid,
            state.folder.name,
            state.folder.name,
            reason=CORRUPT,
            message="its record cannot be read; destroy it, and what runs of it is found by its mark",
            is_terminating=state.is_stopping,
        )
    reason = message = ""
    if not state.is_supervised:
        reason = UNSUPERVISED
        message = (
            "its supervisor is gone: until the app opens, nothing restarts its processes or stores their output"
        )
    elif state.status is not None and state.status.problem:
        reason, message = "Warning", state.status.problem
    return RunView(
        record.uid,
        record.spec.name,
        record.spec.experiment,
        owner=record.owner,
        seed=record.spec.seed,
        kind=record.spec.kind,
        created=record.created,
        sets=tuple(SetView(one.name, one.role, one.replicas) for one in record.spec.sets),
        reason=reason,
        message=message,
        is_terminating=state.is_stopping,
    )


def pod_views(state: RunState, node: str, now: float) -> Iterator[PodView]:
    """The pods of a run: those that its supervisor knows, then those that it has yet to start."""
    known = state.status.pods if state.status else []
    for pod in known:
        yield _pod_view(state, pod, node, now)
    fulfilled = {pod.wish for pod in known}  # not names: the slots of a new pod are claimed beside its predecessor
    if state.record is not None and not state.is_stopping:
        for wish in state.record.pods:
            if wish.uid not in fulfilled:
                yield _planned(state, wish.uid, wish.plan, node, wish.created)


def _pod_view(state: RunState, pod: PodRecord, node: str, now: float) -> PodView:
    phase, reason, message = pod.phase, pod.reason, pod.message
    if pod.next_start is not None:
        left = max(0.0, pod.next_start - now)
        again = f"starts again in {math.ceil(left / 5) * 5 if left > 5 else math.ceil(left)} s"
        message = f"{message}; {again}" if message else again
    elif not state.is_supervised and not phase.is_over and not processes.is_alive(pod.proc):
        phase, reason, message = Phase.UNKNOWN, UNSUPERVISED, "it has ended, and no supervisor has seen how"
    return replace(
        _planned(state, pod.uid, pod.plan, node, pod.created),
        phase=phase,
        reason=reason,
        message=message,
        ready=phase is Phase.RUNNING and pod.proc is not None,
        restarts=pod.restarts,
        started=pod.started,
        exit_code=pod.exit_code,
        is_terminating=pod.is_terminating,
        pid=pod.proc.pid if pod.proc else None,
    )


def _planned(state: RunState, uid: str, plan: PodPlan, node: str, created: float) -> PodView:
    """What a plan alone says of a pod."""
    record = state.record
    return PodView(
        uid=uid,
        name=plan.name,
        node=plan.node or node,
        owner=record.owner if record else "",
        run=state.folder.name,
        set_name=plan.set_spec.name,
        role=plan.set_spec.role,
        index=plan.index,
        seed=record.spec.seed if record else 0,
        claims=tuple(Claim(slot.gpu, slot.slot) for slot in plan.seat.slots),
        created=created,
    )
