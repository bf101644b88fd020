"""Plans: complete before execution, and readable."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.placement import Placement, Seat, place
from l2rtui.domain.plan import (
    LaunchPlan,
    PlanStep,
    StepVerb,
    device_env,
    gpu_count,
    plan_launch,
    plan_pod,
    planned_view,
)
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec

SPEC = RunSpec(
    Kind.LEARNER_WORKERS,
    "exp",
    "r",
    (
        SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner"), slots=0),
        SetSpec("w", Role.WORKER, ("l2r-runtime", "worker"), replicas=2, env=(("B", "set"), ("C", "3"))),
    ),
    seed=5,
    env=(("A", "1"), ("B", "run")),
)
NODES = {"n": Node("n", (Gpu("n", 0, "GPU-aa"), Gpu("n", 1)))}


@pytest.mark.parametrize(
    ("gpu", "nvidia", "cuda"),
    [
        (None, "none", ""),
        (Gpu("n", 0, "GPU-aa", is_cpu=True), "none", ""),
        (Gpu("n", 3, "GPU-aa"), "GPU-aa", "GPU-aa"),
        (Gpu("n", 3), "3", "3"),
    ],
)
def test_a_process_sees_its_device_and_no_other(gpu, nvidia, cuda):
    assert device_env(gpu) == (("NVIDIA_VISIBLE_DEVICES", nvidia), ("CUDA_VISIBLE_DEVICES", cuda))


def test_a_plan_joins_specs_and_seats():
    placement = place([SPEC], build_ledger(NODES.values(), []))
    plan = plan_launch([SPEC], placement, NODES, owner="me", uids=["u1"])
    (run,) = plan.runs
    assert (run.uid, run.owner, run.spec) == ("u1", "me", SPEC)
    learner, first, _ = run.pods
    assert (learner.name, learner.node, dict(learner.env)["NVIDIA_VISIBLE_DEVICES"]) == ("r-learner-0", "", "none")
    assert (first.name, first.node, first.index, first.seat.slots) == ("r-w-0", "n", 0, (SlotId("n", 0, 0),))
    assert dict(first.env) == {
        "A": "1", "B": "set", "C": "3", "NVIDIA_VISIBLE_DEVICES": "GPU-aa", "CUDA_VISIBLE_DEVICES": "GPU-aa",
    }  # fmt: skip
    assert plan.conflicts == ()


def test_the_steps_are_the_objects_in_order():
    placement = place([SPEC], build_ledger(NODES.values(), []))
    plan = plan_launch([SPEC], placement, NODES, owner="me", uids=["u1"])
    assert plan.steps() == (
        PlanStep(StepVerb.CREATE, "Run", "r", "learner-workers, seed 5"),
        PlanStep(StepVerb.CREATE, "Pod", "r-learner-0", "learner on any node, no device: l2r-runtime learner"),
        PlanStep(StepVerb.CREATE, "Pod", "r-w-0", "worker on n/0.0: l2r-runtime worker"),
        PlanStep(StepVerb.CREATE, "Pod", "r-w-1", "worker on n/0.1: l2r-runtime worker"),
    )


def test_replicas_without_a_seat_are_conflicts_and_not_pods():
    plan = plan_launch([SPEC], Placement((), ("no room",)), NODES, owner="me", uids=["u1"])
    assert plan.runs[0].pods == ()
    assert plan.conflicts == ("no room",)


def test_a_seat_on_a_node_that_is_gone_has_no_device():
    placement = Placement((Seat("r", "w", 0, (SlotId("gone", 0, 0),)),))
    plan = plan_launch([SPEC], placement, NODES, owner="me", uids=["u1"])
    assert plan.runs[0].pods[0].node == ""
    assert dict(plan.runs[0].pods[0].env)["CUDA_VISIBLE_DEVICES"] == ""


def test_every_run_needs_an_id_of_its_own():
    with pytest.raises(ValueError, match="zip"):
        plan_launch([SPEC, SPEC], Placement(), NODES, owner="me", uids=["u1"])


def test_an_empty_plan_has_no_steps():
    assert LaunchPlan(()).steps() == ()


def test_a_backend_that_makes_objects_of_its_own_says_so_in_the_steps():
    step = PlanStep(StepVerb.CREATE, "ConfigMap", "l2r-r")
    assert LaunchPlan((), objects=(step,)).steps() == (step,)


def test_a_replica_knows_its_device():
    plan = plan_launch([SPEC], place([SPEC], build_ledger(NODES.values(), [])), NODES, owner="me", uids=["u1"])
    assert [pod.gpu for pod in plan.runs[0].pods] == [None, *[NODES["n"].gpus[0]] * 2]


def test_a_gpu_counts_once_and_a_replica_whose_gpu_is_not_known_yet_counts_as_another():
    plan = plan_launch([SPEC], place([SPEC], build_ledger(NODES.values(), [])), NODES, owner="me", uids=["u1"])
    learner, *workers = plan.runs[0].pods
    assert gpu_count([learner, *workers]) == 1
    assert gpu_count([learner, workers[0], replace(workers[1], gpu=None)]) == 2
    assert gpu_count([replace(workers[0], gpu=Gpu("n", CPU, is_cpu=True))]) == 0


def test_the_view_of_a_planned_pod_has_its_slots_and_the_node_that_the_backend_chose():
    plan = plan_launch([SPEC], place([SPEC], build_ledger(NODES.values(), [])), NODES, owner="me", uids=["u1"])
    learner, worker, _ = plan.runs[0].pods
    view = planned_view(worker, "r", "me", 5, uid="p1", created=7.0)
    assert (view.uid, view.name, view.node, view.owner, view.run) == ("p1", "r-w-0", "n", "me", "r")
    assert (view.set_name, view.role, view.index, view.seed, view.created) == ("w", Role.WORKER, 0, 5, 7.0)
    assert (view.devices, view.slots) == ((DeviceUsage(0, 0),), (SlotId("n", 0, 0),))
    assert planned_view(learner, "r", "me", 5, node="elsewhere").node == "elsewhere"


def test_a_pod_that_is_bound_to_the_cpu_sees_no_gpu_wherever_it_sits():
    node = Node("n", (Gpu("n", 0, "GPU-1"),), cpu=Gpu("n", CPU, is_cpu=True))
    part = SetSpec("w", Role.WORKER, ("w",), pod=PodSettings(binding=Binding.CPU))
    spec = RunSpec(Kind.JOB, "r", "r", (part,))
    for slot in (SlotId("n", CPU, 0), SlotId("n", 0, 0)):
        planned = plan_pod(spec, part, Seat("r", "w", 0, (slot,)), {"n": node})
        assert planned.gpu is node.gpu(slot.gpu)
        assert dict(planned.env) == {"NVIDIA_VISIBLE_DEVICES": "none", "CUDA_VISIBLE_DEVICES": ""}
