"""Destroying by seed and by set, and the behaviour of a launch whose run is destroyed in between."""

from __future__ import annotations

import uuid
from contextlib import aclosing

import pytest

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import launch as launching
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.config import Settings
from l2rtui.domain.placement import Placement, Seat
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.workload import Kind, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import RefusedError
from tests.cluster.conftest import IMAGE, eventually, kubectl, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPEC = f"""\
kind: learner-workers
name: e
image: {IMAGE}
learner: {{command: [sleep, "600"], grace_seconds: 1, restart: Always}}
workers:
  - {{name: w, command: [sleep, "600"], replicas: 2, restart: Always, grace_seconds: 1}}
  - {{name: v, command: [sleep, "600"], replicas: 1, grace_seconds: 1}}
"""
CONTROLLERS = "jobs,replicasets"


@pytest.fixture
async def backend(namespace, kubeconfig):
    made = KubernetesBackend(Settings(namespaces=(namespace,)), kubeconfig)
    yield made
    await made.close()


def free_gpus(cli, count):
    """GPUs of stand-in nodes of which every slot is free."""
    free = {}
    for slot in cli.json("slots"):
        key = f"{slot['node']}/{slot['gpu']}"
        free[key] = free.get(key, 0) + (slot["state"] == "free" and slot["node"] != "phortx0")
    return ",".join([key for key, number in free.items() if number == 4][:count])


def names(namespace, kinds, selector=labels.RUN):
    return {obj["metadata"]["name"] for obj in kubectl_json("-n", namespace, "get", kinds, "-l", selector)["items"]}


def test_rows_and_cells_are_destroyed_each_with_its_receipt(cli, namespace, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    launched = cli.json("launch", "-f", str(spec), "--seeds", "0-2", "--on", free_gpus(cli, 3), "--yes")
    assert [len(run["pods"]) for run in launched] == [4, 4, 4], "what was planned is told before it shows"
    assert all(pod["node"] and pod["slots"] and pod["uid"] is None for run in launched for pod in run["pods"])
    eventually("all pods to run", lambda: sum(pod["ready"] for pod in cli.json("pods") if pod["run"]) == 12)

    row = cli.json("destroy", "e", "--seed", "1", "--yes")
    assert (row["run"], row["left"], row["objects"] > 4) == ("e-s1", 0, True)
    assert {run["run"] for run in cli.json("runs")} == {"e-s0", "e-s2"}
    assert names(namespace, f"pods,{CONTROLLERS},cm,secret,svc", f"{labels.RUN}=e-s1") == set()

    cell = cli.json("destroy", "e-s0/w", "--yes")
    assert (cell["run"], cell["objects"], cell["left"]) == ("e-s0/w", 2, 0)
    assert names(namespace, f"pods,{CONTROLLERS}", f"{labels.RUN}=e-s0,{labels.SET}=w") == set()
    assert names(namespace, CONTROLLERS, f"{labels.RUN}=e-s0") == {"e-s0-learner", "e-s0-v"}
    assert {slot["set"] for slot in cli.json("slots") if slot["run"] == "e-s0"} == {"learner", "v"}

    cli.run("scale", "e-s0/w", "1")
    # It may be on the real node, whose kubelet keeps a pod Terminating for two minutes if it is deleted while its
    # volumes are being mounted: so wait until it runs.
    eventually(
        "the set to run again",
        lambda: [pod for pod in cli.json("pods") if (pod["run"], pod["set"], pod["ready"]) == ("e-s0", "w", True)],
    )
    column = cli.json("destroy", "e/v", "e-s0/w", "--yes", "--all-matching")
    assert {receipt["run"]: receipt["left"] for receipt in column} == {"e-s0/v": 0, "e-s2/v": 0, "e-s0/w": 0}
    assert [receipt["left"] for receipt in cli.json("destroy", "e", "--yes", "--all-matching")] == [0, 0]
    assert names(namespace, f"pods,{CONTROLLERS},cm,secret,svc,lease", labels.APP_MANAGED_BY) == set()


async def carried_out(steps):
    """Continue a launch to its end."""
    async with aclosing(steps):
        return [done.error async for done in steps]


@pytest.mark.parametrize("how", ["deleted", "marked"])
async def test_a_launch_stops_when_its_run_is_destroyed_meanwhile(backend, namespace, how):
    snapshot = await backend.snapshot()
    slot = next(slot for slot in snapshot.ledger.free() if slot.node == "phortx3")
    obj = SetSpec("w", Role.WORKER, ("sleep", "600"), restart=RestartPolicy.ALWAYS, grace_seconds=1.0)
    spec = RunSpec(Kind.JOB, "gone", "gone", (obj,), image="any:1")
    placement = Placement((Seat("gone", "w", 0, (slot,)),))
    plan = plan_launch([spec], placement, snapshot.nodes, owner="me", uids=[uuid.uuid4().hex])
    api = await backend.api()

    async def look():
        """Actions of another user between the claims and the pods."""
        if how == "deleted":
            kubectl("-n", namespace, "delete", "cm", "l2r-gone")
        else:
            kubectl("-n", namespace, "annotate", "cm", "l2r-gone", f"{labels.TERMINATING}=2026-01-01T00:00:00Z")
        return await backend.snapshot()

    context = ClusterContext(api)
    plan = await launching.with_objects(context, plan)
    await context.snapshot()  # for the server's facts; the launch's own list comes later
    context.list_cluster = look
    steps = launching.launch(context, plan)
    with pytest.raises(RefusedError, match="gone: destroyed while it was being launched"):
        await carried_out(steps)
    assert names(namespace, f"pods,{CONTROLLERS}") == set()
