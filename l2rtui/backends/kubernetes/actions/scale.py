"""Scale and kill: change the number of a set's pods, or delete pods that their set then replaces.

When scaling, claims come first and the run's spec comes last. A controller chooses which of its pods it stops. The
annotation ``controller.kubernetes.io/pod-deletion-cost`` makes it choose ours if the server supports it (1.22 and
later; ReplicaSets only).

Kill deletes each pod by its uid, so that a replacement of the same name is not deleted. A worker that shares its
pod is stopped by the supervisor in the pod, and the other workers continue.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from l2rtui.backends.common.refusals import SlotTakenError, pod_exists, refuse_taken_slots
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_races
from l2rtui.backends.kubernetes.actions.run_object import decode_spec, owner_reference, read_run
from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, Device, SlotLeases, seats_of, slots_by_device
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.state.own_reports import pod_of
from l2rtui.backends.kubernetes.streams.channels import capture
from l2rtui.domain.node import SlotId, device_index
from l2rtui.domain.plan import PodPlan, RunPlan, ScalePlan
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.workload import SetSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_ATTEMPTS: Final = 10
Manifest = dict[str, Any]


async def scale(context: ClusterContext, plan: ScalePlan, *, grace_seconds: float | None = None) -> None:
    """Execute a plan; return when the server has recorded the new number of replicas.

    Args:
        grace_seconds: For the removed pods; None for their own.

    Raises:
        NotFoundError: The run does not exist.
        RefusedError: The set was scaled, or a slot was taken, after the plan was made; nothing was changed.
        ApiError: The server refused or did not respond; repeating the call does the missing steps.
    """
    owner = await read_run(context.api, context.namespace, plan.run)
    leases = SlotLeases(context.api, await context.lease_namespace())
    await _Scale(context, plan, owner, leases).run(grace_seconds)


class _Scale:
    """One change of one set; ``owner`` is the run's ConfigMap."""

    def __init__(self, context: ClusterContext, plan: ScalePlan, owner: Manifest, leases: SlotLeases) -> None:
        self._context, self._plan, self._owner = context, plan, owner
        self._api, self._namespace = context.api, context.namespace
        self._leases = leases
        self._since = ""
        spec = decode_spec(owner)
        set_spec = spec.set_named(plan.set_name)
        if set_spec is None:
            raise NotFoundError(f"{plan.run} has no set {plan.set_name}.", "See `l2rtui runs -o wide`.")
        self._set_spec: SetSpec = set_spec
        meta = owner["metadata"]
        run_id = (meta.get("labels") or {}).get(labels.RUN_ID, "")
        user = (meta.get("annotations") or {}).get(labels.OWNER, "")
        self._run = RunPlan(run_id, spec.with_replicas(plan.set_name, plan.replicas), user, plan.added)

    async def run(self, grace_seconds: float | None) -> None:
        plan = self._plan
        kind = render.controller_kind(self._set_spec)
        selector = f"{labels.RUN_ID}={self._run.uid},{labels.SET}={plan.set_name}"
        # Items of a list have no kind of their own (API conventions: the list carries it).
        items = await self._api.list(kind, self._namespace, labels=selector)
        controllers = [{**item, "kind": kind} for item in items]
        seated = {index for controller in controllers for index, _ in seats_of(controller)}
        # `kubectl scale` leaves the seats of the pods that it has stopped: the plan fills them again.
        short = (item for item in controllers if render.replicas_of(item) < len(seats_of(item)))
        vacant = {index for item in short for index, _ in seats_of(item)} & {pod.index for pod in plan.added}
        if double := next((pod.name for pod in plan.added if pod.index in seated - vacant), ""):
            raise pod_exists(plan.run, plan.set_name, double)
        await self._claim()
        removed = {index for index in seated if index >= plan.replicas // self._set_spec.workers_in_pod} | vacant
        freed = await self._shrink(controllers, removed, grace_seconds, plan.added)
        await self._grow(controllers)
        try:
            await slot_races.refuse_lost_slots(self._context, [self._run], self._since, set(plan.overcommitted))
        except SlotTakenError:
            await self._take_back(kind, selector)
            raise
        # The spec is written last: where something above failed, the same scale can be asked for again.
        await self._record()
        if freed and await self._leases.is_permitted():
            devices = {(slot.node, slot.gpu) for slot in freed}
            await self._leases.release([self._run.uid], devices, only=freed)

    async def _take_back(self, kind: str, selector: str) -> None:
        """Stop the replicas that were added, and give up their claims."""
        items = await self._api.list(kind, self._namespace, labels=selector)
        controllers = [{**item, "kind": kind} for item in items]
        freed = await self._shrink(controllers, {pod.index for pod in self._plan.added}, None)
        if freed and await self._leases.is_permitted():
            await self._leases.release([self._run.uid], {(slot.node, slot.gpu) for slot in freed}, only=freed)

    async def _claim(self) -> None:
        shared = set(self._plan.overcommitted)
        slots = [slot for pod in self._plan.added for slot in pod.seat.slots if slot not in shared]
        if not any(pod.seat.slots for pod in self._plan.added):
            return
        if slots and await self._leases.is_permitted():
            is_counted = self._set_spec.pod.binding.is_counted and not self._set_spec.pod.binding.chooses_gpu
            claimant = Claimant(
                self._plan.run, self._run.uid, self._namespace, is_scaling=True, is_counted=is_counted
            )
            await self._leases.claim(slots_by_device({claimant: slots}))
        try:
            self._since = await slot_races.revision(self._context)
            refuse_taken_slots(self._plan.added, await self._context.snapshot(), shared)
        except RefusedError:
            devices = {(slot.node, slot.gpu) for slot in slots}
            # Only these slots: the run's other replicas keep their claims.
            with suppress(ApiError, BackendError):
                await self._leases.release([self._run.uid], devices, only=slots)
            raise

    # --- fewer ----------------------------------------------------------------------------------------------
    async def _shrink(
        self,
        controllers: Sequence[Manifest],
        removed: set[int],
        grace_seconds: float | None,
        coming: Sequence[PodPlan] = (),
    ) -> set[SlotId]:
        """Remove seats from their controllers, and pods beyond their seats; return the slots that become free.

        Args:
            coming: Replicas that are added next: their controllers and slots are kept.
        """
        freed: set[SlotId] = set()
        if not removed and all(render.replicas_of(item) <= len(seats_of(item)) for item in controllers):
            return freed
        used_again = {_key_of(group) for group in render.groups_of(coming)}
        slots_again = {slot for pod in coming for slot in pod.seat.slots}
        # Before the controllers shrink: afterwards they would already have chosen pods themselves.
        leaving = await self._mark_leaving()
        for controller in controllers:
            seats = seats_of(controller)
            remaining = [seat for seat in seats if seat[0] not in removed]
            if len(remaining) == len(seats) >= render.replicas_of(controller):
                continue
            device = _device(controller)
            if device is not None:
                # An over-committed slot stays claimed for the replica that still uses it.
                used = {slot for _, slots in remaining for slot in slots}
                gone = {slot for index, slots in seats if index in removed for slot in slots}
                freed |= {SlotId(*device, slot) for slot in gone - used} - slots_again
            if remaining or _key(controller) in used_again:
                await self._resize(controller, remaining)
            else:  # its pods are deleted with it
                meta = controller["metadata"]
                try:
                    await self._api.delete(
                        controller["kind"], self._namespace, meta["name"], uid=meta["uid"], propagation="Background"
                    )
                except ApiError as error:
                    # Already deleted. Any other refusal must be reported: the pods keep running.
                    if not (error.is_not_found or error.is_conflict):
                        raise
        if grace_seconds is not None:
            # A controller deletes with the pod's own grace; a second deletion may only shorten it.
            grace = round(grace_seconds)
            for name, uid in leaving:
                with suppress(ApiError):  # its controller was faster
                    await self._api.delete("Pod", self._namespace, name, uid=uid, grace_seconds=grace)
        return freed

    async def _mark_leaving(self) -> list[tuple[str, str]]:
        """Give the pods to remove the lowest deletion cost; return their names and uids."""
        # For pods with several workers the plan names the workers.
        shared = self._set_spec.workers_in_pod > 1
        removed = {name.rpartition(".")[0] if shared else name for name in self._plan.removed}
        leaving = []
        for pod in await self._api.list("Pod", self._namespace, labels=f"{labels.RUN_ID}={self._run.uid}"):
            meta = pod["metadata"]
            if meta["name"] in removed:
                leaving.append((meta["name"], meta["uid"]))
                body = {"metadata": {"annotations": {_DELETION_COST: "-1000"}}}
                with suppress(ApiError):  # gone, or may not be changed: then another pod is removed
                    await self._api.patch("Pod", self._namespace, meta["name"], body)
        return leaving

    # --- more -----------------------------------------------------------------------------------------------
    async def _grow(self, controllers: Sequence[Manifest]) -> None:
        """Add replicas to the controllers of their devices, and create missing controllers."""
        by_device: dict[tuple[str, str], Manifest] = {}
        for controller in controllers:
            by_device[_key(controller)] = controller
        missing: list[PodPlan] = []
        for group in render.groups_of(self._run.pods):
            existing = by_device.get(_key_of(group))
            if existing is None:
                missing.extend(group.pods)
                continue
            # Read again: _shrink() may have changed the seats of this controller.
            latest = await self._api.read(existing["kind"], self._namespace, existing["metadata"]["name"])
            added = [render.seat_of(pod) for pod in group.pods]
            await self._resize(latest, sorted((*seats_of(latest), *added)))
        # Numbers of deleted controllers are not reused, so a name never refers to two controllers.
        run, set_name = self._plan.run, self._plan.set_name
        first = 1 + max((_number(controller, run, set_name) for controller in controllers), default=-1)
        server = await self._context.server_facts([self._run.spec])
        for group in render.groups_of(missing, first):
            manifest = render.controller(self._run, group, server)
            owners = [owner_reference(self._owner)]
            manifest["metadata"] |= {"namespace": self._namespace, "ownerReferences": owners}
            await self._api.create(manifest)

    async def _resize(self, controller: Manifest, seats: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        text = json.dumps([[index, list(slots)] for index, slots in seats], separators=(",", ":"))
        # One patch, so that no reader sees seats that do not match the number of pods.
        annotations = {"annotations": {labels.SEATS: text}}
        spec: Manifest = {render.replicas_field(controller["kind"]): len(seats)}
        if (
            controller["kind"] == "ReplicaSet"
        ):  # a user who may only read pods finds it there; that of a Job cannot change
            spec["template"] = {"metadata": annotations}
        body = {"metadata": annotations, "spec": spec}
        await self._api.patch(controller["kind"], self._namespace, controller["metadata"]["name"], body)

    async def _record(self) -> None:
        """Write the new number of replicas into the run's spec; keep concurrent changes of other fields."""
        name = labels.run_object(self._plan.run)
        for _ in range(_ATTEMPTS):
            config_map = await self._api.read("ConfigMap", self._namespace, name)
            spec = decode_spec(config_map).with_replicas(self._plan.set_name, self._plan.replicas)
            config_map["data"][labels.SPEC_KEY] = render.spec_json(spec)
            try:
                await self._api.replace(config_map)
            except ApiError as error:
                if not error.is_conflict:
                    raise
            else:
                return
        raise BackendError(f"The ConfigMap {name} changes all the time.", "Try again.")


def _key(controller: Manifest) -> tuple[str, str]:
    """Return node and GPUs of a controller, as labels: no two controllers of a set share them."""
    own_labels = controller["metadata"].get("labels") or {}
    return own_labels.get(labels.HOST, ""), own_labels.get(labels.GPU, "")


def _key_of(group: render.Group) -> tuple[str, str]:
    """Return the same of a controller that does not exist yet."""
    return labels.label_value(group.node), labels.gpus_label(group.gpus)


def _device(controller: Manifest) -> Device | None:
    """Return the node and GPU that a controller's pods are pinned to; None if they are not pinned."""
    selector = controller["spec"]["template"]["spec"].get("nodeSelector") or {}
    gpu = (controller["metadata"].get("labels") or {}).get(labels.GPU, "")
    node = selector.get(labels.HOSTNAME, "")
    index = device_index(gpu)
    return (node, index) if node and index is not None else None


def _number(controller: Manifest, run: str, set_name: str) -> int:
    """Return the number at the end of a controller's name; the first has none and counts as 0."""
    suffix = str(controller["metadata"]["name"]).removeprefix(f"{run}-{set_name}").removeprefix("-g")
    return int(suffix) if suffix.isdecimal() else 0


_AT_ONCE = 16
_TRIES = 5


async def kill(api: Api, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
    """Stop these pods: SIGTERM, grace, SIGKILL. Returns when the server has accepted each deletion.

    Args:
        grace_seconds: None for the pod's own. Values below 1 become 1: a grace of 0 would remove the pod from the
            API while its process may survive.

    Raises:
        NotFoundError: Some pods no longer exist; the others are stopped.
        ApiError: The server refused or failed. The message names the first such pod; the others are stopped.
    """
    grace = None if grace_seconds is None else max(1, math.ceil(grace_seconds))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def kill_one(pod: PodView) -> bool:
        async with gate:
            return await _kill(api, pod, grace)

    async def kill_in(pod: PodView, workers: Sequence[int]) -> bool:
        async with gate:
            return await _kill_workers(api, pod, workers, grace)

    shared: dict[str, tuple[PodView, list[int]]] = {}
    for pod in pods:
        if pod.worker is not None:
            workers_pod = pod_of(pod)
            shared.setdefault(workers_pod.uid, (workers_pod, []))[1].append(pod.worker)
    pods = [pod for pod in pods if pod.worker is None]
    calls = [*(kill_one(pod) for pod in pods), *(kill_in(*item) for item in shared.values())]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    gone = [pod.name for pod, was_there in zip(pods, outcomes, strict=False) if not was_there]
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        raise NotFoundError(f"{', '.join(gone)} {verb} gone.", "Look at the pods again.")


async def _kill_workers(api: Api, pod: PodView, workers: Sequence[int], grace: int | None) -> bool:
    """Tell the supervisor in a pod to restart some of its workers."""
    numbers = ",".join(map(str, sorted(workers)))
    argv = ["l2r-runtime", "supervise", "--kill", numbers, *([] if grace is None else ["--grace", str(grace)])]
    output = await capture(api, pod, argv)
    if output.code:
        why = output.err.decode("utf-8", "replace").strip().removeprefix("l2r-runtime: ") or "it gave no reason"
        raise BackendError(f"Worker {numbers} of {pod.name} was not stopped: {why}.", "Look at the pods again.")
    return True


async def _kill(api: Api, pod: PodView, grace: int | None) -> bool:
    """Delete a pod; return whether it existed. Retried after a lost response."""
    pauses, may_be_deleted = RetryPauses(0.2), False
    for left in reversed(range(_TRIES)):
        try:
            await api.delete("Pod", pod.namespace or api.namespace, pod.name, uid=pod.uid, grace_seconds=grace)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:
                # After a lost response "not found" most likely means that our own deletion was carried out. The
                # HTTP client itself repeats a deletion after a broken connection; only this flag shows that.
                return may_be_deleted or error.is_repeated
            if left == 0 or error.is_final or error.is_invalid:
                raise
            may_be_deleted = may_be_deleted or error.is_unreachable
            await pauses.wait()
        else:
            return True
    raise AssertionError  # pragma: no cover  (the last round returns or raises)
