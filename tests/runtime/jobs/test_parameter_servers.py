"""Parameter servers and their workers as real processes: they learn, survive kills, refuse strangers, and end."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.base import addresses as peers
from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.jobs.parameter_server.rank_context import PsRank, PsSettings
from runtime.jobs.parameter_server.server import Adam
from runtime.rl.algos import optimisers
from tests.runtime.programs import Program, Programs, wait_for
from tests.tiers import starts_processes


class Job:
    """Two servers and some workers over sockets in a folder."""

    def __init__(self, programs: Programs, steps: int) -> None:
        self.programs = programs
        addresses = [f"ipc://{programs.folder}/{name}" for name in "ab"]
        programs.variables |= {
            contract.ENV_PEERS: json.dumps({"ps": addresses}),
            contract.ENV_CONFIG: json.dumps({"batch_size": 20, "learning_rate": 0.001, "train_steps": steps}),
            "LOG_DIR": str(programs.folder / "logs"),
        }

    def start(self, role: str, index: int, **variables: str) -> Program:
        return self.programs.start(role, L2R_INDEX=str(index), **variables)


@pytest.fixture
@starts_processes
def programs():
    """A folder with a short name: a Unix socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="l2r-") as folder, Programs(Path(folder)) as started:
        yield started


def step(program: Program) -> int:
    return (program.records("ps") or [{"global_step": 0}])[-1]["global_step"]


def test_two_servers_and_two_workers_learn_within_200_steps_and_end(programs):
    job = Job(programs, 200)
    servers = [job.start("ps", n) for n in range(2)]
    workers = [job.start("ps-worker", n) for n in range(2)]
    for each in (*workers, *servers):
        assert each.code() == contract.EXIT_DONE, each.text()
    for number, each in enumerate(workers):
        (last,) = each.records("evaluation")
        assert last["accuracy"] > 0.75, each.text()
        assert set(last["classes"]) == set("0123456789")
        record = each.records("ps")[-1]
        assert (record["role"], record["index"], record["global_step"]) == ("worker", number, 200)
        log = (programs.folder / "logs" / f"worker-{number}.log").read_text()
        assert f"global step 200 local step {record['local_step']} loss " in log
    assert sum(each.records("ps")[-1]["local_step"] for each in workers) >= 200
    for number, each in enumerate(servers):
        assert each.records("ps")[-1]["global_step"] == 200
        assert "server" in (programs.folder / "logs" / f"ps-{number}.log").read_text()
        assert list((programs.folder / "run" / f"ps-{number}" / "checkpoints").glob("*.safetensors"))
        assert "Traceback" not in each.text()

    again = [job.start("ps", 0), job.start("ps", 1), job.start("ps-worker", 0)]
    assert [each.code() for each in again] == [0, 0, 0], "a run that is over ends when it is started anew"
    assert "resumed" in again[0].text()


def test_a_worker_that_comes_after_the_end_gets_the_last_weights_and_ends(programs):
    job = Job(programs, 200)
    servers = [job.start("ps", n, **{contract.ENV_JOINERS: "2"}) for n in range(2)]
    first = job.start("ps-worker", 0)
    assert first.code() == contract.EXIT_DONE, first.text()
    wait_for(lambda: all("1 of 2 processes" in each.text() for each in servers), "servers that wait", *servers)
    late = job.start("ps-worker", 1)
    for each in (late, *servers):
        assert each.code() == contract.EXIT_DONE, each.text()
    record = late.records("ps")[-1]
    assert (record["global_step"], record["local_step"]) == (200, 0)
    assert late.records("evaluation") == [
        {**first.records("evaluation")[0], "time": late.records("evaluation")[0]["time"]}
    ]


@pytest.mark.slow
def test_a_dead_worker_is_missed_by_nobody_and_a_dead_server_goes_on_from_its_checkpoint(programs):
    job = Job(programs, 0)
    servers = [job.start("ps", n) for n in range(2)]
    workers = [job.start("ps-worker", n) for n in range(2)]
    wait_for(lambda: step(workers[0]) > 20 and step(workers[1]) > 20, "steps", *servers, *workers)
    workers[0].kill_all()
    seen = step(servers[0])
    wait_for(lambda: step(servers[0]) > seen + 20, "steps without it", *servers)
    workers[0] = job.start("ps-worker", 0)
    wait_for(lambda: workers[0].records("ps") and step(workers[0]) > 20, "it to rejoin", workers[0])

    assert servers[1].end(signal.SIGTERM) == contract.EXIT_INTERRUPTED
    servers[1] = job.start("ps", 1)
    wait_for(lambda: "resumed ckpt-" in servers[1].text(), "its checkpoint", servers[1])
    seen = step(servers[1])
    wait_for(lambda: step(servers[1]) > seen + 20, "steps after it", servers[1])
    servers[1].kill_all()
    servers[1] = job.start("ps", 1)
    wait_for(lambda: step(servers[1]) > 20, "steps after a kill", servers[1])
    for each in (*workers, *servers):
        assert each.end(signal.SIGTERM) == contract.EXIT_INTERRUPTED, each.text()
        assert "Traceback" not in each.text()


