"""Elastic jobs as real processes: rounds that nodes join, leave and die in, and training that continues."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from runtime.base import contract
from runtime.exchange.transport.request_reply import RequestSocket
from runtime.rendezvous.round_state import decode_state
from runtime.rendezvous.shared_values import LARGEST_BYTES, RemoteValues, keys_of
from tests.fakes.faults import free_port
from tests.runtime.jobs.elastic_jobs import ROUND_PROGRAM, Job, come_and_go, part, together
from tests.runtime.programs import Program, Programs, wait_for
from tests.tiers import starts_processes

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
"""Each process imports torch: seconds on an idle machine, minutes on a busy one."""


@pytest.fixture
@starts_processes
def programs():
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as started:
        yield started


@pytest.mark.slow
def test_nodes_and_the_rendezvous_come_and_go_and_in_the_end_all_have_finished(programs):
    come_and_go(programs, "c10d")


def steps(node: Program) -> list[dict]:
    return [each for each in node.records("elastic") if "step" in each]


@pytest.mark.slow
def test_training_goes_on_from_the_snapshot_when_a_node_is_killed(programs):
    program = ("l2r-runtime", "classify", "train", "--epochs", "6")
    job = Job(programs, "c10d", *program, "--step-seconds", "0.05", "--snapshot-steps", "4")
    nodes = [job.node(), job.node()]
    wait_for(lambda: all(steps(n) and steps(n)[-1]["step"] > 12 for n in nodes), "steps of both", *nodes)
    assert {each["world_size"] for each in steps(nodes[0])[-2:]} == {2}
    nodes[0].kill_all()
    assert nodes[1].code() == contract.EXIT_DONE, nodes[1].text()
    assert job.rendezvous.code() == contract.EXIT_DONE
    told = steps(nodes[1])
    together_at = [number for number, each in enumerate(told) if each["world_size"] == 2]
    seen = max(told[number]["step"] for number in together_at)
    alone = told[together_at[-1] + 1 :]  # it may also have trained without the other before that one joined
    snapshot = alone[0]["step"] - 1
    assert snapshot % 4 == 0
    assert snapshot >= seen - 4, "it went on from the last snapshot, not from the start"
    assert (alone[-1]["step"], alone[-1]["epoch"]) == (6 * 22, 6.0)
    assert f"step {snapshot}, of node" in nodes[1].text()

    evaluated = programs.run("classify", "evaluate")
    (record,) = evaluated.records("evaluation")
    assert record["accuracy"] > 0.85
    assert (record["samples"], set(record["classes"])) == (360, set("0123456789"))
    rows = [line.split() for line in evaluated.text().splitlines()]
    assert ["class", "pictures", "right", "accuracy"] in rows
    assert next(row for row in rows if row[:1] == ["all"])[-1] == f"{100 * record['accuracy']:.1f}%"
    kept = json.loads((programs.folder / "run" / "evaluation.json").read_text())
    assert kept["accuracy"] == pytest.approx(record["accuracy"], rel=1e-5)


@pytest.mark.slow
def test_strangers_at_the_rendezvous_s_port_neither_end_nor_move_a_job(programs):
    (programs.folder / "round.py").write_text(ROUND_PROGRAM)
    (programs.folder / "token").write_text("the run's token\n")
    port = free_port()
    programs.variables[contract.ENV_TOKEN_FILE] = str(programs.folder / "token")
    programs.variables[contract.ENV_ENDPOINT] = f"tcp://127.0.0.1:{port}"
    job = Job(programs, "c10d", str(programs.folder / "round.py"), str(programs.folder), "0")
    node = job.node()
    wait_for(together(node), "a round", node, job.rendezvous)
    before = part(node)["time"]
    # torch's own client, which could list, write and delete everything in torch's own store.
    with pytest.raises((RuntimeError, ValueError)):
        TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=3))
    for token in ("another token", ""):
        values = RemoteValues(RequestSocket(f"tcp://127.0.0.1:{port}", LARGEST_BYTES, keys_of(token)[1]))
        with values, pytest.raises(OSError, match=r"keys|nobody answers"):
            values.replace("l2r/elastic/test-1", "", '{"end":"finished"}')
    for _ in range(50):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(os.urandom(1000))
    with RemoteValues(
        RequestSocket(f"tcp://127.0.0.1:{port}", LARGEST_BYTES, keys_of("the run's token")[1])
    ) as own:
        state = decode_state(own.read("l2r/elastic/test-1"))
    assert (state.round, state.end, len(state.members)) == (0, "", 1)
    assert (part(node)["state"], part(node)["time"]) == ("training", before)
    (programs.folder / "over").touch()
    assert (node.code(), job.rendezvous.code()) == (contract.EXIT_DONE, contract.EXIT_DONE)


@pytest.mark.slow
def test_a_program_that_fails_again_and_again_is_given_up(programs):
    script = programs.folder / "round.py"
    script.write_text(ROUND_PROGRAM)
    job = Job(programs, "c10d", str(script), str(programs.folder), "5")
    node = job.node()
    assert node.code() == contract.EXIT_FAILED
    assert job.rendezvous.code() == contract.EXIT_FAILED
    assert "the training was given up" in node.text()
    assert len([each for each in node.records("elastic") if each.get("state") == "training"]) == 4
    assert not any("Traceback" in each.text() for each in programs.started)


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (("elastic",), {}, "L2R_ENDPOINT is not set"),
        (("elastic", "--nodes", "3:1"), {}, "it must be MIN:MAX"),
        (("elastic", "--nproc-per-node", "0"), {}, "--nproc-per-node must be at least 1"),
        (("elastic", "--nproc-per-node", "gpu"), {}, "or auto; it is 'gpu'"),
        (("elastic",), {"L2R_ENDPOINT": "tcp://10.0.0.1:29400"}, "there is no token"),
        (("elastic", "--rendezvous", "rdzv"), {"L2R_PEERS": '{"ps":[]}'}, "has no set 'rdzv'"),
        (("rendezvous",), {"L2R_ENDPOINT": "http://x"}, "must be ipc:///FOLDER or tcp://HOST:PORT"),
        (("classify", "train", "--epochs", "0"), {}, "--epochs must be above 0"),
    ],
)
def test_wrong_use_is_a_sentence(programs, words, variables, sentence):
    program = programs.run(*words, **variables)
    assert program.process.returncode == contract.EXIT_USAGE
    assert sentence in program.text()
    assert "Traceback" not in program.text()


def test_a_rendezvous_ends_with_the_step_that_it_is_for(programs):
    where = {"L2R_PEERS": json.dumps({"train-rdzv": [f"ipc://{programs.folder}/y"]}), "L2R_SET": "train-rdzv"}
    words = ("rendezvous", "--until", "train")
    first = programs.start(*words, **where)
    wait_for((programs.folder / "y" / "nodes.sock").exists, "it to listen", first)
    assert programs.run("step", "train", "--", "true").process.returncode == 0
    assert first.code() == contract.EXIT_DONE
    assert "step train is done" in first.text()
    assert programs.run(*words, **where).process.returncode == contract.EXIT_DONE
