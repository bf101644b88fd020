"""Slot Leases: claims on slots. If two launches place pods on the same slot concurrently, exactly one wins.

One Lease (``coordination.k8s.io/v1``) represents one GPU, or the CPU of one node. Its annotation maps slot indices
to claims, ``{run, run_id, namespace, until}``. A claim is written by compare and swap: the Lease is read, and
replaced only if its ``resourceVersion`` is unchanged (Kubernetes API concepts, "Updates to existing resources").

A claim is valid as long as a controller of its run would start a pod on the slot. Before the run has a controller
there, it is valid until its time is over by the server's clock, so the claims of a launch that died expire without
anybody's help. It
ends with a Job that has ended, however young it is: a launch makes no other controller for the slot. A scale does.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from l2rtui.backends.common.refusals import SlotTakenError
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.backends.kubernetes.state.visibility import may_claim
from l2rtui.domain.node import SlotId, device_index, device_name
from l2rtui.errors import BackendError, RefusedError
from runtime.base import bounded_json

CLAIM_SECONDS: Final = 120.0
"""Time for which a claim needs no controller: longer than a launch needs from claiming to its last controller."""
_AT_ONCE: Final = 8
"""Number of Leases that are written concurrently."""
# A swap fails only if another one succeeds, so 50 consecutive failures mean 50 other launches on this GPU.
_ATTEMPTS: Final = 50
_SCALING: Final = "scaling"
"""Key that marks a claim by a scale."""
_COUNTED: Final = "counted"
"""Key that marks a claim on a unit of a counted resource."""
_SELECTOR: Final = f"{labels.MANAGED},{labels.APP_COMPONENT}=slot-claims"

Device = tuple[str, int]
"""Node and index of a device."""
Claims = dict[str, dict[str, Any]]
"""Claims on one device by slot index, which is a string in JSON."""
Edit = Callable[[Claims], Awaitable[Claims]]


class Claimant(Struct, frozen=True):
    """One launch of a run as the holder of claims; the run's namespace may differ from the Lease's.

    Attributes:
        is_scaling: The run already exists, and gets another controller.
        is_counted: The slots represent units that the cluster counts, until it counts the pods.
    """

    run: str
    run_id: str
    namespace: str
    is_scaling: bool = False
    is_counted: bool = False


SlotsByDevice = Mapping[Device, Mapping[int, Claimant]]


def slots_by_device(claimants: Mapping[Claimant, Iterable[SlotId]]) -> dict[Device, dict[int, Claimant]]:
    """Group slots by device, in claiming order."""
    grouped: dict[Device, dict[int, Claimant]] = {}
    for claimant, slots in claimants.items():
        for slot in slots:
            grouped.setdefault((slot.node, slot.gpu), {})[slot.slot] = claimant
    # One global order: two launches that want the same devices compete for the first of them and cannot each hold
    # one that the other needs (resource ordering, Coffman et al. 1971).
    return dict(sorted(grouped.items()))


class SlotLeases:
    """The slot Leases in one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    async def is_permitted(self) -> bool:
        """Return whether the user may claim slots here."""
        return await may_claim(self._api, self.namespace)

    async def claim(self, slots: SlotsByDevice, *, seconds: float = CLAIM_SECONDS) -> None:
        """Claim all slots, or none of them.

        Args:
            slots: As ``slots_by_device`` returns them.
            seconds: Time for which the claims are valid without a controller.

        Raises:
            SlotTakenError: Another run has one of them; the message names it. Nothing stays claimed.
            ApiError: The server refused or did not respond. Nothing stays claimed, as far as the server can be
                reached.
        """
        run_ids = {claimant.run_id for claims in slots.values() for claimant in claims.values()}
        own_slots = [SlotId(*device, slot) for device, claims in slots.items() for slot in claims]
        # Claiming several devices concurrently is fast, but two launches can block each other. So a refused try is
        # undone and repeated device by device in the common order; the random pause lets the other launch finish
        # its undo.
        lanes_by_try = (_AT_ONCE, 1, 1, 1) if len(slots) > 1 else (1,)
        for number, lanes in enumerate(lanes_by_try):
            if number > 1:
                await asyncio.sleep(random.uniform(0.05, 0.3))  # noqa: S311  (no secret)
            try:
                await self._claim_devices(slots, seconds, lanes)
            except (RefusedError, ApiError, asyncio.CancelledError) as error:
                # Shielded: a cancelled launch must still release its claims.
                await asyncio.shield(asyncio.ensure_future(self.release(run_ids, slots, only=own_slots)))
                if number + 1 == len(lanes_by_try) or not isinstance(error, RefusedError):
                    raise
            else:
                return

    async def release(
        self, run_ids: Iterable[str], devices: Iterable[Device], *, only: Iterable[SlotId] | None = None
    ) -> None:
        """Remove the claims of these launches on these devices; a Lease without claims is deleted.

        Args:
            only: Only these slots; None for all of them.

        Raises:
            ApiError: The server refused or did not respond.
        """
        released_ids, slots = set(run_ids), None if only is None else set(only)
        for node, gpu in devices:

            async def remaining(claims: Claims, node: str = node, gpu: int = gpu) -> Claims:
                return {
                    slot: claim
                    for slot, claim in claims.items()
                    if claim.get("run_id") not in released_ids
                    or (slots is not None and SlotId(node, gpu, int(slot)) not in slots)
                }

            await self._change((node, gpu), remaining)

    async def sweep(self) -> int:
        """Remove claims that are no longer valid, and Leases without claims; return the number of removed claims.

        Raises:
            ApiError: The Leases cannot be listed or changed.
        """
        count = 0
        for lease in await self._api.list("Lease", self.namespace, labels=_SELECTOR):
            device = device_of(lease)
            if device is None:
                continue
            claims = claims_of(lease)
            stale = {slot: claim for slot, claim in claims.items() if not await self.is_valid(device, slot, claim)}
            if stale or not claims:
                count += len(stale)

                async def remaining(current: Claims, stale: Claims = stale) -> Claims:
                    # Compared by value: a slot may have been claimed again since the list.
                    return {slot: claim for slot, claim in current.items() if stale.get(slot) != claim}

                await self._change(device, remaining)
        return count

    async def counts_of(self, run_id: str) -> dict[Device, int]:
        """Return the number of claims of a launch per device, without zeros; ApiError if unknown."""
        counts: dict[Device, int] = {}
        for lease in await self._api.list("Lease", self.namespace, labels=labels.MANAGED):
            number = sum(claim.get("run_id") == run_id for claim in claims_of(lease).values())
            if number and (device := device_of(lease)) is not None:
                counts[device] = number
        return counts

    # --- several devices ------------------------------------------------------------------------------------
    async def _claim_devices(self, slots: SlotsByDevice, seconds: float, lanes: int) -> None:
        """Claim slots of several devices in order; raise the first error once no request is in flight."""
        gate = asyncio.Semaphore(lanes)
        failures: list[BaseException] = []

        async def claim(device: Device, claimants: Mapping[int, Claimant]) -> None:
            async with gate:
                if failures:
                    return
                try:
                    await self._claim_device(device, claimants, seconds)
                except (RefusedError, BackendError) as error:
                    failures.append(error)

        # Errors are collected, not raised inside the group: the group would cancel requests whose result is then
        # unknown, and the undo must not run concurrently with a request that still writes a claim.
        async with asyncio.TaskGroup() as group:
            for device, claimants in slots.items():
                group.create_task(claim(device, claimants))
        if failures:
            raise failures[0]

    # --- one device -----------------------------------------------------------------------------------------
    async def _claim_device(self, device: Device, claimants: Mapping[int, Claimant], seconds: float) -> None:
        until = self._api.now() + seconds
        added: Claims = {
            str(slot): {"run": holder.run, "run_id": holder.run_id, "namespace": holder.namespace, "until": until}
            | ({_SCALING: True} if holder.is_scaling else {})
            | ({_COUNTED: True} if holder.is_counted else {})
            for slot, holder in claimants.items()
        }

        async def with_added(claims: Claims) -> Claims:
            await self._refuse_valid(device, claims, added)
            return {**claims, **added}

        for _ in range(_ATTEMPTS):
            # Most devices have no Lease yet, so creating one first saves the read.
            if await self._create_lease(device, added) or await self._swap(device, with_added, is_creating=True):
                return
        raise _busy(device)

    async def _refuse_valid(self, device: Device, claims: Claims, added: Claims) -> None:
        """Refuse if another run has a valid claim on a slot that is to be claimed."""
        problems: dict[SlotId, str] = {}
        for slot, claim in added.items():
            other = claims.get(slot)
            if other is None or other.get("run_id") == claim["run_id"]:
                continue
            if await self.is_valid(device, slot, other):
                slot_id, holder = SlotId(*device, int(slot)), other.get("run") or "another run"
                # Two namespaces often have a run of the same name, such as that of the spec.
                if (namespace := other.get("namespace") or claim["namespace"]) != claim["namespace"]:
                    holder = f"{holder} in the namespace {namespace}"
                sentence = f"Slot {slot_id} was claimed by {holder} just now, so {claim['run']} cannot sit there."
                problems[slot_id] = sentence
        if problems:
            raise SlotTakenError(next(iter(problems.values())), problems)

    async def is_valid(self, device: Device, slot: str, claim: Mapping[str, Any]) -> bool:
        """Return whether a claim still reserves its slot."""
        until = claim.get("until")
        is_in_time = isinstance(until, int | float) and self._api.now() < until
        run, run_id, namespace = (str(claim.get(key, "")) for key in ("run", "run_id", "namespace"))
        selector = f"{labels.RUN_ID}={run_id},{labels.HOST}={labels.label_value(device[0])}"
        try:
            if claim.get(_COUNTED):
                # Once its pods exist, the node's counts include them, and the slot represents another unit.
                pods = await self._api.list("Pod", namespace, labels=selector) if is_in_time else ()
                return is_in_time and not any(labels.GPU not in _labels_of(pod) for pod in pods)
            run_object = await self._api.read("ConfigMap", namespace, labels.run_object(run))
            if ((run_object["metadata"].get("labels")) or {}).get(labels.RUN_ID) != run_id:
                return is_in_time  # another launch of the same name
            controllers = [
                controller
                for kind in ("Job", "ReplicaSet")
                for controller in await self._api.list(kind, namespace, labels=selector)
                if _has_slot(controller, device[1], int(slot))
            ]
        except ApiError as error:
            if error.is_not_found:
                return is_in_time
            if error.is_forbidden or is_in_time:
                return True  # another user's run in a namespace that we may not read: assume that it exists
            raise
        if not all(map(_has_ended, controllers)):
            return True
        # Its launch may be about to create the only controller, and a scale another one.
        return is_in_time and (not controllers or bool(claim.get(_SCALING)))

    async def _change(self, device: Device, edit: Edit) -> None:
        """Edit the claims of a device; a device without a Lease has none."""
        for _ in range(_ATTEMPTS):
            if await self._swap(device, edit):
                return
        raise _busy(device)

    async def _create_lease(self, device: Device, claims: Claims) -> bool:
        """Create the Lease of a device; return False if it already exists."""
        try:
            await self._api.create(self._lease(device, claims))
        except ApiError as error:
            if error.is_conflict or error.is_taken:
                return False
            raise
        return True

    async def _swap(self, device: Device, edit: Edit, *, is_creating: bool = False) -> bool:
        """Read, edit and write one Lease; return False if it was written by someone else in between."""
        name = labels.slot_lease(*device)
        lease = await self._api.find("Lease", self.namespace, name) or {}
        if not lease and not is_creating:
            return True
        before, meta = claims_of(lease), lease.get("metadata") or {}
        after = await edit(before)
        try:
            if not lease:
                await self._api.create(self._lease(device, after))
            elif not after:
                # Both preconditions: without them a Lease that got a new claim meanwhile would be deleted too.
                uid, version = meta["uid"], meta["resourceVersion"]
                await self._api.delete("Lease", self.namespace, name, uid=uid, resource_version=version)
            elif after != before:
                meta["annotations"] = {**(meta.get("annotations") or {}), labels.CLAIMS: _json(after)}
                lease["spec"] = {**(lease.get("spec") or {}), "renewTime": _now()}
                await self._api.replace(lease)
        except ApiError as error:
            if error.is_conflict or error.is_not_found:
                return False
            raise
        return True

    def _lease(self, device: Device, claims: Claims) -> dict[str, Any]:
        meta = {
            "namespace": self.namespace,
            "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: "slot-claims"},
            "annotations": {labels.CLAIMS: _json(claims), labels.HOST: _written(device)},
        }
        spec = {"holderIdentity": labels.MANAGED_BY, "acquireTime": _now(), "renewTime": _now()}
        return new_object("Lease", labels.slot_lease(*device), meta=meta, spec=spec)


