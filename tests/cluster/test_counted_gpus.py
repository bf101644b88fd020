"""l2rtui's plans by count against the real scheduler's bindings: random nodes, pods and requests.

``L2R_MIXES`` sets the number of mixes: 50, and 500 every night.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.config import Settings
from l2rtui.domain.placement import Placement, place
from l2rtui.domain.plan import plan_launch
from tests.cluster.conftest import eventually, kubectl, kubectl_json
from tests.fakes.gpu_mixes import MIX, Mix, make_mix

pytestmark = pytest.mark.cluster

MIXES = int(os.environ.get("L2R_MIXES", "50"))
BATCH = 25


@pytest.fixture
async def backend(namespace, kubeconfig):
    made = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
    yield made
    await made.close()


def applied(namespace: str, *items: dict[str, Any]) -> None:
    kubectl(
        "-n", namespace, "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )


def pods_of(mix: Mix, placement: Placement, nodes: Any) -> list[dict[str, Any]]:
    """Pods of the run: each at its planned place, and the refused ones on any node of the mix."""
    (part,) = mix.run.sets
    plan = plan_launch([mix.run], placement, nodes, owner="me", uids=[mix.run.name])
    seats = {seat.index: seat for seat in placement.seats}
    pods = []
    for index in range(part.replicas):
        if index in seats:
            planned = next(pod for pod in plan.runs[0].pods if pod.index == index)
            (group,) = render.groups_of([planned])
            template = render.controller(plan.runs[0], group, ServerFacts())["spec"]["template"]["spec"]
            selector = {labels.HOSTNAME: planned.node}
            limits = template["containers"][0]["resources"]["limits"]
        else:
            selector, limits = {}, _wanted(mix, nodes)
        spec = {
            "nodeSelector": {MIX: mix.run.name, **selector},
            "containers": [{"name": "c", "image": "any:1", "resources": {"limits": limits}}],
        }
        own = {"mix": mix.run.name, "is-planned": str(index in seats).lower()}
        pods.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{mix.run.name}-w-{index}", "labels": own},
                "spec": spec,
            }
        )
    return pods


def _wanted(mix: Mix, nodes: Any) -> dict[str, str]:
    """Request of a replica without a seat: the resource of the set, or of the nodes' GPUs."""
    (part,) = mix.run.sets
    names = {
        item.name
        for node in mix.nodes
        for item in nodes[node["metadata"]["name"]].resources
        if item.device in ("", "nvidia.com/gpu") and item.name.startswith("nvidia.com/")
    }
    return {part.pod.device or ("nvidia.com/gpu" if "nvidia.com/gpu" in names else min(names)): str(part.gpus or 1)}


def decisions(namespace: str, names: set[str]) -> dict[str, bool]:
    """Whether the scheduler has bound each pod; pods that it has not processed yet are left out."""
    decided = {}
    for pod in kubectl_json("-n", namespace, "get", "pods")["items"]:
        conditions = {item["type"]: item for item in pod["status"].get("conditions", ())}
        if pod["metadata"]["name"] in names and "PodScheduled" in conditions:
            decided[pod["metadata"]["name"]] = conditions["PodScheduled"]["status"] == "True"
    return decided


def looked_at(namespace: str, names: set[str]) -> dict[str, bool]:
    """The scheduler's decisions, once it has processed all of these pods."""
    eventually("the scheduler to look at them", lambda: decisions(namespace, names).keys() == names)
    return decisions(namespace, names)


@pytest.mark.timeout(1800)
async def test_the_scheduler_binds_what_is_planned_by_count_and_leaves_what_is_refused(backend, namespace):
    disagreements, planned_pods, refused_pods = [], 0, 0
    for start in range(0, MIXES, BATCH):
        mixes = [make_mix(seed) for seed in range(start, min(start + BATCH, MIXES))]
        applied(namespace, *(node for mix in mixes for node in mix.nodes))
        try:
            applied(namespace, *(pod for mix in mixes for pod in mix.pods))
            snapshot = await backend.snapshot()
            placements: dict[str, Placement] = {}
            wanted: list[dict[str, Any]] = []
            for mix in mixes:
                strict = place([mix.run], snapshot.ledger)
                # The scheduler does not know GPUs pinned by pods: without --overcommit fewer may be planned.
                placement = place([mix.run], snapshot.ledger, overcommit=True)
                assert len(strict.seats) == len(placement.seats) or (mix.has_pins and strict.conflicts), mix
                placements[mix.run.name] = placement
                wanted += pods_of(mix, placement, snapshot.nodes)
            applied(namespace, *(pod for pod in wanted if pod["metadata"]["labels"]["is-planned"] == "true"))
            names = {pod["metadata"]["name"] for pod in wanted}
            first = {pod["metadata"]["name"] for pod in wanted if pod["metadata"]["labels"]["is-planned"] == "true"}
            looked_at(namespace, first)
            if rest := [pod for pod in wanted if pod["metadata"]["name"] not in first]:
                applied(namespace, *rest)
            bound = looked_at(namespace, names)
            for mix in mixes:
                number = sum(bound[f"{mix.run.name}-w-{index}"] for index in range(mix.run.sets[0].replicas))
                seats = len(placements[mix.run.name].seats)
                planned_pods, refused_pods = planned_pods + seats, refused_pods + mix.run.sets[0].replicas - seats
                if number != seats:
                    disagreements.append((mix.run.name, seats, number, placements[mix.run.name].conflicts))
        finally:
            kubectl("-n", namespace, "delete", "pods", "--all", "--force", "--grace-period=0", "--wait=true")
            kubectl("delete", "nodes", *(node["metadata"]["name"] for mix in mixes for node in mix.nodes))
    print(f"{MIXES} mixes: {planned_pods} pods planned, {refused_pods} refused, {len(disagreements)} disagreements")
    assert planned_pods
    assert refused_pods
    assert not disagreements
