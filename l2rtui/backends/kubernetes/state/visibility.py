"""Visibility: the namespaces and kinds that the user may list, and sentences on hidden ones.

All namespaces if pods may be listed everywhere, otherwise the given ones, or the context's own. Unless all pods can
be listed, foreign pods are hidden, and a slot that looks free is shown as unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.errors import ApiError, MissingRight
from l2rtui.backends.kubernetes.api.list_pages import Scope

_OWN_KINDS: Final = ("ReplicaSet", "StatefulSet", "Job", "ConfigMap")
_MOST_NAMED = 3


class Visibility(Struct, frozen=True):
    """Namespaces and kinds that the user may list.

    Attributes:
        namespaces: Namespaces whose pods are listed; (None,) means all of them.
        run_namespaces: Namespaces whose runs are shown: the given ones, otherwise the context's own. A run's name
            is unique in one namespace only; pods of other namespaces' runs use slots like foreign pods.
        is_cluster_wide: All pods of the cluster can be listed.
        claim_namespaces: Namespaces whose resource claims can be read; (None,) for all.
        has_slices: Resource slices can be listed.
        resource_api: Version of ``resource.k8s.io`` in use; empty if the server has none.
        reservation_namespace: Namespace of reservations if it is not among ``run_namespaces``; otherwise empty.
    """

    namespaces: tuple[str | None, ...]
    run_namespaces: tuple[str, ...]
    is_cluster_wide: bool
    has_nodes: bool
    claim_namespaces: tuple[str | None, ...] = ()
    has_slices: bool = False
    resource_api: str = ""
    reservation_namespace: str = ""

    @property
    def is_complete(self) -> bool:
        """True if no permission is missing."""
        return self.is_cluster_wide and self.has_nodes


async def find_visibility(api: Api, claims_namespace: str = "") -> Visibility:
    """Determine what the user may list, by access reviews or, where these are forbidden, by trying it.

    Args:
        claims_namespace: Namespace in which all users claim and reserve slots, as the settings name it.
    """
    visibility, shared_namespace = await asyncio.gather(
        _visibility_of_rows(api), _readable_claims(api, claims_namespace)
    )
    is_apart = shared_namespace and shared_namespace not in visibility.run_namespaces
    # Without the permission reservations are not shown, which is not worth a message on every screen.
    if is_apart and await _may_read(api, "ConfigMap", shared_namespace):
        return replace(visibility, reservation_namespace=shared_namespace)
    return visibility


async def shared_claims(api: Api, setting: str = "") -> str:
    """Return the namespace in which users of all namespaces claim and reserve slots; empty where there is none.

    Args:
        setting: The namespace that the settings name.
    """
    if setting or api.has_shared_claims:
        return setting or labels.CLAIMS_NAMESPACE
    # Asked again where there was none: an administrator may make it while the app is open.
    try:
        namespace = await api.find("Namespace", None, labels.CLAIMS_NAMESPACE)
        is_there = namespace is not None and (namespace.get("status") or {}).get("phase") != "Terminating"
        api.has_shared_claims = is_there and await may_claim(api, labels.CLAIMS_NAMESPACE)
    except ApiError as error:
        if not error.is_forbidden:
            raise
    return labels.CLAIMS_NAMESPACE if api.has_shared_claims else ""


async def _readable_claims(api: Api, setting: str) -> str:
    """Return the shared namespace; empty also while a broken admission webhook fails the question for rights."""
    try:
        return await shared_claims(api, setting)
    except ApiError as error:
        if error.status < 500:
            raise
        return ""


async def gone_namespaces(api: Api) -> tuple[str, ...]:
    """Return a sentence for each namespace of runs that does not exist, or is being deleted.

    Raises:
        ApiError: the login is refused. Whatever else keeps from asking says nothing about a namespace.
    """

    async def sentence(name: str) -> str:
        try:
            status = (await api.read("Namespace", None, name)).get("status")
        except ApiError as error:
            if error.is_unauthorized:
                raise
            return f"The namespace {name} does not exist." if error.is_not_found else ""
        is_going = isinstance(status, dict) and status.get("phase") == "Terminating"
        return f"The namespace {name} is being deleted, with all that is in it." if is_going else ""

    return tuple(filter(None, await asyncio.gather(*map(sentence, api.namespaces or (api.namespace,)))))


async def may_claim(api: Api, namespace: str) -> bool:
    """Return whether the user may claim slots in a namespace."""
    # A user who could claim and not give up would leave claims behind: then nothing is claimed.
    verbs = ("get", "create", "update", "delete")
    return all(await asyncio.gather(*(api.can(verb, "Lease", namespace) for verb in verbs)))


async def _visibility_of_rows(api: Api) -> Visibility:
    is_cluster_wide, has_nodes, resource_api = await asyncio.gather(
        api.may_list_all("Pod"), api.may_list_all("Node"), _resource_api(api)
    )
    run_namespaces = api.namespaces or (api.namespace,)
    namespaces: tuple[str | None, ...] = (None,) if is_cluster_wide else run_namespaces
    if not resource_api:
        return Visibility(namespaces, run_namespaces, is_cluster_wide, has_nodes)
    # Without these permissions a claim counts as an unknown GPU, which is not worth a message on every screen.
    has_slices, claim_namespaces = await asyncio.gather(
        _may_read(api, "ResourceSlice", None), _claim_namespaces(api, namespaces, run_namespaces)
    )
    return Visibility(
        namespaces, run_namespaces, is_cluster_wide, has_nodes, claim_namespaces, has_slices, resource_api
    )


def scopes(visibility: Visibility) -> list[Scope]:
    """Return the scopes to watch, as narrow as the rows allow."""
    result = [Scope("Node")] if visibility.has_nodes else []
    result += [Scope("Pod", namespace) for namespace in visibility.namespaces]
    for namespace in visibility.run_namespaces:
        result += [Scope(kind, namespace, labels.MANAGED) for kind in _OWN_KINDS]
        # Only warnings: a busy namespace has thousands of normal events, and none explains a pending pod.
        result.append(Scope("Event", namespace, fields="type=Warning"))
    if visibility.reservation_namespace:
        selector = f"{labels.MANAGED},{labels.APP_COMPONENT}={labels.RESERVATIONS}"
        result.append(Scope("ConfigMap", visibility.reservation_namespace, selector))
    version = visibility.resource_api
    result += [Scope("ResourceClaim", name, api_version=version) for name in visibility.claim_namespaces]
    if visibility.has_slices:
        result.append(Scope("ResourceSlice", api_version=version))
    return result


async def _resource_api(api: Api) -> str:
    """Return the newest version of resource.k8s.io that both the server and we support; empty for none."""
    try:
        served = await api.group_versions("resource.k8s.io")
    except ApiError:  # discovery may be forbidden; the same server error would stop the lists of pods anyway
        return ""
    return next((f"resource.k8s.io/{version}" for version in ("v1", "v1beta2", "v1beta1") if version in served), "")


async def _claim_namespaces(
    api: Api, namespaces: tuple[str | None, ...], run_namespaces: tuple[str, ...]
) -> tuple[str | None, ...]:
    """Return the namespaces whose claims may be watched: all namespaces of listed pods, otherwise only of our
    runs.
    """
    for candidates in dict.fromkeys((namespaces, run_namespaces)):
        readable = await asyncio.gather(*(_may_read(api, "ResourceClaim", namespace) for namespace in candidates))
        if any(readable):
            return tuple(namespace for namespace, may_read in zip(candidates, readable, strict=True) if may_read)
    return ()


async def _may_read(api: Api, kind: str, namespace: str | None) -> bool:
    try:
        return await api.can("list", kind, namespace) and await api.can("watch", kind, namespace)
    except ApiError:
        return False


def advice(right: MissingRight) -> str:
    """Return the sentence on who can give a missing right."""
    # Imported when a right is missing: its table takes as long as the list of a small cluster.
    from l2rtui.backends.kubernetes import rights

    return rights.advice(right)


def missing(scope: Scope, error: ApiError) -> str:
    """Return the sentence for an unreadable kind; the server's message names the verb."""
    if scope.kind == "NodeMetrics":  # its plural is that of nodes
        return f"The use of CPU and memory of nodes cannot be read: {(error.detail or error.message).rstrip('.')}."
    if error.missing is None:
        return f"{scope} cannot be read: {(error.detail or error.message).rstrip('.')}."
    return f"{scope} cannot be read: the right to {error.missing.verb} them is missing. {advice(error.missing)}"


def undecoded_problems(scope: Scope, undecoded: Mapping[str, UndecodedObject], lost: int) -> list[str]:
    """Return sentences for objects that exist but cannot be decoded."""
    problems = []
    if undecoded:
        names = ", ".join(f"{key} ({item.error})" for key, item in sorted(undecoded.items())[:_MOST_NAMED])
        more = f" and {len(undecoded) - _MOST_NAMED} more" if len(undecoded) > _MOST_NAMED else ""
        problems.append(f"{len(undecoded)} of the {scope} cannot be decoded: {names}{more}.")
    if lost:
        problems.append(f"{lost} of the {scope} cannot be read at all, not even their names.")
    return problems


def visibility_problems(visibility: Visibility) -> list[str]:
    """Return sentences for missing permissions."""
    problems = []
    if not visibility.is_cluster_wide:
        names = ", ".join(filter(None, visibility.namespaces))
        problems.append(
            f"Only pods of {names} can be listed: slots that others may hold read unknown "
            "(missing right: list and watch pods in all namespaces)."
        )
    if not visibility.has_nodes:
        problems.append(
            "Nodes are known only from their pods (missing right: list and watch nodes). "
            f"{advice(MissingRight('list', 'nodes', ''))}"
        )
    return problems
