"""Objects of a run, counted on the server by label, by owner, and by earlier counts; and leaks of deleted runs.

A failed list is retried. If it keeps failing, it becomes a gap with a reason, never an empty list: a receipt must
not claim that nothing is left if the objects could not be listed. Lists are read from etcd, not from the server's
watch cache (no ``resourceVersion``: "most recent", Kubernetes API concepts).

Leaks are objects, pods without a controller, and claims on slots that runs have left behind. Only objects that
certainly belong to a deleted run are reported. Objects are listed before the runs and read again at the end, so
that a concurrent launch or destroy does not look like a leak. Pods that l2rtui did not create (such as the lab's
``worker-pods``) have no run label and are left out: they may be in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.client import PAGE, Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS, KindPath
from l2rtui.backends.kubernetes.api.structs import ObjectList, ObjectMeta, PartialObject, PodStruct
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.receipt import Leak, LeakReport
from l2rtui.domain.snapshot import RunView
from runtime.base import bounded_json

CONTROLLERS: Final = ("JobSet", "Job", "ReplicaSet", "StatefulSet")
"""Kinds that create pods or Jobs; they are deleted first."""
OWN_KINDS: Final = ("Pod", "ReplicaSet", "Job", "Service", "Secret", "ConfigMap")
"""Kinds that a launch creates: a user who may launch may list them."""
FOLLOWERS: Final = ("Endpoints", "EndpointSlice")
"""Kinds that the cluster creates for a Service and removes with it, even if the user may not delete them."""
OTHER_KINDS: Final = (
    *("StatefulSet", *FOLLOWERS, "PersistentVolumeClaim", "ResourceClaim", "ResourceClaimTemplate"),
    *("NetworkPolicy", "JobSet", "PodGroup", "VolcanoPodGroup"),
)
"""Kinds that some runs have, or that the cluster adds. A user who may not list them has not created any."""
_NOT_EVERYWHERE = tuple(kind for kind in OTHER_KINDS if not KINDS[kind].is_everywhere)

# With pauses that double from 0.1 s to 3 s, 7 tries take about 6 s: a restart of the API server.
_TRIES = 7
_FIRST_PAUSE_SECONDS = 0.1
_AT_ONCE = 6


class OwnedObject(Struct, frozen=True):
    """One object of a run from the latest count; a pod also has its decoded struct."""

    kind: str
    meta: ObjectMeta
    pod: PodStruct | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Kind and uid; a replaced object of the same name has another key."""
        return self.kind, self.meta.uid

    @property
    def is_going(self) -> bool:
        """Its deletion has begun; finalizers or a grace period delay it."""
        return self.meta.deletion_timestamp is not None


class Gap(NamedTuple):
    """Reason why a kind could not be counted; ``is_final`` if later counts cannot succeed either."""

    reason: str
    is_final: bool = False


@dataclass(slots=True)
class OwnedObjects:
    """Objects of a run in one count, by kind and uid; ``gaps`` has the reasons for kinds that could not be
    counted.
    """

    items: dict[tuple[str, str], OwnedObject] = field(default_factory=dict)
    gaps: dict[str, Gap] = field(default_factory=dict)

    def of(self, *kinds: str) -> tuple[OwnedObject, ...]:
        """Objects of these kinds."""
        return tuple(item for item in self.items.values() if item.kind in kinds)

    @property
    def is_empty(self) -> bool:
        """Nothing is left, and every kind was counted."""
        return not self.items and not self.gaps

    @property
    def open_gaps(self) -> set[str]:
        """Kinds that a later count may still be able to read."""
        return {kind for kind, gap in self.gaps.items() if not gap.is_final}

    @property
    def numbers(self) -> tuple[tuple[str, int], ...]:
        """Number of objects of each kind, without kinds that have none."""
        kinds = (*OWN_KINDS, *OTHER_KINDS)
        return tuple((kind, number) for kind in kinds if (number := len(self.of(kind))))


