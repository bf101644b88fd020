"""Refusals that every backend raises with the same text, and the check that slots are free.

Launches on a single node hold a file lock while they take slots. A cluster claims slots with Leases of its API
server instead; see ``kubernetes.actions.slot_leases``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import BackendError, RefusedError
from runtime.base.atomic_files import try_lock


class SlotTakenError(RefusedError):
    """Slots of a plan were taken by another launch after the plan was made; nothing was created.

    Attributes:
        slots: The slots that are known to be taken.
    """

    def __init__(self, message: str, slots: Iterable[SlotId]) -> None:
        super().__init__(message, "Plan again.")
        self.slots = tuple(slots)


def run_exists(run: str) -> RefusedError:
    """Return the refusal of a launch whose name is taken."""
    return RefusedError(f"A run named {run} exists.", f"Choose another name, or `l2rtui destroy {run}` first.")


def pod_exists(run: str, set_name: str, pod: str) -> RefusedError:
    """Return the refusal of a scale that would start a replica twice, because the set was scaled meanwhile."""
    return RefusedError(f"{run}/{set_name} has {pod} already.", "Plan again.")


def refuse_conflicts(conflicts: Sequence[str]) -> None:
    """Refuse a plan with replicas that could not be placed.

    Raises:
        RefusedError: The message names each of them.
    """
    if conflicts:
        raise RefusedError(f"{'; '.join(conflicts)}.", "Plan again.")


def has_no_input(pod: str) -> RefusedError:
    """Return the refusal to attach to a process without a standard input."""
    return RefusedError(
        f"The process of {pod} has no standard input.",
        f"`l2rtui logs -f {pod}` follows its output, `l2rtui exec {pod} -- sh` opens another shell in it.",
    )


def is_not_running(pod: str) -> RefusedError:
    """Return the refusal to attach to a pod whose process is not running."""
    return RefusedError(f"{pod} does not run.", f"See `l2rtui describe {pod}`.")


_POLL_SECONDS = 0.02


async def lock_file(descriptor: int, path: Path, timeout_seconds: float) -> None:
    """Lock an open file or folder; closing the descriptor releases the lock.

    Raises:
        BackendError: Another process holds the lock for longer than the timeout.
        OSError: The file system does not support locks.
    """
    until = time.monotonic() + timeout_seconds
    # Polled: a blocking flock() would need a thread, and a cancelled thread would still get the lock later.
    while not try_lock(descriptor):
        if time.monotonic() > until:
            sentence = f"Another l2rtui has held {path} for {timeout_seconds:g} s."
            raise BackendError(sentence, f"See with `fuser {path}` who does, and end it.")
        await asyncio.sleep(_POLL_SECONDS)


def refuse_taken_slots(
    pods: Iterable[PodPlan], snapshot: ClusterSnapshot, overcommitted: Iterable[SlotId] = ()
) -> None:
    """Refuse if a slot of a plan does not exist or is not free.

    Args:
        overcommitted: Slots that may be taken because the user asked for it.

    Raises:
        SlotTakenError: Slots are not free; the message names the first one and the pod that holds it.
        RefusedError: A slot does not exist.
    """
    allowed = set(overcommitted)
    planned: dict[SlotId, str] = {}
    problems: dict[SlotId, str] = {}
    pods = tuple(pods)
    problems |= _uncounted(pods, snapshot)
    for pod in pods:
        # Slots that represent units of a resource may be in use by other pods.
        is_counted = pod.seat.resource and not pod.set_spec.pod.binding.chooses_gpu
        for slot_id in () if is_counted else pod.seat.slots:
            slot = snapshot.ledger.slots.get(slot_id)
            if slot is None:
                raise RefusedError(f"There is no slot {slot_id} for {pod.name}.", "See `l2rtui slots`.")
            use = ""
            if slot.is_withheld and slot.reservation is not None:
                use = slot.reservation.text
            # The plan's own pods count too: two of them on one slot would both be started.
            elif slot_id not in allowed and (slot.state is not SlotState.FREE or slot_id in planned):
                use = slot.use if slot.state is not SlotState.FREE else f"planned for {planned[slot_id]}"
            if use:
                problems[slot_id] = f"Slot {slot_id} is {use}, so {pod.name} cannot sit there."
            planned[slot_id] = pod.name
    if problems:
        raise SlotTakenError(next(iter(problems.values())), problems)


def _uncounted(pods: Iterable[PodPlan], snapshot: ClusterSnapshot) -> dict[SlotId, str]:
    """Return a sentence for the slots of pods that request more units of a resource than their node has left."""
    requested: Counter[tuple[str, str]] = Counter()
    problems: dict[SlotId, str] = {}
    for pod in pods:
        node, resource = snapshot.ledger.nodes.get(pod.node), pod.seat.resource
        requested[pod.node, resource] += pod.seat.units
        count = (node.counts or {}).get(resource) if node is not None else None
        if count is not None and requested[pod.node, resource] > count.free:
            sentence = f"{pod.node} has {count} of {resource}, so {pod.name} cannot sit there."
            problems |= dict.fromkeys(pod.seat.slots, sentence)
    return problems
