"""Destroy: delete controllers, then pods, then the rest, the run's ConfigMap last; then count the remaining
objects.

An accepted deletion does not count as done. Every round lists the objects again and deletes those that still exist.
A lost response, a race with a launch that is still creating, or a killed destroy therefore needs no special
handling: the next round continues. The ConfigMap stays until all it owns is gone, so meanwhile everyone sees a run
that is being destroyed.

The proof in the receipt is two consecutive full counts that find nothing. A failed list proves nothing, and neither
does a pod that left the API while its node did not respond.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions.owned_objects import (
    CONTROLLERS,
    FOLLOWERS,
    Inventory,
    OwnedObject,
    OwnedObjects,
)
from l2rtui.backends.kubernetes.actions.run_object import spec_text
from l2rtui.backends.kubernetes.actions.slot_leases import Device, SlotLeases
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import NodeStruct, PodStruct
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.state.pod_reason import deletion_blocker, node_trouble
from l2rtui.domain.receipt import DestroyProgress, Leftover, Receipt
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import BackendError, NotFoundError
from runtime.base import bounded_json

_RELEASE_TRIES: Final = 6
_FIRST_PAUSE_SECONDS: Final = 0.1
Numbers = tuple[tuple[str, int], ...]
"""Kind and number of objects, as shown in the progress of a destroy."""
OVERTIME_SECONDS: Final = 75.0
"""Time beyond its grace after which the receipt lists a pod: the kubelet collects ended containers once a minute
(its ``ContainerGCPeriod``), and keeps their pod until then.
"""
REST_SECONDS: Final = 30.0
"""Time that objects without processes may take to disappear, counted from the last one that did."""
FORCED_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 1.0
"""Pause between the two last counts: a controller that was about to create one more pod has done so by then."""
_ROUND_SECONDS: Final = (0.2, 0.4, 0.8, 1.5)
_DEFAULT_GRACE_SECONDS: Final = 30.0  # Kubernetes' own terminationGracePeriodSeconds
_AT_ONCE: Final = 8
_LOOKUP_TRIES: Final = 8
_TRIES: Final = 5


async def node_troubles(api: Api, names: Iterable[str]) -> dict[str, str]:
    """Return nodes that cannot stop a container now, with the reason; unreadable nodes are left out."""
    troubles: dict[str, str] = {}
    for name in sorted({name for name in names if name}):
        try:
            node = bounded_json.decode(await api.request("GET", KINDS["Node"].path(None, name)), NodeStruct)
        except ApiError as error:
            if error.is_not_found:
                troubles[name] = f"its node {name} is gone"
        else:
            if trouble := node_trouble(node):
                troubles[name] = f"its node {name} {trouble}"
    return troubles


def leftover(
    item: OwnedObject, *, troubles: Mapping[str, str], refusals: Mapping[tuple[str, str], str], now: float
) -> Leftover:
    """Return the receipt's entry for an object that still exists.

    Args:
        troubles: Problems of nodes, by name.
        refusals: The server's response to the last deletion, by kind and uid.
        now: Seconds since the epoch.
    """
    node = item.pod.spec.node_name if item.pod else ""
    if item.is_going:
        reason = deletion_blocker(item.meta, troubles.get(node or "", ""), now)
    else:
        reason = refusals.get(item.key, "its deletion was not asked for")
    return Leftover(item.kind, item.meta.name, reason)


def was_alive(pod: PodStruct) -> bool:
    """Return whether a container of the pod may have been running when the pod was last listed."""
    if not pod.spec.node_name:
        return False
    statuses = (*pod.init_statuses, *pod.statuses)
    if any(status.state is not None and status.state.running is not None for status in statuses):
        return True
    # The phase counts as well: container statuses are missing until the kubelet has reported once.
    return (pod.status.phase or "") in ("Running", "Unknown")


def results_location(spec: str) -> str:
    """Return the volume claims that a destroy keeps, with their paths in the pods, from the ConfigMap's spec."""
    try:
        sets = bounded_json.loads(spec).get("sets", ())
        mounts = [
            mount
            for set_spec in sets
            for mount in (set_spec.get("pod") or {}).get("mounts") or ()
            if mount.get("claim")
        ]
    except (ValueError, AttributeError, TypeError):  # a spec of another version: the destroy continues without it
        return ""
    paths = {
        f"claim {mount['claim']}"
        + (f"/{mount['sub_path']}" if mount.get("sub_path") else "")
        + f" ({mount.get('path', '?')})"
        for mount in mounts
    }
    return ", ".join(sorted(paths))