class Inventory:
    """The objects of one run in its namespace; ``history`` has every object that was ever counted."""

    def __init__(self, api: Api, namespace: str, run: str, run_id: str) -> None:
        self.history: dict[tuple[str, str], OwnedObject] = {}
        self._api = api
        self._namespace = namespace
        self._run = run
        self._run_id = run_id
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._paths: dict[str, KindPath] | None = None
        self._unseen: set[str] = set()

    @property
    def selector(self) -> str:
        """Label selector of the run."""
        return f"{labels.RUN_ID}={self._run_id}"

    @property
    def not_seen(self) -> str:
        """Kinds that a run may have and the user may not list, as a clause; empty for none."""
        # Followers go with their Service, which is counted.
        plurals = sorted(self._unseen - {KINDS[kind].plural for kind in FOLLOWERS})
        return f"{', '.join(plurals)}, which you may not list" if plurals else ""

    @property
    def has_released_pods(self) -> bool:
        """A pod was counted that only a full count finds: someone removed its label."""
        return any(item.kind == "Pod" and _is_released(item, self._run) for item in self.history.values())

    async def by_label(self) -> OwnedObjects:
        """Count the objects with the run's label; fast, for polling."""
        return await self._count(self.selector)

    async def in_full(self) -> OwnedObjects:
        """Count the objects that have the label, belong to the run by ownership, or were counted before."""
        return await self._count("")

    async def standing(self) -> OwnedObjects:
        """Count by label where that finds all pods, otherwise in full."""
        return await (self.in_full() if self.has_released_pods else self.by_label())

    async def _count(self, selector: str) -> OwnedObjects:
        count = OwnedObjects()
        try:
            paths = await self._served()
        except ApiError as error:
            count.gaps["kinds"] = Gap(f"could not be listed: {error.message}")
            return count
        answers = await asyncio.gather(*(self._listed(kind, path, selector) for kind, path in paths.items()))
        items: list[OwnedObject] = []
        for kind, answer in zip(paths, answers, strict=True):
            if isinstance(answer, Gap):
                count.gaps[kind] = answer
            else:
                items += answer
        count.items = {item.key: item for item in (items if selector else self._ours(items))}
        self.history |= count.items
        return count

    def _ours(self, items: list[OwnedObject]) -> list[OwnedObject]:
        """Select the objects that belong to the run; an owner counts even after its deletion."""
        owners = {uid for _, uid in self.history}
        owners |= {
            owner.uid
            for item in self.history.values()
            for owner in item.meta.owner_references or ()
            if owner.kind == "ConfigMap" and owner.name == labels.run_object(self._run)
        }
        ours: dict[tuple[str, str], OwnedObject] = {}
        # Owners come in any order, so passes are repeated until one adds nothing (Job → Pod → ResourceClaim).
        while True:
            more = [item for item in items if item.key not in ours and self._is_ours(item, owners)]
            if not more:
                return list(ours.values())
            ours |= {item.key: item for item in more}
            owners |= {item.meta.uid for item in more}

    def _is_ours(self, item: OwnedObject, owners: set[str]) -> bool:
        if item.meta.label(labels.APP_COMPONENT) == labels.WORKDIR:
            # The garbage collector deletes own code that another run uses together with that run.
            users = [owner.uid for owner in item.meta.owner_references or ()]
            return bool(users) and owners.issuperset(users)
        if item.key in self.history or item.meta.label(labels.RUN_ID) == self._run_id:
            return True
        if any(owner.uid in owners for owner in item.meta.owner_references or ()):
            return True
        if _is_released(item, self._run):
            return True
        # By name, unless a label names another run: people can remove labels, but not rename objects.
        names = {known_item.meta.name for known_item in self.history.values() if known_item.kind == item.kind}
        names |= {labels.run_object(self._run)} if item.kind in ("ConfigMap", "Secret") else set()
        return item.meta.name in names and not item.meta.label(labels.RUN_ID)

    async def _served(self) -> dict[str, KindPath]:
        """Return the kinds that this server has, each in a version that it serves."""
        if self._paths is None:
            paths = {kind: KINDS[kind] for kind in (*OWN_KINDS, *OTHER_KINDS)}
            for kind in _NOT_EVERYWHERE:
                versions = await self._retry_versions(paths[kind].group)
                if versions:
                    paths[kind] = paths[kind].at(f"{paths[kind].group}/{versions[0]}")
                else:
                    del paths[kind]
            self._paths = paths
        return self._paths

    async def _retry_versions(self, group: str) -> tuple[str, ...]:
        pauses = RetryPauses(_FIRST_PAUSE_SECONDS)
        for left in reversed(range(_TRIES)):
            try:
                return await self._api.group_versions(group)
            except ApiError as error:
                if left == 0 or error.is_final:
                    raise
                await pauses.wait()
        raise AssertionError  # pragma: no cover  (the last round returns or raises)

    async def _listed(self, kind: str, path: KindPath, selector: str) -> list[OwnedObject] | Gap:
        """Return the objects of one kind, or why they could not be counted."""
        pauses = RetryPauses(_FIRST_PAUSE_SECONDS)
        async with self._gate:
            for left in reversed(range(_TRIES)):
                try:
                    return await self._pages(kind, path, selector)
                except ApiError as error:
                    if error.is_forbidden and kind in OTHER_KINDS:
                        self._unseen.add(path.plural)
                        return []
                    if error.is_forbidden and kind == "Secret":
                        return await self._secret()
                    if left == 0 or error.is_final:
                        return _gap(error)
                except ValueError as error:
                    return Gap(f"could not be counted: an object is not readable ({error})")
                await pauses.wait()
        raise AssertionError  # pragma: no cover  (the last round returns)

    async def _secret(self) -> list[OwnedObject] | Gap:
        """Read the run's Secret by its name: many users may not list Secrets."""
        try:
            body = await self._api.request(
                "GET", KINDS["Secret"].path(self._namespace, labels.run_object(self._run))
            )
        except ApiError as error:
            return [] if error.is_not_found else _gap(error)
        meta = bounded_json.decode(body, PartialObject).metadata
        return [OwnedObject("Secret", meta)] if meta.label(labels.RUN_ID) == self._run_id else []

    async def _pages(self, kind: str, path: KindPath, selector: str) -> list[OwnedObject]:
        base = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        query, items = dict(base), list[OwnedObject]()
        while True:
            # Raw items: only the metadata is decoded, except for pods, whose state the receipt explains.
            answer = await self._api.request("GET", path.path(self._namespace), query=query)
            page = bounded_json.decode(answer, ObjectList[msgspec.Raw])
            for item in page.items or ():
                if kind == "Pod":
                    pod = bounded_json.decode(item, PodStruct)
                    items.append(OwnedObject(kind, pod.metadata, pod))
                else:
                    items.append(OwnedObject(kind, bounded_json.decode(item, PartialObject).metadata))
            if not page.metadata.continue_:
                return items
            query = {**base, "continue": page.metadata.continue_}


