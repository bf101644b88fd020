"""Second look: a launch reads in which order the pods of all namespaces have come, after it has made its own.

Leases protect among those who claim in the same namespace. Two launches whose claims are in two namespaces can both
find a slot free: no namespace is shared, or one of the two has no right to it. Each launch therefore looks again
when its pods are there, whatever it has claimed: the pods that came first keep the slot, and the other launch is
taken back. The labels of a pod are its node and GPU, and an annotation has the slots of its controller's pods.

The order is that in which the server has stored the pods: a watch from the revision before the launch looked for
free slots names them in this order, the same for everybody (Kubernetes API concepts, "Efficient detection of
changes"). Times of creation give no order: a busy server sets them up to 6 s before it stores the pod (measured).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.slot_leases import SlotLeases, seats_of
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.decode import LineBuffer
from l2rtui.backends.kubernetes.api.errors import ApiError, RequestInfo, status_error
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.rights import Right, role_hint
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity
from runtime.base import bounded_json

PATIENCE_SECONDS: Final = 3.0
"""Time for the rest of another launch's pods, which may come after the first of ours; and between two looks at
the reason why our controllers make none.
"""
APPEAR_SECONDS: Final = 60.0
"""Time without another pod of ours after which none is waited for, though the controllers give no reason."""
_WATCH_SECONDS: Final = 300
_MOST_NODES: Final = 40
"""Names in a selector; more make a longer URL than proxies take."""
_PREPARE: Final = f"`l2rtui cluster prepare` makes the namespace {labels.CLAIMS_NAMESPACE}, which all share."
_LEASES: Final = role_hint([Right("create", "Lease")])


Arrivals = dict[SlotId, int]
"""Number of the first pod of a launch on each slot, in the order in which the server has stored them."""


class Party(NamedTuple):
    """Another launch: the runs of an experiment in a namespace, which one launch makes together."""

    namespace: str
    experiment: str


def is_exact(pod: PodPlan) -> bool:
    """Return True for a replica that is pinned to slots; the cluster itself counts all others."""
    return bool(pod.seat.slots) and pod.set_spec.pod.binding.chooses_gpu


async def protection(context: ClusterContext) -> Finding:
    """Return what keeps two launches at the same moment from the same slots."""
    shared, can_look = await context.shared_namespace(), await _can_look(context)
    namespace = shared or context.namespace
    is_permitted = await SlotLeases(context.api, namespace).is_permitted()
    if shared and is_permitted:
        sentence = f"slots are claimed through Leases in {shared}, which all namespaces share"
        rest = "a second look at all pods covers users who have no right to them"
        if not can_look:
            rest = "a user who has no right to them may get the same slots at the same moment"
        return Finding(Severity.OK, "claims", f"{sentence}; {rest}")
    claimed = f"slots are claimed through Leases in {namespace}, which protect within this namespace"
    if not is_permitted:
        claimed = f"you may not use Leases in {namespace}: slots are not claimed"
    if can_look:
        look = "if several namespaces launch simultaneously, a second look at all pods lets the first keep a slot"
        severity = Severity.OK if is_permitted else Severity.WARNING
        return Finding(severity, "claims", f"{claimed}; {look}", _PREPARE if is_permitted else _LEASES)
    rest = "a launch in another namespace at the same moment may get the same ones"
    if not is_permitted:
        rest = "another launch at the same moment may get the same ones"
    return Finding(Severity.WARNING, "claims", f"{claimed}; {rest}", _PREPARE if is_permitted else _LEASES)


async def revision(context: ClusterContext) -> str:
    """Return the revision from which `refuse_lost_slots` reads; empty if the user sees no other namespace.

    Taken before a launch looks which slots are free: what comes later is in the watch.
    """
    if not await _can_look(context):
        return ""
    query = {"limit": "1", "labelSelector": labels.MANAGED}
    answer = await context.api.get_json(KINDS["Pod"].path(None), query)
    return str(answer["metadata"]["resourceVersion"])


async def _can_look(context: ClusterContext) -> bool:
    return all([await context.api.can(verb, "Pod", None) for verb in ("list", "watch")])


async def refuse_lost_slots(
    context: ClusterContext,
    runs: Sequence[RunPlan],
    since: str,
    shared: Collection[SlotId] = (),
) -> None:
    """Look at all pods again, and refuse where another run's came first on a slot of these replicas.

    Args:
        runs: Runs with the replicas that were just created.
        since: As returned by `revision`.
        shared: Slots that other pods may use, because the person asked for it.

    Raises:
        SlotTakenError: names the slot and who has it.
        ApiError: the server does not answer.
    """
    pods = [pod for run in runs for pod in run.pods if is_exact(pod)]
    planned = {slot: pod for pod in pods for slot in pod.seat.slots if slot not in shared}
    if not planned or not since:
        return
    race = _Race(context, planned, {run.uid for run in runs})
    await race.follow(since)
    lost = {
        slot: f"Slot {slot} was taken by {party.experiment} in the namespace {party.namespace} at the same time, so"
        f" {planned[slot].name} cannot sit there."
        for party in race.earlier()
        for slot in race.others[party]
    }
    if lost:
        raise SlotTakenError(next(iter(lost.values())), lost)


class _Race:
    """Pods that came on planned slots, in their order."""

    def __init__(
        self, context: ClusterContext, planned: Mapping[SlotId, PodPlan], run_ids: Collection[str]
    ) -> None:
        self._context, self._planned, self._run_ids = context, planned, run_ids
        self._by_device: dict[tuple[str, int], list[SlotId]] = {}
        for slot in planned:
            self._by_device.setdefault((labels.label_value(slot.node), slot.gpu), []).append(slot)
        nodes = sorted({node for node, _ in self._by_device})
        self._selector = labels.MANAGED
        if len(nodes) <= _MOST_NODES:
            self._selector += f",{labels.HOST} in ({','.join(nodes)})"
        self._number = 0
        self.own: Arrivals = {}
        self.others: dict[Party, Arrivals] = {}

    def earlier(self) -> list[Party]:
        """Return the launches of which a pod came before ours.

        By the first pod on the slots of both, not slot by slot: of two that have several each would win one. What a
        launch sees up to its last pod is enough: of two, the later one always sees the first pod of the earlier.
        """
        return [
            party
            for party, arrivals in self.others.items()
            if min(arrivals.values()) < min(self.own.get(slot, sys.maxsize) for slot in arrivals)
        ]

    async def follow(self, since: str) -> None:
        """Read the pods that came after a revision, until all of ours are there and it is decided who was first."""
        clock = asyncio.get_running_loop().time
        pods, heard = self._added(since), clock()
        task = asyncio.ensure_future(anext(pods))
        try:
            while not self._is_complete or self.earlier():
                await asyncio.wait({task}, timeout=PATIENCE_SECONDS)
                if task.done():
                    if self._take(task.result()):
                        heard = clock()
                    task = asyncio.ensure_future(anext(pods))
                if (silence := clock() - heard) < PATIENCE_SECONDS:
                    continue
                if self._is_complete or silence >= APPEAR_SECONDS or await self._are_refused():
                    return
        except StopAsyncIteration:
            return
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration, ApiError):
                await task
            await pods.aclose()

    @property
    def _is_complete(self) -> bool:
        return self.own.keys() == self._planned.keys()

    async def _are_refused(self) -> bool:
        """Return whether the controllers say why they make no pods."""
        runs = (await self._context.snapshot()).runs
        return any(runs[uid].reason for uid in self._run_ids if uid in runs)

    def _take(self, pod: Mapping[str, Any]) -> bool:
        """Note a pod; return True for one of ours."""
        self._number += 1
        meta = pod["metadata"]
        own_labels = meta.get("labels") or {}
        is_own = own_labels.get(labels.RUN_ID) in self._run_ids
        party = Party(str(meta.get("namespace", "")), str(own_labels.get(labels.EXPERIMENT, "")))
        for slot in _slots_of(pod, self._by_device):
            side = self.own if is_own else self.others.setdefault(party, {})
            side.setdefault(slot, self._number)
        return is_own

    async def _added(self, since: str) -> AsyncGenerator[Mapping[str, Any]]:
        """Yield pods in the order in which the server has stored them."""
        pauses = RetryPauses(0.1)
        while True:
            try:
                async with aclosing(self._events(since)) as events:
                    async for event in events:
                        since = str(event["object"]["metadata"]["resourceVersion"])
                        if event["type"] == "ADDED":
                            yield event["object"]
            except ApiError as error:
                if error.is_gone:
                    break
                if not error.is_unreachable:
                    raise
            await pauses.wait()
        # The launch took longer than the server keeps events, some minutes. Times of creation are good enough then.
        listed = await self._context.api.list("Pod", None, labels=self._selector)
        for pod in sorted(listed, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
            yield pod

    async def _events(self, since: str) -> AsyncGenerator[Mapping[str, Any]]:
        path, lines = KINDS["Pod"].path(None), LineBuffer()
        query = {"watch": "true", "labelSelector": self._selector, "resourceVersion": since}
        query["timeoutSeconds"] = str(_WATCH_SECONDS)
        stream = self._context.api.stream(path, query, idle_timeout_seconds=_WATCH_SECONDS + 10.0)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                for event in map(bounded_json.loads, lines.feed(chunk)):
                    if event["type"] == "ERROR":
                        raise status_error(RequestInfo("GET", path), 410, "Expired", "")
                    yield event


def _slots_of(pod: Mapping[str, Any], by_device: Mapping[tuple[str, int], Sequence[SlotId]]) -> Iterator[SlotId]:
    """Yield the planned slots that a pod's controller has, as its annotation says; none of a pod that has ended."""
    meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
    if meta.get("deletionTimestamp") or phase in ("Succeeded", "Failed"):
        return
    own_labels = meta.get("labels") or {}
    gpus, numbers = (
        labels.gpu_indices(own_labels.get(labels.GPU, "")),
        {slot for _, slots in seats_of(pod) for slot in slots},
    )
    for gpu in gpus:
        for slot in by_device.get((own_labels.get(labels.HOST, ""), gpu), ()):
            if len(gpus) > 1 or slot.slot in numbers:  # pods with several GPUs have all slots of each
                yield slot
