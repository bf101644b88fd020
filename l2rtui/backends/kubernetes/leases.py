"""Claims on slots, so that of two people who place on the last slot at once exactly one wins.

One Lease stands for one GPU; an annotation of it says which run claims which slot. A claim is made by compare and
swap: the Lease is read, and written back only if its resourceVersion is still that. Several GPUs are claimed at
once, which is quick; where that fails, what was claimed is given back, and they are claimed one after another in
the order of their names. Two launches that want the same ones meet at the first of them then, and one gets through;
a few tries with pauses see to it that what a launch has not given back yet refuses nobody.

A claim counts until its time is over, and after that as long as a controller of its run would put a pod on the
slot. What a launch that died has claimed is free again when the time is over.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.domain.node import SlotId
from l2rtui.errors import BackendError, RefusedError

CLAIM_SECONDS: Final = 120.0
"""How long a claim holds by itself: longer than a launch takes from claiming to its last controller."""
_AT_ONCE: Final = 8
"""Leases that are written at the same time."""
_ATTEMPTS: Final = 50
_SELECTOR: Final = f"{labels.APP_MANAGED_BY}={labels.MANAGED_BY},{labels.APP_COMPONENT}=slot-claims"

Device = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: a launch of a run.

    Attributes:
        namespace: Where the run lives, which need not be where the Lease does.
    """

    run: str
    run_id: str
    namespace: str


def wanted(claimants: Mapping[Claimant, Iterable[SlotId]]) -> dict[Device, dict[int, Claimant]]:
    """Slots by device, in the order in which they are claimed."""
    found: dict[Device, dict[int, Claimant]] = {}
    for claimant, slots in claimants.items():
        for slot in slots:
            found.setdefault((slot.node, slot.gpu), {})[slot.slot] = claimant
    return dict(sorted(found.items()))


async def acquire(
    api: Api, namespace: str, slots: Mapping[Device, Mapping[int, Claimant]], *, seconds: float = CLAIM_SECONDS
) -> None:
    """Claim all slots, or none of them.

    Args:
        namespace: Where the Leases are.
        slots: What ``wanted`` gives.

    Raises:
        RefusedError: another run has one of them; names it. Nothing stays claimed.
        ApiError: the server refused or did not answer. Nothing stays claimed, as far as the server can be asked.
    """
    run_ids = {claimant.run_id for claims in slots.values() for claimant in claims.values()}
    mine = [SlotId(*device, slot) for device, claims in slots.items() for slot in claims]
    for number, at_once in enumerate(tries := (_AT_ONCE, 1, 1, 1) if len(slots) > 1 else (1,)):
        if number > 1:
            await asyncio.sleep(random.uniform(0.05, 0.3))  # noqa: S311  (no secret)
        try:
            await _acquire_all(api, namespace, slots, seconds, at_once)
        except (RefusedError, ApiError, asyncio.CancelledError) as error:
            await asyncio.shield(asyncio.ensure_future(release(api, namespace, run_ids, slots, only=mine)))
            if number + 1 == len(tries) or not isinstance(error, RefusedError):
                raise
        else:
            return


async def release(
    api: Api,
    namespace: str,
    run_ids: Iterable[str],
    devices: Iterable[Device],
    *,
    only: Iterable[SlotId] | None = None,
) -> None:
    """Give up what these launches claim of these devices; a Lease that holds nothing more is deleted.

    Args:
        only: Just these slots; None means all of them.

    Raises:
        ApiError: the server refused or did not answer.
    """
    gone, meant = set(run_ids), None if only is None else set(only)
    for node, gpu in devices:
        await _change(
            api,
            namespace,
            (node, gpu),
            lambda claims, node=node, gpu=gpu: {
                slot: claim
                for slot, claim in claims.items()
                if claim.get("run_id") not in gone
                or (meant is not None and SlotId(node, gpu, int(slot)) not in meant)
            },
            is_creating=False,
        )


async def sweep(api: Api, namespace: str) -> int:
    """Remove claims that no longer count, and Leases that hold none; how many claims went.

    Raises:
        ApiError: the Leases cannot be listed or changed.
    """
    count = 0
    for lease in await api.list("Lease", namespace, labels=_SELECTOR):
        device = _device(lease)
        if device is None:
            continue
        claims = claims_of(lease)
        dead = [slot for slot, claim in claims.items() if not await _counts(api, device, slot, claim)]
        if dead or not claims:
            count += len(dead)
            stale = {slot: claims[slot] for slot in dead}
            await _change(
                api,
                namespace,
                device,
                lambda now, stale=stale: {slot: claim for slot, claim in now.items() if stale.get(slot) != claim},
                is_creating=False,
            )
    return count