def claims_of(lease: Mapping[str, Any]) -> Claims:
    """Return the claims on a Lease by slot; entries that cannot be read are ignored."""
    # Anyone with permission for Leases can edit the annotation, so its content is untrusted.
    text = ((lease.get("metadata") or {}).get("annotations") or {}).get(labels.CLAIMS, "")
    try:
        claims = bounded_json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(claims, dict):
        return {}
    return {slot: claim for slot, claim in claims.items() if slot.isdecimal() and isinstance(claim, dict)}


def device_of(lease: Mapping[str, Any]) -> Device | None:
    """Return the device of a Lease; None if its annotation is missing or invalid."""
    # From the annotation, not from the name: names are truncated to 253 characters.
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    node, _, gpu = str(annotations.get(labels.HOST, "")).rpartition("/")
    index = device_index(gpu)
    return (node, index) if node and index is not None else None


def seats_of(controller: Mapping[str, Any]) -> list[tuple[int, tuple[int, ...]]]:
    """Return index and slots of each seat of a controller; empty if they cannot be read."""
    text = ((controller.get("metadata") or {}).get("annotations") or {}).get(labels.SEATS, "[]")
    try:
        return [(int(index), tuple(map(int, slots))) for index, slots in bounded_json.loads(text)]
    except (ValueError, TypeError, OverflowError):  # 1e999 is a valid number in JSON, but not an index
        return []


def _labels_of(item: Mapping[str, Any]) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("labels") or {}


def _has_slot(controller: Mapping[str, Any], gpu: int, slot: int) -> bool:
    """Return True for a controller that would start a pod on a slot."""
    gpus = labels.gpu_indices(_labels_of(controller).get(labels.GPU, ""))
    # Pods with several GPUs use all slots of each.
    return gpu in gpus and (len(gpus) > 1 or any(slot in slots for _, slots in seats_of(controller)))


def _has_ended(controller: Mapping[str, Any]) -> bool:
    """Return whether a Job has ended, successfully or not; a ReplicaSet never ends."""
    conditions = (controller.get("status") or {}).get("conditions") or ()
    return any(
        condition.get("type") in ("Complete", "Failed") and condition.get("status") == "True"
        for condition in conditions
    )


def _busy(device: Device) -> BackendError:
    return BackendError(f"The claims on {_written(device)} change all the time.", "Try again.")


def _written(device: Device) -> str:
    return f"{device[0]}/{device_name(device[1])}"


def _json(claims: Claims) -> str:
    return json.dumps(claims, separators=(",", ":"), sort_keys=True)


def _now() -> str:
    """Return the time as Kubernetes' MicroTime, which requires exactly six decimals and ``Z``."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