class RunClaims:
    """Claims of one run: the highest count, and the problem if they could not be counted or removed.

    ``refusal`` is the reason why this user can never remove them; otherwise empty.
    """

    def __init__(self, leases: Sequence[SlotLeases], run_id: str) -> None:
        self.number = 0
        self.trouble = self.refusal = ""
        self._leases = leases
        self._run_id = run_id
        self._counted: set[SlotLeases] = set()

    async def count(self) -> dict[Device, int]:
        """Return the number of claims on each device; sets ``trouble`` if it is unknown."""
        return await self._retry(is_releasing=False)

    async def release(self) -> bool:
        """Release all claims; return whether none is left."""
        await self._retry(is_releasing=True)
        # Counted again: a launch in progress may have claimed again after the release.
        return not self.trouble and not await self._retry(is_releasing=False) and not self.trouble

    async def _retry(self, *, is_releasing: bool) -> dict[Device, int]:
        pauses = RetryPauses(_FIRST_PAUSE_SECONDS)
        for _ in range(_RELEASE_TRIES):
            try:
                counts: Counter[Device] = Counter()
                for leases in self._leases:
                    own = await self._counts_of(leases)
                    counts.update(own)
                    if is_releasing and own:
                        await leases.release([self._run_id], own)
                self.number = max(self.number, counts.total())
            except BackendError as error:
                cause = error.reason_left if isinstance(error, ApiError) else error.message
                self.trouble = f"could not be {'removed' if is_releasing else 'counted'}: {cause}"
                if isinstance(error, ApiError) and error.is_final:
                    self.refusal = self.trouble
                    return {}
                await pauses.wait()
            else:
                self.trouble = ""
                return counts
        return {}

    async def _counts_of(self, leases: SlotLeases) -> dict[Device, int]:
        try:
            counts = await leases.counts_of(self._run_id)
        except ApiError as error:
            if error.is_forbidden and leases not in self._counted:
                return {}  # a user who may not read Leases cannot have claimed through them
            raise
        if counts:
            self._counted.add(leases)
        return counts


async def destroy(
    context: ClusterContext,
    run: RunView,
    *,
    grace_seconds: float | None = None,
    purge: bool = False,
    force: bool = False,
    overtime_seconds: float = OVERTIME_SECONDS,
) -> AsyncGenerator[DestroyProgress | Receipt, None]:
    """Remove a run; see ``Backend.destroy``.

    Args:
        purge: Also delete volume claims that the run itself created; others are always kept.
        force: Remove pods from the API that exceed their grace. Their processes may survive, as the receipt
            reports.
        overtime_seconds: Time beyond the grace after which the receipt lists remaining pods.

    Raises:
        NotFoundError: No object of this run exists.
        ApiError: The server does not respond.
    """
    namespaces = await _lease_namespaces(context, run.namespace or context.namespace)
    leases = [SlotLeases(context.api, namespace) for namespace in namespaces]
    work = _Destroy(context, run, leases, grace_seconds, overtime_seconds, purge=purge, force=force)
    began = time.monotonic()
    last: DestroyProgress | None = None
    async with aclosing(work.rounds()) as rounds:
        async for numbers in rounds:
            if (progress := DestroyProgress(numbers, work.refusal)) != last:
                last = progress
                yield progress
    left = await work.left()
    yield Receipt(run.name, work.objects, left, time.monotonic() - began, work.kept, not_seen=work.not_seen)


