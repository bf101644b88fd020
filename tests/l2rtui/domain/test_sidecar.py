"""A simulator for each worker, from training settings."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.sidecar import LAB_PORTS, Sidecar, sidecar_of, socket_problem
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec

WORKER = SetSpec("w", Role.WORKER, ("l2r-runtime", "worker"))
LEARNER = SetSpec("learner", Role.LEARNER, ("l2r-runtime", "learner"))
EVALUATOR = SetSpec("eval", Role.EVALUATOR, ("l2r-runtime", "evaluator"))


def found(
    one: SetSpec = WORKER, *others: SetSpec, train: dict | None = None, track: str = "", **said
) -> Sidecar | None:
    options = {"track": track} | ({"simulator": {"kind": "sidecar", **said}} if said is not None else {})
    settings = {"num_envs": 1, "environment_options": options} | (train or {})
    return sidecar_of(RunSpec(Kind.LEARNER_WORKERS, "r", "r", (one, *others), train=json.dumps(settings)), one)


def test_only_what_drives_a_simulator_gets_one():
    assert found() is not None
    assert found(LEARNER, WORKER) is None
    assert found(SetSpec("w", Role.WORKER, (), template="{}")) is None
    for options in ({"simulator": {"kind": "reference"}}, {"simulator": "sidecar"}, {}, "none"):
        assert found(train={"environment_options": options}) is None


def test_a_simulator_in_a_container_needs_a_socket_that_a_mount_brings():
    def missing(one: SetSpec, **options: object) -> str:
        train = json.dumps({"environment_options": options} if options else {})
        return socket_problem(RunSpec(Kind.LEARNER_WORKERS, "r", "r", (one,), train=train), one)

    beside = {"kind": "container", "socket": "/run/docker.sock"}
    mounted = replace(WORKER, pod=PodSettings(mounts=(Mount("/run/docker.sock", host_path="/run/docker.sock"),)))
    empty = replace(WORKER, pod=PodSettings(mounts=(Mount("/run"),)))
    assert "with /run/docker.sock, which no mount" in missing(WORKER, simulator=beside)
    assert missing(empty, simulator=beside) == missing(WORKER, simulator=beside)
    assert missing(mounted, simulator=beside) == missing(LEARNER, simulator=beside) == ""
    assert missing(WORKER, simulator={"kind": "reference"}) == missing(WORKER) == ""


def test_without_words_it_is_the_reference_simulator_of_the_workers_image():
    assert found() == Sidecar(("l2r-runtime", "simulator", "--fast"))
    assert found(track="maps/x.json", fast=False, arguments=["--seed", "3"]) == Sidecar(
        ("l2r-runtime", "simulator", "--realtime", "--menu", "--track", "maps/x.json", "--seed", "3")
    )


def test_any_other_is_described_in_full():
    assert found(
        image="sim:5",
        command=["./ArrivalSim.sh", "-port={control}", "-gpu={gpu}"],
        user="1001",
        folder="/sim",
        env={"A": "b"},
        cpu_cores=2,
        memory_bytes=2**30,
        grace_seconds=1.5,
    ) == Sidecar(
        ("./ArrivalSim.sh", f"-port={LAB_PORTS['control']}", "-gpu="),
        "sim:5", 1001, "/sim", (("A", "b"),), 2, 2**30, 1.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"image": "sim"}, "image needs a command"),
        ({"mounts": ["/a"]}, "mounts: a sidecar has the mounts of its pod"),
        ({"user": "root"}, "user is 'root': of a sidecar it is a number other than 0"),
        ({"user": "0"}, "user is '0'"),
        ({"user": 7}, "user is 7: it must be a text"),
        ({"command": "run"}, "command is 'run': it must be a list of texts"),
        (
            {"command": ["{port}"]},
            "command has a placeholder 'port'; there are {control}, {action}, {pose}, {camera}",
        ),
        ({"cpu_cores": True}, "cpu_cores is True: it must be a number from 0"),
        ({"memory_bytes": -1}, "memory_bytes is -1: it must be a number from 0"),
        ({"env": {"A": 1}}, "env is {'A': 1}: it must be an object of texts"),
    ],
)
def test_a_wrong_word_is_named(said, sentence):
    with pytest.raises(ValueError, match=r"^train\.environment_options\.simulator") as refused:
        found(**said)
    assert sentence in str(refused.value)


def test_there_is_one_for_one_environment_alone():
    with pytest.raises(ValueError, match=r"train\.num_envs must be 1"):
        found(train={"num_envs": 2})
    with pytest.raises(ValueError, match=r"train\.eval_episodes must be 1"):
        found(WORKER, EVALUATOR)
    assert found(WORKER, EVALUATOR, train={"eval_episodes": 1}) is not None
    with pytest.raises(
        ValueError, match="the simulator sidecar of a worker of w serves one: leave workers_per_pod out"
    ):
        found(replace(WORKER, workers_per_pod=2))
