"""How far the user can see in a cluster, and what to say of the rest.

All namespaces where pods may be listed everywhere, else those that were named or the context's own. Then other
people's pods stay unseen, and a slot that looks free reads unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.decode import Unread
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.backends.kubernetes.lists import Scope

_OURS: Final = f"{labels.APP_MANAGED_BY}={labels.MANAGED_BY}"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class View:
    """How far we can see.

    Attributes:
        namespaces: Whose pods to look at; (None,) stands for all of them.
        homes: Whose runs to look at: those that were named, else the context's own. A run is known by its name,
            which is unique in one namespace only; the pods of runs elsewhere hold slots like other people's pods.
        is_cluster_wide: All pods of the cluster can be listed.
        claims: Namespaces whose resource claims tell which GPUs pods were given. has_slices: what drivers tell of
            their devices can be listed. resource_api: version of that API; empty where the server has none.
    """

    namespaces: tuple[str | None, ...]
    homes: tuple[str, ...]
    is_cluster_wide: bool
    has_nodes: bool
    claims: tuple[str | None, ...] = ()
    has_slices: bool = False
    resource_api: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing more to see."""
        return self.is_cluster_wide and self.has_nodes


async def find_view(api: Api) -> View:
    """Find out what the user may see; where the server will not say, trying it will tell."""
    is_cluster_wide, has_nodes, resource_api = await asyncio.gather(
        _may(api, "Pod"), _may(api, "Node"), _resource_api(api)
    )
    homes = api.namespaces or (api.namespace,)
    namespaces: tuple[str | None, ...] = (None,) if is_cluster_wide else homes
    if not resource_api:
        return View(namespaces, homes, is_cluster_wide, has_nodes)
    # Without these rights a claim holds a GPU that cannot be told: worth no complaint on every screen.
    has_slices, claims = await asyncio.gather(_is_told(api, "ResourceSlice", None), _claims(api, namespaces, homes))
    return View(namespaces, homes, is_cluster_wide, has_nodes, claims, has_slices, resource_api)


def scopes(view: View) -> list[Scope]:
    """What is watched: as narrow as the rows allow."""
    found = [Scope("Node")] if view.has_nodes else []
    found += [Scope("Pod", namespace) for namespace in view.namespaces]
    for namespace in view.homes:
        found += [Scope(kind, namespace, _OURS) for kind in ("ReplicaSet", "StatefulSet", "Job", "ConfigMap")]
        found.append(Scope("Event", namespace, fields="type=Warning"))
    found += [Scope("ResourceClaim", namespace, api_version=view.resource_api) for namespace in view.claims]
    if view.has_slices:
        found.append(Scope("ResourceSlice", api_version=view.resource_api))
    return found


async def _resource_api(api: Api) -> str:
    """The newest version of resource.k8s.io that the server and we both know; empty for none."""
    try:
        served = await api.group_versions("resource.k8s.io")
    except ApiError:
        return ""
    return next((f"resource.k8s.io/{one}" for one in ("v1", "v1beta2", "v1beta1") if one in served), "")


async def _claims(api: Api, namespaces: tuple[str | None, ...], homes: tuple[str, ...]) -> tuple[str | None, ...]:
    """Whose claims may be followed: those beside all pods that we see, else at least those at home."""
    for wanted in dict.fromkeys((namespaces, homes)):
        told = await asyncio.gather(*(_is_told(api, "ResourceClaim", one) for one in wanted))
        if any(told):
            return tuple(one for one, is_told in zip(wanted, told, strict=True) if is_told)
    return ()


async def _is_told(api: Api, kind: str, namespace: str | None) -> bool:
    try:
        return await api.can("list", kind, namespace) and await api.can("watch", kind, namespace)
    except ApiError:
        return False


async def _may(api: Api, kind: str) -> bool:
    """Whether all objects of a kind may be listed and followed."""
    try:
        return await api.can("list", kind, None) and await api.can("watch", kind, None)
    except ApiError as error:
        if not (error.is_forbidden or error.is_not_found):
            raise
    try:  # a server that does not tell: try it
        await api.get_json(KINDS[kind].path(None), {"limit": "1"})
    except ApiError as error:
        if not error.is_forbidden:
            raise
        return False
    return True


def missing(scope: Scope, error: ApiError) -> str:
    """The sentence for a kind that may not be read; the server's own words name the verb."""
    return f"{scope} cannot be read: {(error.detail or error.message).rstrip('.')}."


def unread_problems(scope: Scope, unread: Mapping[str, Unread], lost: int) -> list[str]:
    """Sentences for objects that are there and cannot be read."""
    found = []
    if unread:
        names = ", ".join(f"{key} ({one.error})" for key, one in sorted(unread.items())[:_MOST_NAMED])
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        found.append(f"{len(unread)} of the {scope} cannot be decoded: {names}{more}.")
    if lost:
        found.append(f"{lost} of the {scope} cannot be read at all, not even their names.")
    return found


def view_problems(view: View) -> list[str]:
    """Sentences for what lies beyond our sight."""
    found = []
    if not view.is_cluster_wide:
        names = ", ".join(filter(None, view.namespaces))
        found.append(
            f"Only pods of {names} can be listed: slots that others may hold read unknown "
            "(missing right: list and watch pods in all namespaces)."
        )
    if not view.has_nodes:
        found.append("Nodes are known from their pods alone (missing right: list and watch nodes).")
    return found
