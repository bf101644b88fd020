"""A cluster in memory with one node of two GPUs, and plans on it."""

from __future__ import annotations

import uuid

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.actions import slot_races
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.placement import parse_pins, place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.snapshot import RunView
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from tests.fakes.kubernetes_objects import ObjectServer, serving

NODE = {
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {labels.GPUS: "2", labels.HOSTNAME: "n1"}},
    "spec": {},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"},
        "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
    },
}


@pytest.fixture(autouse=True)
def no_patience_for_controllers(monkeypatch):
    """The server's controllers make their pods at once, or none."""
    monkeypatch.setattr(slot_races, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(slot_races, "APPEAR_SECONDS", 0.05)


@pytest.fixture
async def server():
    async with serving(ObjectServer()) as running:
        running.put(NODE)
        yield running


@pytest.fixture
async def context(server):
    api = server.api()
    yield ClusterContext(api)
    await api.close()


@pytest.fixture
async def other(server):
    """Another user of the same cluster."""
    api = server.api()
    yield ClusterContext(api)
    await api.close()


class Cluster:
    """Plans and launches in a context."""

    def __init__(self, context):
        self.context = context

    async def plan(self, name="r", replicas=2, pins="", context=None, wave=0, restart=RestartPolicy.ALWAYS, gpus=0):
        context = context or self.context
        set_spec = SetSpec("w", Role.WORKER, ("w",), replicas=replicas, restart=restart, gpus=gpus)
        spec = RunSpec(Kind.JOB, name, name, (set_spec,), image="i:1")
        snapshot = await context.snapshot()
        placement = place((spec,), snapshot.ledger, pins=parse_pins(pins) if pins else ())
        uids = [uuid.uuid4().hex]
        plan = plan_launch((spec,), placement, snapshot.nodes, owner="anna@lab", uids=uids)
        return await launching.with_objects(context, replace(plan, wave=wave))

    async def launch(self, *args, context=None, **kwargs):
        plan = await self.plan(*args, context=context, **kwargs)
        return [done async for done in launching.launch(context or self.context, plan)]

    async def run(self, name="r"):
        return next(run for run in (await self.context.snapshot()).runs.values() if run.name == name)

    def view(self, server, name="r"):
        """The run as a destroy needs it."""
        results = server.get("ConfigMap", labels.run_object(name))["metadata"]
        return RunView(results["labels"][labels.RUN_ID], name, name, namespace="ml")


@pytest.fixture
def cluster(context):
    return Cluster(context)
