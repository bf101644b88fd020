"""What runs that are gone have left behind: objects, pods that nobody looks after, claims on slots.

Only what is surely of an old run is told. Objects are listed before the runs and looked at once more at the end, so
neither a launch nor a destroy that happens meanwhile looks like a leak. Pods of other people's making, the lab's
``worker-pods`` among them, carry no mark of a run, and are left out: nobody can tell that they are not wanted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.base import Leak
from l2rtui.backends.kubernetes import labels, leases
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS

_KINDS = ("Pod", "ReplicaSet", "Job", "StatefulSet", "Service", "Secret", "PersistentVolumeClaim")
_SELECTOR = f"{labels.APP_MANAGED_BY}={labels.MANAGED_BY}"


@dataclass(frozen=True, slots=True)
class _Seen:
    kind: str
    meta: dict[str, Any]

    @property
    def namespace(self) -> str:
        return str(self.meta.get("namespace", ""))

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.get("labels") or {}

    @property
    def owners(self) -> list[dict[str, Any]]:
        return self.meta.get("ownerReferences") or []


async def find(api: Api, *, claims_namespace: str = "") -> tuple[Leak, ...]:
    """Look for leaks in the namespaces that were asked for, or in all that the user may list.

    Args:
        claims_namespace: Where the Leases are; empty for the same namespaces.

    Raises:
        ApiError: pods or runs cannot be listed: no leaks found there would be no news.
    """
    places = await _namespaces(api)
    objects = [one for place in places for one in await _objects(api, place)]
    claims = await _claims(api, (claims_namespace,) if claims_namespace else places)
    runs = [one for place in places for one in await _list(api, "ConfigMap", place)]
    live = {one.labels.get(labels.RUN_ID, "") for one in runs}
    uids = {one.meta["uid"] for one in objects}
    suspects = [(one, reason) for one in objects if (reason := _reason(one, live, uids))]
    is_there = await asyncio.gather(*(_is_there(api, one) for one, _ in suspects))
    found = [
        Leak(one.labels.get(labels.RUN, ""), one.kind, one.meta["name"], reason)
        for (one, reason), there in zip(suspects, is_there, strict=True)
        if there
    ]
    return (*found, *_dead_claims(claims, live, places))


def _reason(one: _Seen, live: set[str], uids: set[str]) -> str:
    """Why an object is a leak; empty when it is none."""
    run_id = one.labels.get(labels.RUN_ID, "")
    if not run_id:
        return ""
    if run_id not in live:
        going = ", and it is being deleted" if one.meta.get("deletionTimestamp") else ""
        return f"its run is gone{going}"
    controller = next((owner for owner in one.owners if owner.get("controller")), None)
    if one.kind == "Pod" and not one.meta.get("deletionTimestamp"):
        if controller is None:
            return "no controller looks after it"
        if controller.get("uid") not in uids:
            return f"its {controller.get('kind')} {controller.get('name')} is gone"
    return ""


def _dead_claims(claims: Iterable[_Seen], live: set[str], places: tuple[str | None, ...]) -> Iterable[Leak]:
    """Claims of runs that are gone, once their time is over too."""
    for lease in claims:
        for slot, claim in leases.claims_of({"metadata": lease.meta}).items():
            until = claim.get("until")
            is_over = not isinstance(until, int | float) or until < time.time()
            is_visible = None in places or claim.get("namespace") in places
            if is_over and is_visible and claim.get("run_id") not in live:
                where = f"{lease.meta.get('annotations', {}).get(labels.HOST, lease.meta['name'])}.{slot}"
                reason = f"claims slot {where}, and its run is gone"
                yield Leak(str(claim.get("run", "")), "Lease", str(lease.meta["name"]), reason)


async def _namespaces(api: Api) -> tuple[str | None, ...]:
    if api.namespaces:
        return api.namespaces
    return (None,) if await api.can("list", "Pod", None) else (api.namespace,)


async def _objects(api: Api, namespace: str | None) -> list[_Seen]:
    found = await asyncio.gather(*(_list(api, kind, namespace, is_needed=kind == "Pod") for kind in _KINDS))
    return [one for every in found for one in every]


async def _claims(api: Api, places: tuple[str | None, ...]) -> list[_Seen]:
    return [one for place in places for one in await _list(api, "Lease", place, is_needed=False)]


async def _list(api: Api, kind: str, namespace: str | None, *, is_needed: bool = True) -> list[_Seen]:
    """Our objects of one kind; none of a kind that is not needed and that the user may not list."""
    try:
        found = await api.list(kind, namespace, labels=_SELECTOR)
    except ApiError as error:
        if error.is_forbidden and not is_needed:
            return []
        raise
    return [_Seen(kind, one["metadata"]) for one in found]


async def _is_there(api: Api, one: _Seen) -> bool:
    try:
        now = await api.get_json(KINDS[one.kind].path(one.namespace, one.meta["name"]))
    except ApiError as error:
        return not error.is_not_found
    return bool(now["metadata"]["uid"] == one.meta["uid"])
