"""Leaks: objects, pods without a controller, and claims on slots that runs have left behind.

Only objects that certainly belong to a deleted run are reported. Objects are listed before the runs and read again
at the end, so that a concurrent launch or destroy does not look like a leak. Pods that l2rtui did not create (such
as the lab's ``worker-pods``) have no run label and are left out: they may be in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import slot_leases
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.receipt import Leak
from l2rtui.domain.snapshot import RunView

_KINDS = ("Pod", "ReplicaSet", "Job", "StatefulSet", "Service", "Secret", "PersistentVolumeClaim", "NetworkPolicy")


class _Listed(Struct, frozen=True):
    """One object from the list."""

    kind: str
    meta: dict[str, Any]

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.get("labels") or {}


async def find(context: ClusterContext) -> tuple[Leak, ...]:
    """Find leaks in the configured namespaces, or in all that the user may list.

    Raises:
        ApiError: Pods or runs cannot be listed, so that an empty result would mean nothing.
    """
    api, shared = context.api, await context.shared_namespace()
    # Only where runs can be listed: the ledger may read all pods but not list other objects.
    namespaces = await api.visible_namespaces("ConfigMap")
    objects = [item for namespace in namespaces for item in await _objects(api, namespace)]
    # A user with all namespaces has the shared one among them.
    claims = await _claims(api, namespaces if None in namespaces or not shared else (*namespaces, shared))
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
    return (*leaks, *_dead_claims(claims, live, namespaces, api.now()))


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
    if not run_id:
        return ""
    if run_id not in live:
        going = ", and it is being deleted" if item.meta.get("deletionTimestamp") else ""
        return f"its run is gone{going}"
    controller = next((owner for owner in item.meta.get("ownerReferences") or () if owner.get("controller")), None)
    if item.kind == "Pod" and not item.meta.get("deletionTimestamp"):
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


async def _objects(api: Api, namespace: str | None) -> list[_Listed]:
    lists = await asyncio.gather(*(_list(api, kind, namespace, is_required=kind == "Pod") for kind in _KINDS))
    return [item for items in lists for item in items]


async def _claims(api: Api, namespaces: tuple[str | None, ...]) -> list[_Listed]:
    return [item for namespace in namespaces for item in await _list(api, "Lease", namespace, is_required=False)]


async def _list(api: Api, kind: str, namespace: str | None, *, is_required: bool = True) -> list[_Listed]:
    """List our objects of one kind; an optional kind that the user may not list counts as empty."""
    try:
        items = await api.list(kind, namespace, labels=labels.MANAGED)
    except ApiError as error:
        if error.is_forbidden and not is_required:
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
