"""Scale a set: more or fewer pods in the controllers of its devices, claims first, the run's spec last.

A controller chooses which of its pods it stops; which ones are given up is told to it by the annotation
``controller.kubernetes.io/pod-deletion-cost`` where the server reads it (1.22 and later; ReplicaSets only).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from l2rtui.backends.kubernetes import labels, leases, render
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.launch import Look, can_claim, decode_spec, owner_reference, refuse_held
from l2rtui.backends.kubernetes.podspec import ServerFacts
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import PodPlan, RunPlan, ScalePlan
from l2rtui.domain.workload import SetSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_ATTEMPTS: Final = 10
Manifest = dict[str, Any]


async def scale(
    api: Api,
    plan: ScalePlan,
    *,
    namespace: str,
    server: ServerFacts,
    look: Look,
    claims_namespace: str = "",
    grace_seconds: float | None = None,
) -> None:
    """Carry out a plan; returns when the wish is recorded.

    Args:
        look: Gives a fresh snapshot, by which slots are judged once more after they are claimed.
        grace_seconds: For the pods that go; None leaves them their own.

    Raises:
        NotFoundError: there is no such run.
        RefusedError: somebody has scaled the set, or taken a slot, since the plan was made; nothing was changed.
        ApiError: the server refused or did not answer; asking again does what is missing.
    """
    claims_namespace = claims_namespace or namespace
    try:
        owner = await api.read("ConfigMap", namespace, labels.run_object(plan.run))
    except ApiError as error:
        if error.is_not_found:
            raise NotFoundError(f"There is no run {plan.run}.", "See `l2rtui runs`.") from error
        raise
    spec = decode_spec(owner)
    one = spec.set_named(plan.set_name)
    if one is None:
        raise NotFoundError(f"{plan.run} has no set {plan.set_name}.", "See `l2rtui runs -o wide`.")
    found = owner["metadata"]
    run_id = (found.get("labels") or {}).get(labels.RUN_ID, "")
    user = (found.get("annotations") or {}).get(labels.OWNER, "")
    run = RunPlan(run_id, spec.with_replicas(plan.set_name, plan.replicas), user, plan.added)
    selector = f"{labels.RUN_ID}={run_id},{labels.SET}={plan.set_name}"
    kind = render.controller_kind(one)
    controllers = [{**item, "kind": kind} for item in await api.list(kind, namespace, labels=selector)]
    seated = {index for controller in controllers for index, _ in seats_of(controller)}
    if double := next((pod.name for pod in plan.added if pod.index in seated), ""):
        raise RefusedError(f"{plan.run}/{plan.set_name} has {double} already.", "Plan again.")
    await _claim(api, plan, run, namespace, claims_namespace, look)
    gone = {index for index in seated if index >= plan.replicas}
    freed = await _shrink(api, controllers, namespace, gone, plan.removed, run_id, grace_seconds)
    await _grow(api, controllers, one, run, server, namespace, owner)
    await _record(api, namespace, plan)
    if freed and await can_claim(api, claims_namespace):
        devices = {(slot.node, slot.gpu) for slot in freed}
        await leases.release(api, claims_namespace, [run_id], devices, only=freed)


def seats_of(controller: Manifest) -> list[tuple[int, tuple[int, ...]]]:
    """Index and slots of each seat of a controller; an empty list where they cannot be read."""
    text = (controller["metadata"].get("annotations") or {}).get(labels.SEATS, "[]")
    try:
        return [(int(index), tuple(map(int, slots))) for index, slots in json.loads(text)]
    except (ValueError, TypeError):
        return []


async def _claim(
    api: Api, plan: ScalePlan, run: RunPlan, namespace: str, claims_namespace: str, look: Look
) -> None:
    slots = [slot for pod in plan.added for slot in pod.seat.slots]
    if not slots:
        return
    if await can_claim(api, claims_namespace):
        claimant = leases.Claimant(plan.run, run.uid, namespace)
        await leases.acquire(api, claims_namespace, leases.wanted({claimant: slots}))
    try:
        refuse_held(plan.added, await look())
    except RefusedError:
        devices = {(slot.node, slot.gpu) for slot in slots}
        with suppress(ApiError, BackendError):
            await leases.release(api, claims_namespace, [run.uid], devices, only=slots)
        raise


async def _shrink(
    api: Api,
    controllers: Sequence[Manifest],
    namespace: str,
    gone: set[int],
    removed: Sequence[str],
    run_id: str,
    grace_seconds: float | None,
) -> set[SlotId]:
    """Take seats from their controllers; the slots that become free."""
    freed: set[SlotId] = set()
    if not gone:
        return freed
    leaving = await _mark_leaving(api, namespace, run_id, removed)
    for controller in controllers:
        seats = seats_of(controller)
        kept = [seat for seat in seats if seat[0] not in gone]
        if len(kept) == len(seats):
            continue
        device = _device(controller)
        if device is not None:
            freed |= {SlotId(*device, slot) for index, slots in seats if index in gone for slot in slots}
        if kept:
            await _resize(api, controller, namespace, kept)
        else:  # its pods go with it
            meta = controller["metadata"]
            with suppress(ApiError):  # somebody else was faster; the look at the pods tells
                await api.delete(
                    controller["kind"], namespace, meta["name"], uid=meta["uid"], propagation="Background"
                )
    if grace_seconds is not None:
        for name, uid in leaving:
            with suppress(ApiError):  # its controller was faster
                await api.delete("Pod", namespace, name, uid=uid, grace_seconds=round(grace_seconds))
    return freed


async def _mark_leaving(api: Api, namespace: str, run_id: str, removed: Sequence[str]) -> list[tuple[str, str]]:
    """Make the pods that are to go the cheapest ones to their ReplicaSet; their names and uids."""
    wanted = set(removed)
    found = []
    for pod in await api.list("Pod", namespace, labels=f"{labels.RUN_ID}={run_id}"):
        meta = pod["metadata"]
        if meta["name"] in wanted:
            found.append((meta["name"], meta["uid"]))
            with suppress(ApiError):  # the pod has gone, or may not be changed: another one goes then
                await api.patch("Pod", namespace, meta["name"], {"metadata": {"annotations": {_COST: "-1000"}}})
    return found


async def _grow(
    api: Api,
    controllers: Sequence[Manifest],
    one: SetSpec,
    run: RunPlan,
    server: ServerFacts,
    namespace: str,
    owner: Manifest,
) -> None:
    """Give added replicas to the controllers of their devices, and make those that are missing."""
    by_device: dict[tuple[str, str], Manifest] = {}
    for controller in controllers:
        found = controller["metadata"].get("labels") or {}
        by_device[found.get(labels.HOST, ""), found.get(labels.GPU, "")] = controller
    new: list[PodPlan] = []
    for group in render.groups_of(run.pods):
        key = (labels.label_value(group.node), "" if group.gpu is None else str(group.gpu))
        existing = by_device.get(key)
        if existing is None:
            new.extend(group.pods)
            continue
        latest = await api.read(existing["kind"], namespace, existing["metadata"]["name"])
        added = [(pod.index, tuple(slot.slot for slot in pod.seat.slots)) for pod in group.pods]
        await _resize(api, latest, namespace, sorted((*seats_of(latest), *added)))
    first = 1 + max((_number(controller, run.spec.name, one.name) for controller in controllers), default=-1)
    for group in render.groups_of(new, first):
        manifest = render.controller(run, group, server)
        manifest["metadata"] |= {"namespace": namespace, "ownerReferences": [owner_reference(owner)]}
        await api.create(manifest)


async def _resize(
    api: Api, controller: Manifest, namespace: str, seats: Sequence[tuple[int, tuple[int, ...]]]
) -> None:
    key = "replicas" if controller["kind"] == "ReplicaSet" else "parallelism"
    text = json.dumps([[index, list(slots)] for index, slots in seats], separators=(",", ":"))
    body = {"metadata": {"annotations": {labels.SEATS: text}}, "spec": {key: len(seats)}}
    await api.patch(controller["kind"], namespace, controller["metadata"]["name"], body)


async def _record(api: Api, namespace: str, plan: ScalePlan) -> None:
    """Write the new number of replicas into the run's spec, over whatever else was changed meanwhile."""
    name = labels.run_object(plan.run)
    for _ in range(_ATTEMPTS):
        found = await api.read("ConfigMap", namespace, name)
        spec = decode_spec(found).with_replicas(plan.set_name, plan.replicas)
        found["data"][labels.SPEC_KEY] = render.spec_json(spec)
        try:
            await api.replace(found)
        except ApiError as error:
            if not error.is_conflict:
                raise
        else:
            return
    raise BackendError(f"The ConfigMap {name} changes all the time.", "Try again.")


def _device(controller: Manifest) -> leases.Device | None:
    """Node and GPU of a controller, as its pods are pinned."""
    selector = controller["spec"]["template"]["spec"].get("nodeSelector") or {}
    gpu = (controller["metadata"].get("labels") or {}).get(labels.GPU, "")
    node = selector.get(labels.HOSTNAME, "")
    return (node, int(gpu)) if node and gpu.isdecimal() else None


def _number(controller: Manifest, run: str, set_name: str) -> int:
    suffix = str(controller["metadata"]["name"]).removeprefix(f"{run}-{set_name}").removeprefix("-g")
    return int(suffix) if suffix.isdecimal() else 0
