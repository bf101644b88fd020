"""Manifests of a plan for people: printed, or compared with the objects in the cluster."""

from __future__ import annotations

import asyncio
import difflib
import json
from typing import Any, Final

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.plan import LaunchPlan

# Set by the server; they differ between any two objects.
_NOT_OURS: Final = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
Manifest = dict[str, Any]


def plan_manifests(plan: LaunchPlan, *, namespace: str, server: ServerFacts) -> tuple[Manifest, ...]:
    """Return the objects of a plan in the order in which they are created.

    The key of the exchange is left out, since each launch makes its own, and so are owner references, since the
    server chooses the owner's uid.

    Raises:
        RefusedError: a binding mode cannot be had.
    """
    manifests = []
    for run in plan.runs:
        for manifest in render.run_objects(run, namespace=namespace, token="", server=server):
            if manifest["kind"] == "Secret":
                manifest.pop("stringData")
            manifests.append(manifest)
    return tuple(manifests)


async def differences(context: ClusterContext, plan: LaunchPlan) -> tuple[str, ...]:
    """Return lines of a unified diff from the objects in the cluster to what the server would make of the plan.

    Raises:
        ApiError: the server does not answer, or refuses an object.
    """
    manifests = plan_manifests(plan, namespace=context.namespace, server=await context.server_facts())
    parts = await asyncio.gather(*(_difference(context.api, manifest) for manifest in manifests))
    return tuple(line for part in parts for line in part)


async def _difference(api: Api, manifest: Manifest) -> list[str]:
    kind, meta = manifest["kind"], manifest["metadata"]
    live = await api.find(kind, meta["namespace"], meta["name"]) or {}
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