def claims_of(lease: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Claims of a Lease by slot; what cannot be read is no claim."""
    text = ((lease.get("metadata") or {}).get("annotations") or {}).get(labels.CLAIMS, "")
    try:
        claims = json.loads(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(claims, dict):
        return {}
    return {slot: claim for slot, claim in claims.items() if slot.isdecimal() and isinstance(claim, dict)}


async def _acquire_all(
    api: Api, namespace: str, slots: Mapping[Device, Mapping[int, Claimant]], seconds: float, at_once: int
) -> None:
    """Claim slots of several devices, in their order; the first error, once nothing is under way any more."""
    lanes = asyncio.Semaphore(at_once)
    failures: list[BaseException] = []

    async def one(device: Device, claims: Mapping[int, Claimant]) -> None:
        async with lanes:
            if failures:
                return
            try:
                await _acquire_one(api, namespace, device, claims, seconds)
            except (RefusedError, BackendError) as error:
                failures.append(error)

    async with asyncio.TaskGroup() as group:
        for device, claims in slots.items():
            group.create_task(one(device, claims))
    if failures:
        raise failures[0]


async def _acquire_one(
    api: Api, namespace: str, device: Device, mine: Mapping[int, Claimant], seconds: float
) -> None:
    """Claim slots of one device."""
    until = time.time() + seconds
    added = {
        str(slot): {"run": one.run, "run_id": one.run_id, "namespace": one.namespace, "until": until}
        for slot, one in mine.items()
    }

    async def join(claims: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for slot, claim in added.items():
            other = claims.get(slot)
            if other is None or other.get("run_id") == claim["run_id"]:
                continue
            if await _counts(api, device, slot, other):
                run = other.get("run") or "another run"
                raise RefusedError(
                    f"Slot {device[0]}/{device[1]}.{slot} was claimed by {run} just now, "
                    f"so {claim['run']} cannot sit there.",
                    "Plan again.",
                )
        return {**claims, **added}

    for _ in range(_ATTEMPTS):
        if await _begun(api, namespace, device, added) or await _swap(
            api, namespace, device, join, is_creating=True
        ):
            return
    raise BackendError(f"The claims on {device[0]}/{device[1]} change all the time.", "Try again.")


async def _change(api: Api, namespace: str, device: Device, edit: Any, *, is_creating: bool) -> None:
    async def later(claims: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        changed: dict[str, dict[str, Any]] = edit(claims)
        return changed

    for _ in range(_ATTEMPTS):
        if await _swap(api, namespace, device, later, is_creating=is_creating):
            return
    raise BackendError(f"The claims on {device[0]}/{device[1]} change all the time.", "Try again.")


async def _begun(api: Api, namespace: str, device: Device, claims: dict[str, dict[str, Any]]) -> bool:
    """Make the Lease of a device that has none, as most have; False where it has one."""
    try:
        await api.create(_lease(namespace, device, claims))
    except ApiError as error:
        if error.is_conflict or error.is_taken:
            return False
        raise
    return True


async def _swap(api: Api, namespace: str, device: Device, edit: Any, *, is_creating: bool) -> bool:
    """Read, edit and write one Lease; False when somebody else was faster."""
    name = labels.claim_lease(*device)
    try:
        lease = await api.read("Lease", namespace, name)
    except ApiError as error:
        if not error.is_not_found:
            raise
        if not is_creating:
            return True
        lease = {}
    before = claims_of(lease)
    after = await edit(before)
    try:
        if not lease:
            await api.create(_lease(namespace, device, after))
        elif not after:
            meta = lease["metadata"]
            await api.delete("Lease", namespace, name, uid=meta["uid"], resource_version=meta["resourceVersion"])
        elif after != before:
            meta = lease["metadata"]
            meta["annotations"] = {**(meta.get("annotations") or {}), labels.CLAIMS: _text(after)}
            lease["spec"] = {**(lease.get("spec") or {}), "renewTime": _now()}
            await api.replace(lease)
    except ApiError as error:
        if error.is_conflict or error.is_not_found:
            return False
        raise
    return True


async def _counts(api: Api, device: Device, slot: str, claim: Mapping[str, Any]) -> bool:
    """Whether a claim still holds its slot."""
    until = claim.get("until")
    if isinstance(until, int | float) and time.time() < until:
        return True
    run, run_id, namespace = (str(claim.get(key, "")) for key in ("run", "run_id", "namespace"))
    try:
        run_object = await api.read("ConfigMap", namespace, labels.run_object(run))
    except ApiError as error:
        if error.is_not_found:
            return False
        if error.is_forbidden:
            return True  # a run of somebody else, in a namespace that we may not read
        raise
    if ((run_object["metadata"].get("labels")) or {}).get(labels.RUN_ID) != run_id:
        return False  # another launch under the same name
    where = f"{labels.RUN_ID}={run_id},{labels.HOST}={labels.label_value(device[0])},{labels.GPU}={device[1]}"
    found = [
        one
        for kind in ("Job", "ReplicaSet")
        for one in await api.list(kind, namespace, labels=where)
        if not is_over(one)
    ]
    return any(int(slot) in slots for one in found for slots in _seats(one))


def is_over(controller: Mapping[str, Any]) -> bool:
    """Whether a Job has ended, well or not; a ReplicaSet never does."""
    conditions = (controller.get("status") or {}).get("conditions") or ()
    return any(one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions)


def _seats(controller: Mapping[str, Any]) -> list[list[int]]:
    text = ((controller.get("metadata") or {}).get("annotations") or {}).get(labels.SEATS, "[]")
    try:
        return [list(slots) for _, slots in json.loads(text)]
    except (ValueError, TypeError):
        return []


def _device(lease: Mapping[str, Any]) -> Device | None:
    annotations = (lease.get("metadata") or {}).get("annotations") or {}
    node, _, gpu = str(annotations.get(labels.HOST, "")).rpartition("/")
    return (node, int(gpu)) if node and gpu.isdecimal() else None


def _lease(namespace: str, device: Device, claims: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": labels.claim_lease(*device),
            "namespace": namespace,
            "labels": {labels.APP_MANAGED_BY: labels.MANAGED_BY, labels.APP_COMPONENT: "slot-claims"},
            "annotations": {labels.CLAIMS: _text(claims), labels.HOST: f"{device[0]}/{device[1]}"},
        },
        "spec": {"holderIdentity": labels.MANAGED_BY, "acquireTime": _now(), "renewTime": _now()},
    }


def _text(claims: Mapping[str, Any]) -> str:
    return json.dumps(claims, separators=(",", ":"), sort_keys=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