def _is_released(item: OwnedObject, run: str) -> bool:
    """Return True if someone removed the run's id from an object of l2rtui.

    People do that to set a pod apart from its controller: the pod runs on and holds its GPU.
    """
    meta = item.meta
    is_own = meta.label(labels.APP_MANAGED_BY) == labels.MANAGED_BY
    return is_own and meta.label(labels.RUN) == run and not meta.label(labels.RUN_ID)


def _gap(error: ApiError) -> Gap:
    return Gap(f"could not be counted: {error.reason_left}", error.is_final)


_LEAKING_KINDS = (
    "Pod",
    "ReplicaSet",
    "Job",
    "StatefulSet",
    "Service",
    "Secret",
    "PersistentVolumeClaim",
    "NetworkPolicy",
)


class _Listed(Struct, frozen=True):
    """One object from the list."""

    kind: str
    meta: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.get("labels") or {}


async def find_leaks(context: ClusterContext) -> LeakReport:
    """Find leaks in the configured namespaces, or in all that the user may list.

    The report names the kinds that the user may not list.

    Raises:
        ApiError: Pods or runs cannot be listed, so that an empty result would mean nothing.
    """
    api, shared = context.api, await context.shared_namespace()
    # Only where runs can be listed: the ledger may read all pods but not list other objects.
    namespaces = await api.visible_namespaces("ConfigMap")
    unseen: dict[str, None] = {}
    objects = [item for namespace in namespaces for item in await _objects(api, namespace, unseen)]
    # A user with all namespaces has the shared one among them.
    places = namespaces if None in namespaces or not shared else (*namespaces, shared)
    claims = [item for place in places for item in await _list(api, "Lease", place, unseen)]
    # After the objects: a run that is launched in between has its ConfigMap in this list.
    runs = [item for namespace in namespaces for item in await _list(api, "ConfigMap", namespace)]
    live = {item.labels.get(labels.RUN_ID, "") for item in runs}
    uids = {item.meta["uid"] for item in objects}
    suspects = [(item, reason) for item in objects if (reason := _reason(item, live, uids))]
    # Checked last: an object that was deleted meanwhile was part of a destroy.
    exist = await asyncio.gather(*(_exists(api, item) for item, _ in suspects))
    leaks = [
        Leak(item.labels.get(labels.RUN, ""), item.kind, item.meta["name"], reason, _deleted_run(item, live))
        for (item, reason), there in zip(suspects, exist, strict=True)
        if there
    ]
    every = (*leaks, *_dead_claims(claims, live, namespaces, api.now()))
    return LeakReport(every, ", ".join(KINDS[kind].plural for kind in unseen))


