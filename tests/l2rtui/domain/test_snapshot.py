"""Snapshots: the meaning of names, and the derived ledger."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.domain.ledger import DeviceUsage, SlotState
from l2rtui.domain.node import Gpu, GpuShare, GpuUse, Node, SlotId
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot, PodView, RunView, SetView, has_finished
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role


def pod(name, run="", set_name="", role=None, index=0, **state):
    return PodView(f"uid-{name}", name, "n", run=run, set_name=set_name, role=role, index=index, **state)


PODS = (
    pod("exp-s1-w-1", "exp-s1", "w", Role.WORKER, 1),
    pod("exp-s1-eval-0", "exp-s1", "eval", Role.EVALUATOR),
    pod("exp-s1-w-0", "exp-s1", "w", Role.WORKER, 0),
    pod("exp-s1-learner-0", "exp-s1", "learner", Role.LEARNER),
    pod("exp-s0-w-0", "exp-s0", "w", Role.WORKER, 0),
    pod("stranger"),
)
RUNS = (RunView("u1", "exp-s1", "exp"), RunView("u0", "exp-s0", "exp"))
SNAPSHOT = ClusterSnapshot({}, {one.uid: one for one in PODS}, {one.uid: one for one in RUNS})


def test_pods_of_a_run_come_learner_first_then_by_set_and_index():
    assert [one.name for one in SNAPSHOT.pods_of("exp-s1")] == [
        "exp-s1-learner-0", "exp-s1-eval-0", "exp-s1-w-0", "exp-s1-w-1",
    ]  # fmt: skip
    assert [one.name for one in SNAPSHOT.pods_of("exp-s1", "w")] == ["exp-s1-w-0", "exp-s1-w-1"]
    assert SNAPSHOT.pods_of("nothing") == ()


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("exp-s1/w", ["exp-s1-w-0", "exp-s1-w-1"]),
        ("exp-s1/w/1", ["exp-s1-w-1"]),
        ("exp-s1/w/7", []),
        ("exp-s1/w/1/2", []),
        ("exp-s1/x", []),
        ("exp-s0", ["exp-s0-w-0"]),
        ("exp/w", ["exp-s0-w-0", "exp-s1-w-0", "exp-s1-w-1"]),
        ("stranger", ["stranger"]),
        ("exp-s1-w-1", ["exp-s1-w-1"]),
        ("nothing", []),
        ("nothing/w", []),
        ("", []),
    ],
)
def test_what_a_person_means_by_a_name(target, names):
    assert [one.name for one in SNAPSHOT.select(target)] == names


NAMESAKES = (
    RunView("r", "racing", "racing", sets=(SetView("w", Role.WORKER, 1),)),
    RunView("r0", "racing-s0", "racing", sets=(SetView("w", Role.WORKER, 1),)),
    RunView("e", "exp", "night", sets=(SetView("racing", Role.WORKER, 1),)),
)
OF_NAMESAKES = (
    pod("racing-w-0", "racing", "w", Role.WORKER),
    pod("racing-s0-w-0", "racing-s0", "w", Role.WORKER),
    pod("exp-racing-0", "exp", "racing", Role.WORKER),
    pod("racing"),
    pod("exp"),
)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("racing", ["racing-w-0"]),  # the exact name of a run: neither its experiment nor the pod of that name
        ("racing/w", ["racing-w-0"]),
        ("racing/w/0", ["racing-w-0"]),
        ("experiment/racing", ["racing-w-0", "racing-s0-w-0"]),
        ("experiment/racing/w", ["racing-w-0", "racing-s0-w-0"]),
        ("exp/racing", ["exp-racing-0"]),  # a set of the run named exp
        ("experiment/night", ["exp-racing-0"]),
        ("exp/night/racing/0", ["exp-racing-0"]),
        ("night", ["exp-racing-0"]),  # no run has this name
        ("run/racing", ["racing-w-0"]),
        ("run/racing-s0/w/0", ["racing-s0-w-0"]),
        ("pod/racing", ["racing"]),
        ("pod/racing-w-0", ["racing-w-0"]),
        ("pod/exp", ["exp"]),
        ("node/racing", []),
        ("experiment/nothing", []),
        ("experiment", []),
    ],
)
def test_an_exact_run_name_means_that_run_and_an_experiment_has_a_spelling_of_its_own(target, names):
    pods, runs = {one.uid: one for one in OF_NAMESAKES}, {one.uid: one for one in NAMESAKES}
    assert [one.name for one in ClusterSnapshot({}, pods, runs).select(target)] == names


def test_runs_of_two_namespaces_with_one_name_keep_their_pods_apart():
    runs = [RunView(f"u-{space}", "r", "r", namespace=space) for space in ("lab", "team")]
    pods = [
        PodView(f"p-{space}", "r-w-0", "n", run="r", set_name="w", namespace=space) for space in ("lab", "team")
    ]
    both = ClusterSnapshot({}, {one.uid: one for one in pods}, {one.uid: one for one in runs})
    assert [one.uid for one in both.pods_of(runs[1])] == ["p-team"]
    assert [one.uid for one in both.runs_matching("r")] == ["u-lab", "u-team"]
    assert [one.uid for one in both.in_namespace("team").select("r")] == ["p-team"]


def test_runs_are_found_by_name_and_by_experiment():
    assert SNAPSHOT.run_named("exp-s1") is RUNS[0]
    assert SNAPSHOT.run_named("exp") is None
    assert [run.name for run in SNAPSHOT.runs_matching("exp")] == ["exp-s0", "exp-s1"]
    assert [run.name for run in SNAPSHOT.runs_matching("exp-s0")] == ["exp-s0"]


@pytest.mark.parametrize(
    ("state", "is_down"),
    [
        ({"phase": Phase.RUNNING}, False),
        ({"phase": Phase.UNKNOWN}, False),
        ({"phase": Phase.PENDING}, True),
        ({"phase": Phase.SUCCEEDED}, True),
        ({"phase": Phase.FAILED}, True),
        ({"phase": Phase.RUNNING, "reason": "CrashLoopBackOff"}, True),
    ],
)
def test_a_pod_is_down_while_none_of_its_processes_runs(state, is_down):
    assert pod("a", **state).is_down is is_down


def test_the_ledger_counts_pods_that_are_not_over():
    holding = (
        pod("a", devices=(DeviceUsage(0, 0),), phase=Phase.RUNNING),
        pod("b", devices=(DeviceUsage(0, 1),), phase=Phase.PENDING, reason="CrashLoopBackOff"),
        pod("c", devices=(DeviceUsage(0, 2),), phase=Phase.SUCCEEDED),
        pod("d", devices=(DeviceUsage(0, 3),), phase=Phase.FAILED),
        pod("e", devices=(DeviceUsage(1, 0),), phase=Phase.RUNNING, is_terminating=True),
    )
    nodes = {"n": Node("n", (Gpu("n", 0), Gpu("n", 1)))}
    ledger = ClusterSnapshot(nodes, {one.uid: one for one in holding}).ledger
    shown = [slot.state for slot in ledger.of_gpu("n", 0)]
    assert shown == [SlotState.BUSY, SlotState.FAILED, SlotState.FREE, SlotState.FREE]
    assert ledger.slots[SlotId("n", 1, 0)].state is SlotState.BUSY


def test_pods_are_counted_on_nodes_whose_pods_can_all_be_listed():
    places = {"a": "n", "b": "n", "c": "m", "d": ""}
    pods = [PodView(name, name, node) for name, node in places.items()]
    pods.append(PodView("over", "over", "n", phase=Phase.FAILED))
    nodes = {name: Node(name, is_use_known=name != "m") for name in ("n", "m", "empty")}
    snapshot = ClusterSnapshot(nodes, {row.uid: row for row in pods})
    assert [snapshot.num_pods_on(node) for node in nodes.values()] == [2, None, 0]


def test_a_pod_knows_its_exact_slots_alone():
    one = pod("p", devices=(DeviceUsage(0, 2), DeviceUsage(1), DeviceUsage(None)))
    assert one.slots == (SlotId("n", 0, 2),)


def test_a_pod_that_fails_is_for_people_to_look_at():
    assert pod("p", phase=Phase.FAILED).is_failing
    assert not pod("p", phase=Phase.RUNNING).is_failing


def test_the_empty_snapshot_is_empty():
    assert not EMPTY_SNAPSHOT.nodes
    assert EMPTY_SNAPSHOT.ledger.free() == ()


@pytest.mark.parametrize(
    ("kind", "phases", "is_done"),
    [
        ("parameter-server", (Phase.RUNNING, Phase.SUCCEEDED, Phase.SUCCEEDED), True),
        ("parameter-server", (Phase.RUNNING, Phase.SUCCEEDED, Phase.RUNNING), False),
        ("parameter-server", (Phase.RUNNING, Phase.SUCCEEDED), False),
        ("elastic", (Phase.RUNNING, Phase.SUCCEEDED, Phase.SUCCEEDED), True),
        ("job", (Phase.SUCCEEDED, Phase.SUCCEEDED, Phase.SUCCEEDED), False),
    ],
)
def test_a_run_has_finished_when_those_it_is_about_have(kind, phases, is_done):
    sets = (SetView("ps", Role.PS, 1), SetView("worker", Role.WORKER, 2))
    roles = (("ps", Role.PS), ("worker", Role.WORKER), ("worker", Role.WORKER))
    pods = [
        pod(f"r-{n}", "r", *role, phase=phase) for n, (role, phase) in enumerate(zip(roles, phases, strict=False))
    ]
    assert has_finished(RunView("u", "r", "r", kind=kind, sets=sets), pods) is is_done


def test_a_set_of_a_run_is_looked_up_by_name():
    run = RunView("u", "r", "e", sets=(SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, 4)))
    assert run.set_named("w") is run.sets[1]
    assert run.set_named("x") is None


def test_the_part_of_a_gpu_that_a_pod_uses_is_unknown_where_nobody_tells():
    share, stray = GpuShare("uid-a", 30.0, 1 << 30), GpuShare("uid-a", 1.0)
    uses = (GpuUse(0, 50.0, shares=(share,)), GpuUse(1, 9.0), GpuUse(2, 1.0, shares=(stray,)), GpuUse(3, 2.0))
    placed = pod("a", devices=(DeviceUsage(0, 1), DeviceUsage(1, 0), DeviceUsage(9, 0)))
    snapshot = ClusterSnapshot({"n": Node("n", gpu_use=uses)}, {placed.uid: placed})
    # Its processes are also on GPU2, where it was not placed; GPU9 has no measurement.
    assert snapshot.gpu_shares(placed) == {0: share, 1: None, 2: stray}
    assert snapshot.gpu_shares(replace(placed, phase=Phase.SUCCEEDED)) == {}
    assert snapshot.gpu_shares(replace(placed, node="m")) == {}
