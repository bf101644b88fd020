"""Quota of a namespace, and storage that only one node can mount: reported before anything is created."""

from __future__ import annotations

import json
import uuid

import pytest

from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.config import Settings
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.sidecar import sidecar_of
from l2rtui.domain.workload import Kind, Resources, RestartPolicy, Role, RunSpec, SetSpec
from tests.cluster.conftest import eventually, kubectl, kubectl_json

pytestmark = pytest.mark.cluster

GIB = 2**30
NODES = ("phortx1", "phortx2")


@pytest.fixture
async def backend(namespace, kubeconfig):
    made = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
    yield made
    await made.close()


async def judged(backend, *, mounts=(), role=Role.JOB, train="{}"):
    """Findings about a run with a pod of one core and 1 GiB on each of two nodes."""
    snapshot = await backend.snapshot()
    slots = [next(slot for slot in snapshot.ledger.free() if slot.node == node) for node in NODES]
    one = SetSpec(
        "w",
        role,
        ("sleep", "600"),
        replicas=2,
        restart=RestartPolicy.ALWAYS,
        resources=Resources(1.0, GIB),
        pod=PodSettings(mounts=mounts),
    )
    spec = RunSpec(Kind.JOB, "big", "big", (one,), image="any:1", train=train)
    seats = tuple(Seat("big", "w", index, (slot,)) for index, slot in enumerate(slots))
    plan = plan_launch([spec], Placement(seats), snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
    found = await backend.check(await backend.planned(plan))
    return spec, {one.sentence: one.severity for one in found if one.severity is not Severity.OK}


def refusal(found, words):
    return [text for text, weight in found.items() if words in text and weight is Severity.REFUSAL]


def quota(namespace, hard):
    kubectl("-n", namespace, "create", "quota", "small", f"--hard={hard}")
    eventually(
        "its usage to be counted",
        lambda: kubectl_json("-n", namespace, "get", "quota", "small").get("status", {}).get("used"),
    )


def limit_range(namespace, **limits):
    manifest = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small", "namespace": namespace},
        "spec": {"limits": [{"type": "Container", **limits}]},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(manifest))


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ("requests.cpu=1500m", "it leaves 1500m of requests.cpu, and the plan needs 2"),
        ("requests.memory=1536Mi", "of requests.memory, and the plan needs 2"),
        ("limits.memory=1Gi", "of limits.memory, and the plan needs 2"),
        ("count/replicasets.apps=1", "it leaves 1 of count/replicasets.apps, and the plan needs 2"),
    ],
)
async def test_a_quota_without_room_is_a_refusal(backend, namespace, hard, words):
    quota(namespace, hard)
    _, found = await judged(backend)
    assert refusal(found, words), found


async def test_a_quota_with_room_for_the_worker_and_none_for_its_simulator_is_a_refusal(backend, namespace):
    quota(namespace, "requests.cpu=3")
    simulator = {"kind": "sidecar", "cpu_cores": 1}
    train = {"environment": "l2r", "environment_options": {"simulator": simulator}, "num_envs": 1}
    spec, found = await judged(backend, role=Role.WORKER, train=json.dumps(train))
    assert sidecar_of(spec, spec.sets[0]) is not None
    assert refusal(found, "it leaves 3 of requests.cpu, and the plan needs 4"), found


async def test_a_limit_range_that_the_pods_exceed_is_a_refusal_in_the_servers_words(backend, namespace):
    limit_range(namespace, max={"memory": "512Mi"})
    _, found = await judged(backend)
    assert refusal(found, "maximum memory usage per Container is 512Mi"), found


async def test_a_limit_range_that_they_keep_is_none(backend, namespace):
    limit_range(namespace, max={"memory": "2Gi"}, defaultRequest={"cpu": "100m"})
    _, found = await judged(backend)
    assert Severity.REFUSAL not in found.values(), found


@pytest.mark.parametrize(("mode", "is_refused"), [("ReadWriteOnce", True), ("ReadWriteMany", False)])
async def test_a_claim_for_one_node_is_refused_to_pods_on_two(backend, namespace, mode, is_refused):
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": namespace},
        "spec": {"accessModes": [mode], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(claim))
    _, found = await judged(backend, mounts=(Mount("/data", claim="data"),))
    words = "it is ReadWriteOnce, and pods on phortx1, phortx2 would mount it: all but one node would wait for ever"
    assert bool(refusal(found, words)) is is_refused, found
    if not is_refused:
        assert any("pods wait until it gets a volume" in text for text in found), found