def _deleted_run(item: _Listed, live: set[str]) -> RunView | None:
    """Return the run of an object; None while it exists."""
    run_id, meta = item.labels.get(labels.RUN_ID, ""), item.meta
    if run_id in live:
        return None
    owner = (meta.get("annotations") or {}).get(labels.OWNER) or item.labels.get(labels.OWNER, "")
    return RunView(run_id, item.labels.get(labels.RUN, ""), "", owner, namespace=meta.get("namespace", ""))


def _reason(item: _Listed, live: set[str], uids: set[str]) -> str:
    """Return why an object is a leak; empty if it is not."""
    run_id = item.labels.get(labels.RUN_ID, "")
    owners = item.meta.get("ownerReferences") or ()
    controller = next((owner for owner in owners if owner.get("controller")), None)
    is_going = bool(item.meta.get("deletionTimestamp"))
    if not run_id:
        if item.kind != "Pod" or controller is not None or is_going or not item.labels.get(labels.RUN):
            return ""
        remedy = f"`kubectl -n {item.meta.get('namespace', '')} delete pod {item.meta['name']}` ends it"
        return f"its label {labels.RUN_ID} was removed, so no controller looks after it: {remedy}"
    if run_id not in live:
        return "its run is gone, and it is being deleted" if is_going else "its run is gone"
    if item.kind == "Pod" and not is_going:
        if controller is None:
            return "no controller looks after it"
        if controller.get("uid") not in uids:
            return f"its {controller.get('kind')} {controller.get('name')} is gone"
    return ""


def _dead_claims(
    claims: Iterable[_Listed], live: set[str], namespaces: tuple[str | None, ...], now: float
) -> Iterable[Leak]:
    """Yield claims on slots of deleted runs whose own time is over too."""
    for lease in claims:
        for slot, claim in slot_leases.claims_of({"metadata": lease.meta}).items():
            until = claim.get("until")
            is_over = not isinstance(until, int | float) or until < now
            # The run of a claim may live in a namespace that was not listed; nothing is known of it then.
            is_visible = None in namespaces or claim.get("namespace") in namespaces
            if is_over and is_visible and claim.get("run_id") not in live:
                where = f"{lease.meta.get('annotations', {}).get(labels.HOST, lease.meta['name'])}.{slot}"
                reason = f"claims slot {where}, and its run is gone"
                name, run_id, namespace = (str(claim.get(key) or "") for key in ("run", "run_id", "namespace"))
                run = RunView(run_id, name, "", namespace=namespace)
                yield Leak(name, "Lease", str(lease.meta["name"]), reason, run if run_id else None)


async def _objects(api: Api, namespace: str | None, unseen: dict[str, None]) -> list[_Listed]:
    lists = await asyncio.gather(
        *(_list(api, kind, namespace, unseen if kind != "Pod" else None) for kind in _LEAKING_KINDS)
    )
    return [item for items in lists for item in items]


async def _list(api: Api, kind: str, namespace: str | None, unseen: dict[str, None] | None = None) -> list[_Listed]:
    """List our objects of one kind; a kind that the user may not list goes to ``unseen``, and is an error if that
    is None.
    """
    try:
        items = await api.list(kind, namespace, labels=labels.MANAGED)
    except ApiError as error:
        if error.is_forbidden and unseen is not None:
            unseen[kind] = None
            return []
        raise
    return [_Listed(kind, item["metadata"]) for item in items]


async def _exists(api: Api, item: _Listed) -> bool:
    try:
        now = await api.get_json(KINDS[item.kind].path(str(item.meta.get("namespace", "")), item.meta["name"]))
    except ApiError as error:
        return not error.is_not_found
    # Another uid means another object with the same name.
    return bool(now["metadata"]["uid"] == item.meta["uid"])
