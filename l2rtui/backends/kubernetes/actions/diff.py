"""Manifests of a plan for people: printed, or compared with the objects in the cluster."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from l2rtui.backends.kubernetes.actions import network_policies
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.resources import kind_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.plan import LaunchPlan

# Set by the server; they differ between any two objects.
_NOT_OURS: Final = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
Manifest = dict[str, Any]


async def cluster_manifests(context: ClusterContext, plan: LaunchPlan) -> tuple[Manifest, ...]:
    """Return the objects of a plan in a cluster; see `plan_manifests`.

    Raises:
        RefusedError: a binding mode cannot be had. ApiError: the server does not answer.
    """
    runs = await network_policies.runs_with_policy(context, plan)
    policies = {run.uid: network_policies.policy_of(context, run) for run in runs}
    server = await context.server_facts()
    return plan_manifests(plan, namespace=context.namespace, server=server, policies=policies)


def plan_manifests(
    plan: LaunchPlan,
    *,
    namespace: str,
    server: ServerFacts,
    policies: Mapping[str, Manifest] = MappingProxyType({}),
) -> tuple[Manifest, ...]:
    """Return the objects of a plan in the order in which they are created.

    The key of the exchange is left out, since each launch makes its own, and so are owner references, since the
    server chooses the owner's uid.

    Raises:
        RefusedError: a binding mode cannot be had.

    Args:
        policies: Network policies by the uid of their run.
    """
    manifests: list[Manifest] = []
    for run in plan.runs:
        owner, *owned = render.run_objects(run, namespace=namespace, token="", server=server)
        policy = [policies[run.uid]] if run.uid in policies else []
        for manifest in (owner, *policy, *owned):
            if manifest["kind"] == "Secret":
                manifest.pop("stringData")
            manifests.append(manifest)
    return tuple(manifests)


async def differences(context: ClusterContext, plan: LaunchPlan) -> tuple[str, ...]:
    """Return lines of a unified diff from the objects in the cluster to what the server would make of the plan.

    Raises:
        ApiError: the server does not answer, or refuses an object.
    """
    manifests = await cluster_manifests(context, plan)
    parts = await asyncio.gather(*(_difference(context.api, manifest) for manifest in manifests))
    return tuple(line for part in parts for line in part)


async def _difference(api: Api, manifest: Manifest) -> list[str]:
    kind, meta = manifest["kind"], manifest["metadata"]
    live = await api.find(kind_of(manifest), meta["namespace"], meta["name"]) or {}
    # A dry run, so that defaults and admission show in both sides and not as differences.
    applied = await api.apply(manifest, dry_run=True, force=True)
    name = f"{kind}/{meta['name']}"
    return list(
        difflib.unified_diff(_lines(live), _lines(applied), f"there/{name}", f"plan/{name}", lineterm="", n=2)
    )


def _lines(manifest: Manifest) -> list[str]:
    if not manifest:
        return []
    if manifest.get("kind") == "Secret":
        manifest = {key: value for key, value in manifest.items() if key not in ("data", "stringData")}
    meta = {key: value for key, value in manifest["metadata"].items() if key not in _NOT_OURS}
    compared = {key: value for key, value in manifest.items() if key != "status"} | {"metadata": meta}
    return json.dumps(compared, indent=1, sort_keys=True).splitlines()