def test_servers_that_are_named_in_the_wrong_order_are_refused(programs):
    job = Job(programs, 0)
    server = job.start("ps", 0)
    sets = json.loads(programs.variables[contract.ENV_PEERS])
    turned = json.dumps({"ps": sets["ps"][::-1]})
    worker = job.start("ps-worker", 0, **{contract.ENV_PEERS: turned})
    assert worker.code() == contract.EXIT_REFUSED
    assert server.end() == contract.EXIT_INTERRUPTED


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({contract.ENV_PEERS: ""}, "L2R_PEERS is not set"),
        ({contract.ENV_PEERS: "{"}, "must be a JSON object"),
        ({contract.ENV_PEERS: '{"worker":[]}'}, "has no set 'ps'"),
        ({contract.ENV_PEERS: '{"ps":["http://x:1"]}'}, "must be ipc:///FOLDER or tcp://HOST:PORT"),
        ({contract.ENV_PEERS: '{"ps":["tcp://10.0.0.1:2222"]}'}, "there is no token"),
        ({contract.ENV_INDEX: "2"}, "there is no index 2"),
        ({contract.ENV_CONFIG: '{"learning_rate": 0}'}, "must be above 0"),
        ({contract.ENV_CONFIG: '{"train_steps": 1.5}'}, "train_steps is 1.5; it must be a whole number"),
    ],
)
def test_wrong_use_is_a_sentence(programs, variables, sentence):
    program = Job(programs, 10).start("ps", int(variables.pop(contract.ENV_INDEX, 0)), **variables)
    assert program.code() == contract.EXIT_USAGE
    assert sentence in program.text()
    assert "Traceback" not in program.text()


def test_settings_come_from_json_or_from_variables_in_capitals():
    assert PsSettings.from_environment({}) == PsSettings()
    chart = {"BATCH_SIZE": "32", "LEARNING_RATE": "0.01", "TRAIN_STEPS": "0", "DATA_DIR": "/data"}
    assert PsSettings.from_environment(chart) == PsSettings(batch_size=32, learning_rate=0.01, train_steps=0)
    both = {**chart, contract.ENV_CONFIG: '{"batch_size": 5, "log_dir": "/x"}', contract.ENV_SEED: "3"}
    assert PsSettings.from_environment(both) == PsSettings(batch_size=5, learning_rate=0.01, train_steps=0, seed=3)
    for wrong in ("[]", "{", '{"batch_size": 0}', '{"batch_size": "many"}', '{"learning_rate": NaN}'):
        with pytest.raises(SetupError):
            PsSettings.from_environment({contract.ENV_CONFIG: wrong})


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_are_the_weights_and_each_weight_lies_on_one_server(tmp_path, count):
    sets = json.dumps({"ps": [f"ipc://{tmp_path}/{n}" for n in range(count)]})
    place = PsRank.from_environment(
        {contract.ENV_PEERS: sets, contract.ENV_DIR: str(tmp_path)}, "worker", PsSettings(hidden_units=9)
    )
    weights = place.first_weights()
    parts = [weights[place.shard(n)] for n in range(count)]
    np.testing.assert_array_equal(np.concatenate(parts), weights)
    assert [each.size for each in parts] == [place.shard_shape(n).size for n in range(count)]
    assert place.shape().size == weights.size


def test_adam_is_the_one_of_the_learner():
    rng = np.random.default_rng(0)
    start = rng.standard_normal(50).astype(np.float32)
    ours, flat = Adam(start.copy(), 0.01), torch.from_numpy(start.copy())
    theirs = optimisers.Adam(flat, 0.01)
    for _ in range(20):
        gradient = rng.standard_normal(50).astype(np.float32)
        ours.step(gradient)
        theirs.step(torch.from_numpy(gradient.copy()))
    np.testing.assert_allclose(ours.weights, flat.numpy(), rtol=1e-4)
    with pytest.raises(ValueError, match="50 weights, and this shard has 49"):
        Adam(start[1:].copy(), 0.01).load(ours.arrays())


def test_peers_are_told_apart_by_set_and_index():
    found = peers.from_environment({contract.ENV_PEERS: '{"ps":["tcp://a:1","tcp://b:1"],"worker":[]}'})
    assert found.of_replica("ps", 1) == "tcp://b:1"
    for wrong in (("ps", 2), ("worker", 0), ("rdzv", 0)):
        with pytest.raises(SetupError):
            found.of_replica(*wrong)
    with pytest.raises(SetupError):
        peers.index({contract.ENV_INDEX: "-1"})
