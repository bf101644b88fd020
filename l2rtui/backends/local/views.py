"""Views of a snapshot from the states of runs. Pure, except for checking whether unsupervised processes live."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.run_store import CORRUPT, RunState
from l2rtui.backends.local.state_files import PodRecord
from l2rtui.domain.history import spec_id
from l2rtui.domain.plan import PodPlan, planned_view
from l2rtui.domain.snapshot import UNSUPERVISED, PodView, RunView, SetView
from l2rtui.domain.status import STOPPED, Phase

SILENT = "Silent"
NO_SPACE = "NoSpace"
_CORRUPT = "its record cannot be read; destroy it, and what runs of it is found by its mark"
_NEWER = "a newer l2rtui launched it: manage it with that one; destroy ends the processes that have its mark"


class RunViews(Struct, frozen=True):
    """Views of one run and its pods."""

    run: RunView
    pods: tuple[PodView, ...]


class ViewCache:
    """Makes views, and returns the same objects again while neither the files nor the clock change them."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[RunState, tuple[bool, ...], RunViews]] = {}

    def views(self, states: Sequence[RunState], node: str, now: float) -> list[RunViews]:
        """Return the views of all runs, in their order."""
        fresh: dict[str, tuple[RunState, tuple[bool, ...], RunViews]] = {}
        for state in states:
            cached, stopped = self._cache.get(state.uid), _stopped(state)
            if cached is None or cached[1] != stopped or _may_differ(cached[0], state):
                cached = state, stopped, RunViews(run_view(state), tuple(pod_views(state, node, now)))
            fresh[state.uid] = cached
        self._cache = fresh
        return [views for _, _, views in fresh.values()]


def _stopped(state: RunState) -> tuple[bool, ...]:
    """Return which processes of a run are stopped by a signal: no file says so, and no supervisor sees it."""
    pods = state.status.pods if state.status else []
    return tuple(pod.proc is not None and process_scan.is_stopped(pod.proc) for pod in pods)


def _may_differ(old: RunState, new: RunState) -> bool:
    """Return True if views must be rebuilt; the store returns the same objects while files are unchanged."""
    # The message of a back-off counts down, and an unsupervised process may end: both change without a file.
    is_watched = new.is_supervised and new.silent_since is None
    is_timeless = is_watched and not any(pod.next_start for pod in (new.status.pods if new.status else ()))
    is_same = old.record is new.record and old.status is new.status and old.is_stopping == new.is_stopping
    is_same = is_same and old.silent_since == new.silent_since and old.is_full == new.is_full
    return not (is_timeless and is_same and old.is_supervised)


def run_view(state: RunState) -> RunView:
    """Return the view of one run."""
    record = state.record
    if record is None:
        return RunView(
            state.uid,
            state.folder.name,
            state.folder.name,
            owner=state.owner,
            reason="Newer" if state.is_newer else CORRUPT,
            message=_NEWER if state.is_newer else _CORRUPT,
            is_terminating=state.is_stopping,
        )
    # Without a supervisor nothing else in the status is up to date, so that reason comes first.
    reason = message = ""
    if not state.is_supervised:
        reason = UNSUPERVISED
        message = "its supervisor has ended: nothing restarts its processes until its owner's next command"
    elif state.silent_since is not None:
        reason = SILENT
        message = (
            "its supervisor is stopped (SIGSTOP): its state is not updated, and nothing restarts its "
            f"processes; `kill -CONT {state.status.supervisor.pid if state.status else 0}` lets it go on"
        )
    elif state.is_full:
        reason = NO_SPACE
        message = (
            f"no space is left on the disk of {state.folder.path}: its logs and checkpoints are lost; free some, "
            "and it goes on by itself"
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
        sets=tuple(SetView(part.name, part.role, part.replicas, part.slots > 0) for part in record.spec.sets),
        reason=reason,
        message=message,
        is_terminating=state.is_stopping,
        silent_since=state.silent_since,
        trial=record.spec.trial,
        spec_id=spec_id(record.spec),
    )


def pod_views(state: RunState, node: str, now: float) -> Iterator[PodView]:
    """Yield the pods of a run: first the pods of its status, then pods that its supervisor has yet to start."""
    records = state.status.pods if state.status else []
    for pod in records:
        yield _pod_view(state, pod, node, now)
    # By uid, not by name: a new pod has claimed its slots while its predecessor is still ending on others.
    fulfilled = {pod.wish for pod in records}
    if state.record is not None and not state.is_stopping:
        for desired in state.record.pods:
            if desired.uid not in fulfilled:
                yield _planned_view(state, desired.uid, desired.plan, node, desired.created)


def _pod_view(state: RunState, pod: PodRecord, node: str, now: float) -> PodView:
    phase, reason, message = pod.phase, pod.reason, pod.message
    if pod.next_start is not None:
        # In steps of 5 s: a countdown by the second would send a change of every waiting pod each second.
        left = max(0.0, pod.next_start - now)
        again = f"starts again in {math.ceil(left / 5) * 5 if left > 5 else math.ceil(left)} s"
        message = f"{message}; {again}" if message else again
    elif phase.is_over:
        pass
    elif not (state.is_supervised and state.silent_since is None) and not process_scan.is_alive(pod.proc):
        # A stopped supervisor sees nothing, like one that has ended.
        reason = SILENT if state.is_supervised else UNSUPERVISED
        phase, message = Phase.UNKNOWN, "it has ended, and no supervisor has seen how"
    elif pod.proc is not None and process_scan.is_stopped(pod.proc):
        reason = STOPPED
        message = f"it was stopped (SIGSTOP): `kill -CONT {pod.proc.pid}` lets it go on"
    return replace(
        _planned_view(state, pod.uid, pod.plan, node, pod.created),
        phase=phase,
        reason=reason,
        message=message,
        ready=phase is Phase.RUNNING and pod.proc is not None and reason != STOPPED,
        restarts=pod.restarts,
        started=pod.started,
        exit_code=pod.exit_code,
        is_terminating=pod.is_terminating,
        pid=pod.proc.pid if pod.proc else None,
    )


def _planned_view(state: RunState, uid: str, plan: PodPlan, node: str, created: float) -> PodView:
    owner, seed = (state.record.owner, state.record.spec.seed) if state.record else ("", 0)
    return planned_view(plan, state.folder.name, owner, seed, uid=uid, node=node, created=created)
