"""Reservations of slots: one ConfigMap per node, in the namespace of the slot Leases.

A ConfigMap is changed by compare and swap, so if two users reserve a slot concurrently, only one succeeds. A launch
claims its slots and then looks for reservations; a reservation is written first and then looks for claims. If both
happen at the same moment, at least the later one sees the other and gives way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from l2rtui.backends.common.reservations import refuse_unreservable
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.slot_leases import SlotLeases, claims_of
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.domain import reservations
from l2rtui.domain.node import SlotId, SlotReservation
from l2rtui.domain.reservations import read_reservations, reservations_text
from l2rtui.errors import BackendError, RefusedError

_ATTEMPTS: Final = 50
Present = tuple[SlotReservation, ...]


class KubernetesReservations:
    """Reservations in one cluster.

    Args:
        context: Opens the connection, or returns the open one.
    """

    def __init__(self, context: Callable[[], Awaitable[ClusterContext]], owner: str) -> None:
        self._open, self._owner = context, owner

    async def reserve(self, slots: Sequence[SlotId], until: float, note: str = "") -> None:
        """Reserve slots for the user, all or none.

        Raises:
            RefusedError: Another user has reserved, claimed or uses one of them.
            ApiError: The server refused or did not respond.
        """
        context = await self._open()
        ledger = (await context.snapshot()).ledger
        refuse_unreservable(slots, ledger, self._owner)
        renewed = {slot for slot, _ in reservations.reserved(slots, ledger)}  # only the user's own are left by now
        written: list[SlotId] = []
        try:
            for node, own in reservations.by_node(slots).items():
                await self._change(context, node, partial(self._added, own, until, note))
                written += [slot for slot in own if slot not in renewed]
            refuse_unreservable(slots, (await context.snapshot()).ledger, self._owner)
            await self._refuse_claimed(context, slots)
        except BaseException:
            # Shielded: written reservations must not outlive a request that was refused or cancelled.
            await asyncio.shield(asyncio.ensure_future(self._undo(context, written)))
            raise

    async def release(self, slots: Sequence[SlotId]) -> None:
        """End the reservations of slots, regardless of who has made them. Raises ApiError."""
        context = await self._open()
        for node, own in reservations.by_node(slots).items():
            await self._change(context, node, partial(_without, own))

    def _added(self, slots: Sequence[SlotId], until: float, note: str, present: Present) -> Present:
        if other := reservations.others_on(present, slots, self._owner):
            slot = SlotId(slots[0].node, other.gpu, other.slot)
            raise RefusedError(f"Slot {slot} is {other.text}, so nothing was reserved.", "Choose other slots.")
        return reservations.with_added(present, slots, self._owner, until, note)

    async def _undo(self, context: ClusterContext, slots: Sequence[SlotId]) -> None:
        for node, own in reservations.by_node(slots).items():
            with suppress(BackendError):
                await self._change(context, node, partial(_without, own))

    async def _refuse_claimed(self, context: ClusterContext, slots: Sequence[SlotId]) -> None:
        """Refuse slots that another user's launch has just claimed; it may not have created its pods yet."""
        owners = {run.name: run.owner for run in (await context.recent_snapshot()).runs.values()}
        leases = SlotLeases(context.api, await context.lease_namespace())
        for node, gpu in dict.fromkeys((slot.node, slot.gpu) for slot in slots):
            try:
                lease = await context.api.find("Lease", leases.namespace, labels.slot_lease(node, gpu))
            except ApiError as error:
                if error.is_forbidden:
                    return  # then this user's launches claim nothing either
                raise
            numbers = {slot.slot for slot in slots if (slot.node, slot.gpu) == (node, gpu)}
            for number, claim in claims_of(lease or {}).items():
                run, until = str(claim.get("run", "")), claim.get("until")
                is_young = isinstance(until, int | float) and context.api.now() < until
                is_concerned = int(number) in numbers and is_young and owners.get(run) != self._owner
                if is_concerned and await leases.is_valid((node, gpu), number, claim):
                    sentence = f"Slot {SlotId(node, gpu, int(number))} was claimed by {run} just now"
                    raise RefusedError(f"{sentence}, so nothing was reserved.", "Choose other slots.")

    async def _change(self, context: ClusterContext, node: str, edit: Callable[[Present], Present]) -> None:
        for _ in range(_ATTEMPTS):
            if await self._swap(context, node, edit):
                return
        raise BackendError(f"The reservations of {node} change all the time.", "Try again.")

    async def _swap(self, context: ClusterContext, node: str, edit: Callable[[Present], Present]) -> bool:
        """Read, edit and write one ConfigMap; return False if it was written in between."""
        api, namespace, name = context.api, await context.lease_namespace(), labels.reservations_object(node)
        existing = await api.find("ConfigMap", namespace, name)
        text = ((existing or {}).get("data") or {}).get(labels.RESERVATIONS_KEY, "")
        after = reservations_text(edit(read_reservations(text, time.time(), self._owner)))
        try:
            if existing is None:
                if after:
                    await api.create(_config_map(namespace, name, node, after))
            elif not after:
                meta = existing["metadata"]
                uid, version = meta["uid"], meta["resourceVersion"]
                await api.delete("ConfigMap", namespace, name, uid=uid, resource_version=version)
            elif after != text:
                await api.replace({**existing, "data": {labels.RESERVATIONS_KEY: after}})
        except ApiError as error:
            if error.is_conflict or error.is_taken or error.is_not_found:
                return False
            raise
        return True


def _without(slots: Sequence[SlotId], present: Present) -> Present:
    return reservations.without(present, slots)


def _config_map(namespace: str, name: str, node: str, text: str) -> dict[str, Any]:
    meta = {
        "namespace": namespace,
        "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: labels.RESERVATIONS},
        "annotations": {labels.HOST: node},
    }
    return new_object("ConfigMap", name, meta=meta, data={labels.RESERVATIONS_KEY: text})
