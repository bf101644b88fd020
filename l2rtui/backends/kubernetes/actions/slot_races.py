"""Second look: pods of all namespaces are listed once more after a launch has made its own.

Leases protect among those who claim in the same namespace. Two launches whose claims are in two namespaces can both
find a slot free: no namespace is shared, or one of the two has no right to it. Each launch therefore looks again
when its pods are there, whatever it has claimed: the pods that were created first keep the slot, and the other
launch takes itself back. The labels of a pod are its node and GPU, and an annotation has the slots of all pods of
its controller.

Creation times of Kubernetes are whole seconds. So a launch looks only when the second of its own pods is over by
the server's clock: of two in the same second both then see each other, and the first by name keeps the slot.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.slot_leases import SlotLeases, seats_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.rights import Right, role_hint
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import PodPlan, RunPlan
from l2rtui.domain.preflight import Finding, Severity

APPEAR_SECONDS: Final = 15.0
"""Time in which a controller makes its first pod; one that makes none, for a quota, holds no slot."""
SETTLE_SECONDS: Final = 2.0
"""Time from the second of a creation until everybody sees the pod: the server sets the time before it stores it."""
_POLL_SECONDS: Final = 0.25
_MOST_NODES: Final = 40
"""Names in a selector; more make a longer URL than proxies take."""
_PREPARE: Final = f"`l2rtui cluster prepare` makes the namespace {labels.CLAIMS_NAMESPACE}, which all share."
_LEASES: Final = role_hint([Right("create", "Lease")])


class Arrival(NamedTuple):
    """First pod of one side of a race on a slot. Of two, the smaller keeps the slot.

    The runs of an experiment in a namespace are one side: one launch makes them together. Two launches can add runs
    to the same experiment, so the run's identity decides last.

    Attributes:
        created: In seconds since the epoch.
    """

    created: float
    namespace: str
    experiment: str
    run_id: str


Arrivals = dict[SlotId, Arrival]
_NEVER: Final = Arrival(math.inf, "", "", "")


def is_exact(pod: PodPlan) -> bool:
    """Return True for a replica that is pinned to slots; the cluster itself counts all others."""
    return bool(pod.seat.slots) and pod.set_spec.pod.binding.chooses_gpu


async def protection(context: ClusterContext) -> Finding:
    """Return what keeps two launches at the same moment from the same slots."""
    shared, can_look = await context.shared_namespace(), await context.api.can("list", "Pod", None)
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
        look = "of launches from several namespaces at once, a second look at all pods lets the first keep a slot"
        severity = Severity.OK if is_permitted else Severity.WARNING
        return Finding(severity, "claims", f"{claimed}; {look}", _PREPARE if is_permitted else _LEASES)
    rest = "somebody who launches in another namespace at the same moment may get the same ones"
    if not is_permitted:
        rest = "somebody who launches at the same moment may get the same ones"
    return Finding(Severity.WARNING, "claims", f"{claimed}; {rest}", _PREPARE if is_permitted else _LEASES)


async def refuse_lost_slots(
    context: ClusterContext,
    runs: Sequence[RunPlan],
    shared: Collection[SlotId] = (),
) -> None:
    """Look at all pods again, and refuse where another run's were first on a slot of these replicas.

    Does nothing where the user sees no other namespace.

    Args:
        runs: Runs with the replicas that were just created.
        shared: Slots that other pods may use, because the person asked for it.

    Raises:
        SlotTakenError: names the slot and who has it.
        ApiError: the server does not answer.
    """
    pods = [pod for run in runs for pod in run.pods if is_exact(pod)]
    planned = {slot: pod for pod in pods for slot in pod.seat.slots if slot not in shared}
    if not planned or not await context.api.can("list", "Pod", None):
        return
    own, others = await _settled(context, planned, {run.uid for run in runs})
    lost: dict[SlotId, str] = {}
    for arrivals in others.values():
        # By the first slot that both have and not slot by slot: of two that have several each would win one.
        first = min(arrivals.values())
        if first < min(own.get(slot, _NEVER) for slot in arrivals):
            for slot in arrivals:
                sentence = (
                    f"Slot {slot} was taken by {first.experiment} in the namespace {first.namespace} at the same"
                )
                lost[slot] = f"{sentence} time, so {planned[slot].name} cannot sit there."
    if lost:
        raise SlotTakenError(next(iter(lost.values())), lost)


async def _settled(
    context: ClusterContext, planned: Mapping[SlotId, PodPlan], run_ids: Collection[str]
) -> tuple[Arrivals, dict[tuple[str, str], Arrivals]]:
    """Return when we and all others were on each slot, as soon as all pods as old as ours can be seen."""
    api, clock = context.api, asyncio.get_running_loop().time
    nodes = {labels.label_value(slot.node) for slot in planned}
    selector = (
        labels.MANAGED if len(nodes) > _MOST_NODES else f"{labels.MANAGED},{labels.HOST} in ({','.join(nodes)})"
    )
    by_device: dict[tuple[str, int], list[SlotId]] = {}
    for slot in planned:
        by_device.setdefault((labels.label_value(slot.node), slot.gpu), []).append(slot)
    until = clock() + APPEAR_SECONDS
    while True:
        # Taken before the list: the list must be younger than the moment up to which it is complete.
        began = api.now()
        own: Arrivals = {}
        others: dict[tuple[str, str], Arrivals] = {}
        for pod in await api.list("Pod", None, labels=selector):
            meta = pod["metadata"]
            own_labels = meta.get("labels") or {}
            arrival = Arrival(
                datetime.fromisoformat(str(meta["creationTimestamp"])).timestamp(),
                str(meta.get("namespace", "")),
                *(str(own_labels.get(key, "")) for key in (labels.EXPERIMENT, labels.RUN_ID)),
            )
            for slot in _slots_of(pod, by_device):
                is_own = arrival.run_id in run_ids
                side = own if is_own else others.setdefault((arrival.namespace, arrival.experiment), {})
                side[slot] = min(arrival, side.get(slot, _NEVER))
        due = max((arrival.created for arrival in own.values()), default=0.0) + SETTLE_SECONDS
        is_there = own.keys() == planned.keys() or clock() > until
        if is_there and began >= due:
            return own, others
        await asyncio.sleep(max(_POLL_SECONDS, due - api.now()) if is_there else _POLL_SECONDS)


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
