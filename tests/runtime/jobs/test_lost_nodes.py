"""Lost nodes without a shared volume, including the first one: training continues from the others' data."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from runtime.base import contract
from tests.runtime.jobs.elastic_jobs import Job, together
from tests.runtime.programs import Program, Programs, wait_for
from tests.tiers import starts_processes

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
SNAPSHOT_STEPS = 4
TRAIN = (
    *("l2r-runtime", "classify", "train", "--data", "digits", "--device", "cpu", "--epochs", "5000"),
    *("--step-seconds", "0.03", "--snapshot-steps", str(SNAPSHOT_STEPS)),
)


@pytest.fixture
@starts_processes
def programs():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as started:
        yield started
        for program in started.started:
            if program.process.poll() is None:
                program.kill_all()  # the trainers run in separate sessions


def node(job: Job, name: str) -> Program:
    """Start a node with a separate folder, like a pod without a claim."""
    folder = job.programs.folder / name
    folder.mkdir()
    return job.node(**{contract.ENV_DIR: str(folder), contract.ENV_POD: name})


def steps(program: Program) -> list[dict]:
    return [record for record in program.records("elastic") if "step" in record]


def last_step(*nodes: Program) -> int:
    return max((records[-1]["step"] for program in nodes if (records := steps(program))), default=0)


def lose(job: Job, nodes: dict[str, Program], name: str, substitute: str) -> dict:
    """Kill a node, start a substitute, and return the substitute's first record of training."""
    survivors = [program for other, program in nodes.items() if other != name]
    before = last_step(*nodes.values())
    wait_for(lambda: last_step(*nodes.values()) > before + 2 * SNAPSHOT_STEPS, "progress", *nodes.values())
    reached = last_step(*nodes.values())
    nodes.pop(name).kill_all()
    nodes[substitute] = node(job, substitute)
    wait_for(together(*nodes.values()), "a round with the substitute", *nodes.values())
    first = wait_for(lambda: steps(nodes[substitute]), "training of the substitute", *nodes.values())[0]
    # Only steps after the last snapshot are lost.
    assert first["resumed_step"] >= reached - SNAPSHOT_STEPS, [program.text()[-1500:] for program in survivors]
    assert first["resumed_from"] in set(nodes) - {substitute}
    return first


@pytest.mark.slow
def test_each_node_is_lost_in_turn_and_no_progress_with_it(programs):
    job = Job(programs, "c10d", *TRAIN)
    nodes = {name: node(job, name) for name in ("a", "b", "c")}
    wait_for(together(*nodes.values()), "three nodes in a round", *nodes.values())
    wait_for(lambda: all(map(steps, nodes.values())), "training", *nodes.values())
    assert "begins at epoch 0: no node has state" in nodes["a"].text()
    (first,) = (name for name, program in nodes.items() if steps(program)[-1]["rank"] == 0)
    for name, substitute in ((first, "d"), *zip(sorted(set("abc") - {first}), ("e", "f"), strict=True)):
        record = lose(job, nodes, name, substitute)
        said = f"step {record['resumed_step']}, of node {record['resumed_from']}"
        assert all(said in program.text() for program in nodes.values())
    assert not any("Traceback" in program.text() for program in programs.started)


@pytest.mark.slow
def test_without_any_node_left_training_begins_again_and_says_so(programs):
    job = Job(programs, "c10d", *TRAIN)
    nodes = [node(job, "a"), node(job, "b")]
    wait_for(together(*nodes), "two nodes in a round", *nodes)
    wait_for(lambda: last_step(*nodes) > 2 * SNAPSHOT_STEPS, "progress", *nodes)
    for program in nodes:
        program.kill_all()
    substitute = node(job, "c")
    first = wait_for(lambda: steps(substitute), "training of the substitute", substitute)[0]
    assert (first["resumed_step"], first["resumed_from"]) == (0, None)
    assert "begins again at epoch 0: no node of round" in substitute.text()
