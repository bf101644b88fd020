"""Claims of slots where one machine alone decides: a lock that is waited for, and a refusal of what is taken.

A cluster claims through its API server instead; see ``kubernetes.leases``.
"""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Iterable
from pathlib import Path

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.plan import PodPlan
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import BackendError, RefusedError

_POLL_SECONDS = 0.02


async def lock(descriptor: int, path: Path, patience_seconds: float) -> None:
    """Take the lock on an open file or folder; closing the descriptor lets go of it.

    Raises:
        BackendError: somebody has held it for so long.
        OSError: its file system has no locks.
    """
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise BackendError(
                    f"Another l2rtui has held {path} for {patience_seconds:g} s.",
                    f"See with `fuser {path}` who does, and end it.",
                ) from None
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


def refuse_taken_slots(pods: Iterable[PodPlan], snapshot: ClusterSnapshot) -> None:
    """Refuse when a pod's seat is not free, or not there.

    Raises:
        RefusedError: naming the slot and who holds it.
    """
    slots = snapshot.ledger.slots
    seen: dict[object, str] = {}
    for pod in pods:
        for slot_id in pod.seat.slots:
            slot = slots.get(slot_id)
            if slot is None:
                raise RefusedError(f"There is no slot {slot_id} for {pod.name}.", "See `l2rtui slots`.")
            if slot.state is not SlotState.FREE or slot_id in seen:
                holder = slot.pod or seen.get(slot_id, "")
                by = f" by {holder}" if holder else ""
                raise RefusedError(
                    f"Slot {slot_id} is {slot.state}{by}, so {pod.name} cannot sit there.", "Plan again."
                )
            seen[slot_id] = pod.name
