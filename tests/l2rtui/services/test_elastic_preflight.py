"""Preflight of elastic jobs: processes that would share a GPU, which NCCL refuses."""

from __future__ import annotations

import pytest

from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.preflight import Severity
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.services import runtime_commands
from l2rtui.services.spec import spec_file
from l2rtui.services.training_preflight import check_training


@pytest.fixture
def plan(tmp_path):
    def make(text, gpus=2, is_cpu=False):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        spec = spec_file.load(str(path)).spec
        cards = tuple(Gpu("n", index, f"GPU-{index}", slots=4, is_cpu=is_cpu) for index in range(gpus))
        snapshot = ClusterSnapshot({"n": Node("n", cards)})
        placement = place([spec], snapshot.ledger)
        assert not placement.conflicts
        return plan_launch([spec], placement, snapshot.nodes, owner="me", uids=["u"])

    return make


def checked(planned):
    return check_training(planned, EMPTY_SNAPSHOT)


def elastic(nodes):
    return f"kind: elastic\nname: digits\nnodes: {nodes}\n"


def test_nodes_with_a_gpu_each_are_no_finding(plan):
    assert checked(plan(elastic("{replicas: 2}"))) == ()


def test_two_nodes_on_one_gpu_are_a_warning_that_names_them(plan):
    (finding,) = checked(plan(elastic("{replicas: 3}")))
    assert (finding.severity, finding.subject) == (Severity.WARNING, "digits/nodes")
    assert finding.sentence == (
        "digits-nodes-0 and digits-nodes-2 would share the GPU n/0, and NCCL takes one process for each"
    )
    assert "fewer nodes" in finding.hint
    assert "binding: cpu" in finding.hint


def test_two_processes_of_a_node_on_its_gpu_are_a_warning_in_a_step_too(plan):
    steps = "kind: job\nname: shop\nsteps:\n  - {name: train, nodes: {replicas: 1, nproc_per_node: 2}}\n"
    for text, subject in ((elastic("{nproc_per_node: 2}"), "digits/nodes"), (steps, "shop/train")):
        (finding,) = checked(plan(text))
        assert (finding.subject, finding.severity) == (subject, Severity.WARNING)
        assert finding.sentence == "2 processes of each node would share its GPU, and NCCL takes one for each"


def test_processes_on_a_cpu_share_nothing(plan):
    assert checked(plan(elastic("{replicas: 3, nproc_per_node: 2, pod: {binding: cpu}}"))) == ()
    assert checked(plan(elastic("{replicas: 3, nproc_per_node: 2}"), gpus=1, is_cpu=True)) == ()
    assert checked(plan("kind: job\nname: j\njob: {command: [x], slots: 1}\n")) == ()


@pytest.mark.parametrize(
    ("nodes", "processes"),
    [("{slots: 4}", "auto"), ("{slots: 4, pod: {binding: cpu}}", "4"), ("{nproc_per_node: 3}", "3")],
)
def test_processes_follow_from_gpus_and_on_a_cpu_from_slots(plan, nodes, processes):
    command = plan(elastic(nodes)).runs[0].spec.sets[1].command
    assert command[command.index("--nproc-per-node") + 1] == processes
    match = runtime_commands.read_elastic(command)
    assert match is not None
    assert match[0].processes == (None if processes == "auto" else int(processes))