async def _lease_namespaces(context: ClusterContext, namespace: str) -> tuple[str, ...]:
    """Return the namespaces that may have claims of a run; a server that fails for a moment is asked again."""
    pauses = RetryPauses(_FIRST_PAUSE_SECONDS)
    for left in reversed(range(_LOOKUP_TRIES)):
        try:
            return await context.lease_namespaces_of(namespace)
        except ApiError as error:
            if left == 0 or error.is_final or error.is_refused:
                raise
            await pauses.wait()
    raise AssertionError  # pragma: no cover  (the last round returns or raises)


class _Destroy:
    """One destroy in progress; ``kept`` tells the receipt where the results of the run remain, ``refusal`` why an
    object is not deleted now.
    """

    def __init__(
        self,
        context: ClusterContext,
        run: RunView,
        leases: Sequence[SlotLeases],
        grace_seconds: float | None,
        overtime_seconds: float,
        *,
        purge: bool,
        force: bool,
    ) -> None:
        self.kept = ""
        self._api = context.api
        self._run = run
        self._namespace = run.namespace or context.namespace
        # A grace of 0 removes a pod from the API immediately, before its process has ended ("force deletion").
        self._grace = None if grace_seconds is None else max(1, math.ceil(grace_seconds))
        self._overtime = overtime_seconds
        self._is_purging = purge
        self._is_forcing = force
        self._inventory = Inventory(context.api, self._namespace, run.name, run.uid)
        self._claims = RunClaims(leases, run.uid)
        self.refusal = ""
        self._refusals: dict[tuple[str, str], str] = {}
        self._forced: set[str] = set()
        self._is_refused = False
        self._final = OwnedObjects()

    @property
    def objects(self) -> int:
        """Number of objects that the run had, including its claims on slots."""
        return len(self._inventory.history) + self._claims.number

    @property
    def not_seen(self) -> str:
        """Kinds that the receipt says nothing about; see ``Receipt``."""
        return self._inventory.not_seen

    async def rounds(self) -> AsyncGenerator[Numbers, None]:
        """Delete and count until nothing is left or no progress is made; yield the numbers of each count."""
        count = await self._inventory.in_full()
        claims = await self._claims.count()
        if count.is_empty and not claims and not self._claims.trouble:
            raise NotFoundError(f"The run {self._run.name} is gone.", "Look at the runs again.")
        await self._mark(count)
        yield count.numbers
        async with aclosing(self._until_gone(self._limit(count))) as counts:
            async for numbers in counts:
                yield numbers
        if self._is_forcing:
            await self._force()
            async with aclosing(self._until_gone(FORCED_SECONDS)) as counts:
                async for numbers in counts:
                    yield numbers
        async with aclosing(self._finish()) as counts:
            async for numbers in counts:
                yield numbers

    async def left(self) -> tuple[Leftover, ...]:
        """Return the remaining objects, each with its reason; an empty result is the proof."""
        pods = [item.pod for item in self._inventory.history.values() if item.pod is not None]
        troubles = await node_troubles(self._api, (pod.spec.node_name or "" for pod in pods))
        now = time.time()
        rest = self._rest(self._final)
        leftovers = [leftover(item, troubles=troubles, refusals=self._refusals, now=now) for item in rest]
        leftovers += [Leftover(kind, "all of its kind", gap.reason) for kind, gap in self._final.gaps.items()]
        remaining = {uid for _, uid in self._final.items}
        doubtful = (pod for pod in pods if self._is_doubtful(pod, troubles, remaining))
        leftovers += [_container(pod, troubles, self._forced) for pod in doubtful]
        for (node, gpu), number in (await self._claims.count()).items():
            cause = "kept while its pods may hold the slots" if leftovers else "not given up"
            cause = self._claims.refusal or cause
            leftovers.append(Leftover("Lease", labels.slot_lease(node, gpu), f"{number} {cause}"))
        if self._claims.trouble:
            leftovers.append(Leftover("Lease", "claims on slots", self._claims.trouble))
        reason = "is kept until all else is gone" if leftovers else "could not be removed in time"
        leftovers += [
            Leftover(item.kind, item.meta.name, self._refusals.get(item.key, f"{reason}: destroy again"))
            for item in self._final.of("ConfigMap")
            if item not in rest
        ]
        return tuple(leftovers)

    # --- rounds ---------------------------------------------------------------------------------------------
    async def _until_gone(self, seconds: float) -> AsyncGenerator[Numbers, None]:
        """Delete pods and their controllers until a count finds none."""
        until, pauses = time.monotonic() + seconds, _pauses()
        while True:
            count = await self._inventory.standing()
            yield count.numbers
            targets = count.of(*CONTROLLERS, "Pod")
            # A kind that may never be listed is reported in the receipt; waiting for it is useless.
            if (not targets and not count.open_gaps) or self._is_refused or time.monotonic() > until:
                return
            await self._delete(targets)
            await asyncio.sleep(next(pauses))

    async def _finish(self) -> AsyncGenerator[Numbers, None]:
        """Delete the rest, the run's ConfigMap last, until two consecutive full counts find nothing."""
        until, pauses, empty, is_released = 0.0, _pauses(), 0, False
        # Progress, compared as a tuple: first that claims are released, then that fewer objects are left.
        best: tuple[bool, float] = False, -math.inf
        while True:
            count = await self._inventory.by_label()
            # The cheap count by label guides the deletions; only the full count can prove that nothing is left.
            if not count.gaps and not self._rest(count):
                count = await self._inventory.in_full()
            yield count.numbers
            rest = self._rest(count)
            has_pods = any(item.kind == "Pod" for item in rest) or "Pod" in count.gaps
            # Claims are released only when no pod is left: until then the slots are in use.
            is_released = is_released or (not has_pods and await self._claims.release())
            if (step := (is_released, -len(count.items))) > best:  # the deadline moves while objects disappear
                best, until = step, time.monotonic() + REST_SECONDS
            if rest or count.gaps or not is_released:
                empty = 0
                await self._delete(rest)
            elif own := count.of("ConfigMap"):
                await self._delete(own)
            else:
                empty += 1
            # Pods had their time in _until_gone(); if only pods are left, waiting longer does not help.
            is_stuck = bool(rest) and all(item.is_going and item.kind in (*CONTROLLERS, "Pod") for item in rest)
            if empty == 2 or is_stuck or self._is_refused or time.monotonic() > until:
                break
            if self._is_hopeless(count, rest):
                break
            await asyncio.sleep(_SETTLE_SECONDS if empty else next(pauses))
        self._final = count if empty == 2 else await self._inventory.in_full()

    def _is_hopeless(self, count: OwnedObjects, rest: Iterable[OwnedObject]) -> bool:
        """Return whether only missing permissions prevent completion; followers will be removed with their
        Service.
        """
        are_refused = bool(count.gaps or self._claims.refusal) and not count.open_gaps
        return are_refused and all(item.kind in FOLLOWERS for item in rest)

    def _rest(self, count: OwnedObjects) -> tuple[OwnedObject, ...]:
        """Return all objects that must be gone before the run's ConfigMap may be deleted; volume claims hold
        results and are kept.
        """
        name = labels.run_object(self._run.name)
        return tuple(
            item
            for item in count.items.values()
            if (item.kind, item.meta.name) != ("ConfigMap", name)
            and (self._is_purging or item.kind != "PersistentVolumeClaim")
        )

    async def _delete(self, targets: Iterable[OwnedObject]) -> None:
        """Delete objects that are not being deleted yet, or with a longer grace than requested now."""
        targets = tuple(targets)
        standing = {item.meta.uid for item in targets if item.kind in CONTROLLERS and not item.is_going}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def delete(item: OwnedObject) -> None:
            async with gate:
                await self._request_deletion(item, self._grace)

        await asyncio.gather(*(delete(item) for item in targets if self._is_due(item, standing)))
        refused = next((item for item in targets if item.key in self._refusals and not item.is_going), None)
        self.refusal = f"{refused.kind} {refused.meta.name}: {self._refusals[refused.key]}" if refused else ""

    def _is_due(self, item: OwnedObject, standing: set[str]) -> bool:
        if item.is_going:
            granted = item.meta.deletion_grace_period_seconds
            return item.kind == "Pod" and self._grace is not None and granted is not None and granted > self._grace
        # As long as its controller is not being deleted, a deleted pod or Job would only be replaced.
        owner = item.meta.controller
        return item.kind not in ("Pod", "Job") or owner is None or owner.uid not in standing

    async def _request_deletion(self, item: OwnedObject, grace: int | None) -> None:
        is_pod = item.kind == "Pod"
        try:
            await self._api.delete(
                item.kind,
                item.meta.namespace or self._namespace,
                item.meta.name,
                uid=item.meta.uid,
                propagation="Foreground" if item.kind in CONTROLLERS else "" if is_pod else "Background",
                grace_seconds=grace if is_pod else None,
            )
        except ApiError as error:
            self._refusals.pop(item.key, None)
            if error.is_not_found or error.is_conflict:  # gone, or replaced: the next count shows it
                return
            if item.kind in FOLLOWERS and error.is_final:  # it is removed with its Service
                return
            self._refusals[item.key] = error.reason_left
            # Without the permission to delete, no later round can succeed.
            self._is_refused = self._is_refused or error.is_final
        else:
            self._refusals.pop(item.key, None)

    async def _force(self) -> None:
        for pod in (await self._inventory.standing()).of("Pod"):
            self._forced.add(pod.meta.uid)
            await self._request_deletion(pod, 0)

    # --- before and after -----------------------------------------------------------------------------------
    async def _mark(self, count: OwnedObjects) -> None:
        """Mark the run as being destroyed, visible to everyone who lists it, and remember where its results are."""
        name = labels.run_object(self._run.name)
        own = next((item for item in count.of("ConfigMap") if item.meta.name == name), None)
        if own is None:
            return
        stamp = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body = {"metadata": {"uid": own.meta.uid, "annotations": {labels.TERMINATING: stamp}}}
        pauses = RetryPauses(0.1)
        for _ in range(_TRIES):
            try:
                config_map = await self._api.patch("ConfigMap", self._namespace, name, body)
            except ApiError as error:
                if error.is_not_found or error.is_conflict or error.is_final:
                    return  # the deletions themselves report the problem
                await pauses.wait()
            else:
                self.kept = results_location(spec_text(config_map))
                return

    def _limit(self, count: OwnedObjects) -> float:
        """Return the time that pods may take, in seconds."""
        graces = [_DEFAULT_GRACE_SECONDS] if count.gaps else [0.0]
        for item in count.of("Pod"):
            own_grace = item.pod.spec.termination_grace_period_seconds if item.pod else None
            graces.append(float(_DEFAULT_GRACE_SECONDS if own_grace is None else own_grace))
        return (max(graces) if self._grace is None else float(self._grace)) + self._overtime

    def _is_doubtful(self, pod: PodStruct, troubles: Mapping[str, str], remaining: set[str]) -> bool:
        """Return whether a pod left the API although its node did not confirm that its processes have ended."""
        if pod.metadata.uid in remaining:
            return False
        is_unconfirmed = bool(troubles.get(pod.spec.node_name or "")) or pod.metadata.uid in self._forced
        return is_unconfirmed and was_alive(pod)


def _container(pod: PodStruct, troubles: Mapping[str, str], forced: set[str]) -> Leftover:
    if pod.metadata.uid in forced:
        reason = f"taken out of the API by force: it may still run on {pod.spec.node_name}"
    else:
        reason = f"whether it has ended is unknown: {troubles[pod.spec.node_name or '']}"
    return Leftover("Container", pod.metadata.name, reason)


def _pauses() -> Iterator[float]:
    return chain(_ROUND_SECONDS, repeat(_ROUND_SECONDS[-1]))
