"""The objects of a plan as people print and compare them: what is sent, and how it differs from what is there."""

from __future__ import annotations

import asyncio
import difflib
import json
from typing import Any, Final

from l2rtui.backends.kubernetes import render
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.podspec import ServerFacts
from l2rtui.domain.plan import LaunchPlan

_NOT_OURS: Final = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
Manifest = dict[str, Any]


def plan_manifests(plan: LaunchPlan, *, namespace: str, server: ServerFacts) -> tuple[Manifest, ...]:
    """The objects of a plan in the order in which they are created.

    The key of the exchange is left out, since it is made at the launch, and so are owner references, since the
    owner's uid is given by the server.

    Raises:
        RefusedError: a binding mode cannot be had.
    """
    found = []
    for run in plan.runs:
        for manifest in render.run_objects(run, namespace=namespace, token="", server=server):
            if manifest["kind"] == "Secret":
                manifest.pop("stringData")
            found.append(manifest)
    return tuple(found)


async def differences(api: Api, plan: LaunchPlan, *, namespace: str, server: ServerFacts) -> tuple[str, ...]:
    """Lines of a unified diff from what is there to what the server would make of the plan.

    Raises:
        ApiError: the server does not answer, or refuses an object.
    """
    manifests = plan_manifests(plan, namespace=namespace, server=server)
    parts = await asyncio.gather(*(_difference(api, manifest) for manifest in manifests))
    return tuple(line for part in parts for line in part)


async def _difference(api: Api, manifest: Manifest) -> list[str]:
    kind, meta = manifest["kind"], manifest["metadata"]
    try:
        live = await api.read(kind, meta["namespace"], meta["name"])
    except ApiError as error:
        if not error.is_not_found:
            raise
        live = {}
    wanted = await api.apply(manifest, dry_run=True, force=True)
    name = f"{kind}/{meta['name']}"
    return list(
        difflib.unified_diff(_lines(live), _lines(wanted), f"there/{name}", f"plan/{name}", lineterm="", n=2)
    )


def _lines(manifest: Manifest) -> list[str]:
    if not manifest:
        return []
    if manifest.get("kind") == "Secret":
        manifest = {key: value for key, value in manifest.items() if key not in ("data", "stringData")}
    meta = {key: value for key, value in manifest["metadata"].items() if key not in _NOT_OURS}
    shown = {key: value for key, value in manifest.items() if key != "status"} | {"metadata": meta}
    return json.dumps(shown, indent=1, sort_keys=True).splitlines()
