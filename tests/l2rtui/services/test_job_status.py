"""Records of runs without a learner: the records of several pods are merged, and nonsense is ignored."""

from __future__ import annotations

import json

import pytest

from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.job_status import Evaluation, NodeState, PodReading, PsProcessState, StepState, summary
from l2rtui.services.runtime_commands import Step, step


def spec(*names):
    sets = tuple(SetSpec(name, Role.JOB, step(Step(name), ("x",)), stable=True) for name in names)
    return RunSpec(Kind.JOB, "r", "r", sets or (SetSpec("w", Role.WORKER, ("w",)),))


def reading(pod, *records):
    found = PodReading(pod)
    for record in records:
        found.read_line(record if isinstance(record, str) else json.dumps(record, separators=(",", ":")))
    return found


def said(name, state, time=1.0, **more):
    return {"l2r": "step", "time": time, "name": name, "state": state, **more}


def test_steps_stand_in_their_order_with_what_their_pods_have_said():
    readings = [
        reading("c", said("c", "waiting")),
        reading("a", said("a", "running"), said("a", "done", exit_code=0, seconds=2.5)),
        reading("b-1", said("b", "running")),
        reading("b-2", said("b", "skipped"), "another line"),
    ]

    assert summary(spec("a", "b", "c", "d"), readings).steps == (
        StepState("a", "done", 0, 2.5, time=1.0),
        StepState("b", "running", time=1.0),
        StepState("c", "waiting", time=1.0),
        StepState("d"),
    )


def test_a_node_has_a_place_from_its_agent_and_a_loss_from_its_program():
    found = reading(
        "n-0",
        {"l2r": "elastic", "time": 1, "state": "training", "rank": 1, "world_size": 3, "round": 2, "nodes": 3},
        {
            "l2r": "elastic", "time": 2, "rank": 1, "world_size": 3, "round": 2, "step": 40, "epoch": 1,
            "loss": 0.5, "resumed_step": 36, "resumed_from": "n-1",
        },
    )  # fmt: skip
    node = NodeState("n-0", "training", 1, 3, 2, 1, 40, 0.5, time=2.0, resumed_step=36, resumed_from="n-1")
    assert summary(spec(), [found]).nodes == (node,)


def test_servers_and_workers_say_their_steps():
    found = reading(
        "w-1",
        {"l2r": "ps", "time": 1, "role": "worker", "index": 1, "global_step": 9, "local_step": 4, "loss": 1.5},
        {"l2r": "ps", "time": 2, "role": "worker", "index": 1, "global_step": 11, "local_step": 5},
    )
    assert summary(spec(), [found]).peers == (PsProcessState("w-1", "worker", 1, 11, 5, 1.5, 2.0),)


def test_the_newest_evaluation_counts():
    old = reading("e-0", {"l2r": "evaluation", "time": 1, "accuracy": 0.1, "classes": {}})
    new = reading(
        "e-1", {"l2r": "evaluation", "time": 2, "accuracy": 0.9, "samples": 10, "classes": {"0": 1, "1": 0.8}}
    )
    assert summary(spec(), [new, old]).evaluation == Evaluation(0.9, 10, (("0", 1.0), ("1", 0.8)), 2.0)
    assert summary(spec(), []).evaluation is None


@pytest.mark.parametrize(
    "record",
    [
        '{"l2r":"step","name":5,"state":"done"}',
        '{"l2r":"step","name":"a","state":"flying"}',
        '{"l2r":"step","name":"a","state":["done"]}',
        '{"l2r":"evaluation","accuracy":"high"}',
        '{"l2r":"evaluation","accuracy":1e999}',
        '{"l2r":"unheard"}',
        '{"l2r":7}',
        "{",
    ],
)
def test_what_is_no_record_says_nothing(record):
    found = summary(spec("a"), [reading("p", record)])
    assert (found.steps, found.evaluation) == ((StepState("a"),), None)


def test_numbers_that_are_none_read_as_missing():
    found = reading("p", {"l2r": "elastic", "rank": "first", "loss": True, "state": "x" * 9999, "round": None})
    (node,) = summary(spec(), [found]).nodes
    assert (node.rank, node.loss, node.round, len(node.state)) == (None, None, None, 200)
