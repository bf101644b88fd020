"""Manifests of a plan for display: printed, or compared with the objects in the cluster."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import network_policies, workdirs
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import kind_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.plan import LaunchPlan

# Set by the server; they differ between any two objects.
_NOT_OURS: Final = (
    "managedFields",
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
    "generateName",
    "selfLink",
)
Manifest = dict[str, Any]


async def cluster_manifests(context: ClusterContext, plan: LaunchPlan) -> tuple[Manifest, ...]:
    """Return the objects of a plan in a cluster; see `plan_manifests`.

    Raises:
        RefusedError: A binding mode is not available. ApiError: The server does not respond.
    """
    runs = await network_policies.runs_with_policy(context, plan)
    policies = {run.uid: network_policies.policy_of(context, run) for run in runs}
    server = await context.server_facts([run.spec for run in plan.runs])
    own_code = workdirs.manifests_of(context, plan)
    return (*own_code, *plan_manifests(plan, namespace=context.namespace, server=server, policies=policies))


def plan_manifests(
    plan: LaunchPlan,
    *,
    namespace: str,
    server: ServerFacts,
    policies: Mapping[str, Manifest] = MappingProxyType({}),
) -> tuple[Manifest, ...]:
    """Return the objects of a plan in the order in which they are created.

    The exchange key is left out, since each launch generates its own, and so are owner references, since the server
    chooses the owner's uid.

    Raises:
        RefusedError: A binding mode is not available.

    Args:
        policies: Network policies by the uid of their run.
    """
    manifests: list[Manifest] = []
    for run in plan.runs:
        owner, *owned = render.sent_objects(run, namespace=namespace, token="", server=server)
        policy = [policies[run.uid]] if run.uid in policies else []
        for manifest in (owner, *policy, *owned):
            if manifest["kind"] == "Secret":
                manifest.pop("stringData")
            manifests.append(manifest)
    return tuple(manifests)


async def differences(context: ClusterContext, plan: LaunchPlan) -> tuple[str, ...]:
    """Return lines of a unified diff from the objects in the cluster to the result of the plan on the server.

    A line before an object says if a changed field is immutable, such as the template of a Job.

    Raises:
        ApiError: The server does not respond, or refuses an object.
    """
    manifests = await cluster_manifests(context, plan)
    parts = await asyncio.gather(*(_difference(context.api, manifest) for manifest in manifests))
    return tuple(line for part in parts for line in part)


async def _difference(api: Api, manifest: Manifest) -> list[str]:
    kind, meta = manifest["kind"], manifest["metadata"]
    live = await api.find(kind_of(manifest), meta["namespace"], meta["name"]) or {}
    notes: list[str] = []
    name = f"{kind}/{meta['name']}"
    try:
        # A dry run, so that defaults and admission changes appear on both sides and not as differences.
        applied = await api.apply(manifest, dry_run=True, force=True)
    except ApiError as error:
        if not live or not error.is_invalid:
            raise
        applied = await _made_anew(api, manifest, live, error)
        run = meta["labels"][labels.RUN]
        notes.append(
            f"# {name} cannot be changed into this. A launch creates it anew, and only where none is: "
            f"after `l2rtui destroy {run}`, or with another --name."
        )
    lines = difflib.unified_diff(_lines(live), _lines(applied), f"there/{name}", f"plan/{name}", lineterm="", n=2)
    return [*notes, *lines]


async def _made_anew(api: Api, manifest: Manifest, live: Manifest, refusal: ApiError) -> Manifest:
    """Return the object that the server would create instead of an object that cannot be changed in this way.

    Raises:
        ApiError: The refusal, if the server would not create it either: then the object itself is at fault.
    """
    meta = manifest["metadata"]
    # Under a name of the server's choice, since the object's own name is taken. Truncated for names of at most 63.
    unnamed = {key: value for key, value in meta.items() if key != "name"} | {
        "generateName": f"{meta['name'][:50]}-"
    }
    try:
        created = await api.create({**manifest, "metadata": unnamed}, dry_run=True)
    except ApiError as error:
        raise refusal from error
    drawn = created["metadata"]
    # Controllers' selectors and labels contain name and uid, which say nothing about the plan.
    names = {drawn.get("name"): meta["name"], drawn.get("uid"): live["metadata"]["uid"]}
    made: Manifest = _replaced(created, names)
    there, ours = live["metadata"], made["metadata"]
    # A change would keep fields that others have set.
    foreign = {key: there[key] for key in ("ownerReferences", "finalizers") if key in there}
    annotations = {**(there.get("annotations") or {}), **(ours.get("annotations") or {})}
    made["metadata"] = {**ours, **foreign, **({"annotations": annotations} if annotations else {})}
    return made


def _replaced(value: Any, texts: Mapping[str | None, str]) -> Any:
    """Return JSON with some texts replaced, if they are a complete value."""
    if isinstance(value, dict):
        return {key: _replaced(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, texts) for item in value]
    return texts.get(value, value) if isinstance(value, str) else value


def _lines(manifest: Manifest) -> list[str]:
    if not manifest:
        return []
    if manifest.get("kind") == "Secret":
        manifest = {key: value for key, value in manifest.items() if key not in ("data", "stringData")}
    meta = {key: value for key, value in manifest["metadata"].items() if key not in _NOT_OURS}
    compared = {key: value for key, value in manifest.items() if key != "status"} | {"metadata": meta}
    return json.dumps(compared, indent=1, sort_keys=True).splitlines()
