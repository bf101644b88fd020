"""Real processes: a learner, workers and an evaluator that train, are killed, return, are refused, and end."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from runtime.base import contract
from tests.fakes.faults import free_port
from tests.runtime.conftest import TINY, RunUnderTest, Started, eventually

pytestmark = pytest.mark.timeout(600)
Wait = Callable[..., Any]
RISING = ("env_steps", "updates", "policy_version")
END_SECONDS = 240.0
"""Longest wait for the end of a process. Three of them import torch at the same time, beside other tests on two
cores.
"""


def rises(learner: Started, above: dict[str, Any], wait_until: Wait) -> dict[str, Any]:
    """Wait until every counter of the learner exceeds the given ones, and return its latest record."""
    wait_until(
        lambda: all(learner.last("learner").get(name, -1) > above.get(name, 0) for name in RISING),
        f"counters above {above}",
        log=learner,
    )
    return learner.last("learner")


def never_falls(records: list[dict[str, Any]]) -> bool:
    return all(later[name] >= earlier[name] for name in RISING for earlier, later in itertools.pairwise(records))


def exact(record: dict[str, Any], transitions: int) -> bool:
    return record["env_steps"] == record["accepted"] * transitions


def moves_between_devices(run: RunUnderTest, *devices: str) -> None:
    """Kill the learner on each device and resume it on the next, while a worker continues.

    Fails unless each continues from the previous one's state, no transition is lost or counted twice, and the
    change of random numbers is reported.
    """
    run.settings["checkpoint_seconds"] = 0.2
    worker, last, before = run.start("worker"), dict[str, Any](), ""
    for device in devices:
        run.settings["device"] = device
        learner = run.start("learner")
        resumed = rises(learner, last, eventually)
        assert resumed["lost"] == resumed["refused"] == resumed["malformed"] == 0
        # Env steps continue from the journal immediately; those that the checkpoint lacked arrive once the worker
        # is back.
        eventually(
            lambda learner=learner: exact(learner.last("learner"), 32),
            "what the checkpoint lacked was sent again, and nothing else",
            log=learner,
        )
        assert (f"was saved on {before} and draws other numbers on {device}" in learner.text()) is (
            before not in ("", device)
        )
        assert ("resumed ckpt-" in learner.text()) is bool(before)
        number = learner.text().count("checkpoint ckpt-")
        eventually(
            lambda learner=learner, number=number: learner.text().count("checkpoint ckpt-") > number,
            "a checkpoint of this device",
            log=learner,
        )
        last, before = rises(learner, learner.last("learner"), eventually), device
        if len(run.started) <= len(devices):
            assert learner.end(signal.SIGKILL) == -signal.SIGKILL
    assert worker.end() == contract.EXIT_DONE
    eventually(lambda: learner.last("learner")["workers"] == 0, "the goodbye")
    assert learner.end() == contract.EXIT_DONE
    curve = [json.loads(line) for line in (run.folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert never_falls([record for record in curve if record["l2r"] == "learner"])
    assert exact(learner.last("learner"), 32)
    # Each transition of the worker is counted once, except for the last segment, which was cut by its end.
    assert (
        0
        <= worker.last("worker")["env_steps"] - learner.last("learner")["env_steps"]
        < 32 * run.settings["num_envs"]
    )


@pytest.mark.slow
@pytest.mark.process
def test_a_run_that_is_killed_and_resumed_goes_on_with_exact_accounts(run: RunUnderTest) -> None:
    moves_between_devices(run, "cpu", "cpu", "cpu")


@pytest.mark.slow
def test_a_run_trains_survives_kills_of_learner_and_worker_and_ends_by_signal(
    run: RunUnderTest, wait_until: Wait
) -> None:
    learner = run.start("learner")
    workers = [run.start("worker", index) for index in range(2)]
    evaluator = run.start("evaluator")
    first = rises(learner, {}, wait_until)
    assert first["workers"] == 2
    assert first["policy_lag"][0] <= first["policy_lag"][1] <= first["policy_lag"][2] < 50
    wait_until(lambda: evaluator.records("evaluator"), "an evaluation")
    wait_until(lambda: learner.last("learner")["eval_progress"] is not None, "the evaluation at the learner")
    evaluated = evaluator.last("evaluator")
    assert {"eval_return", "random_progress", "progress_ratio", "laps", "clean_lap"} <= set(evaluated)
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "a checkpoint")
    assert all(set(contract_fields()) <= set(process) for process in learner.records("learner"))

    before = rises(learner, learner.last("learner"), wait_until)
    assert learner.end(signal.SIGKILL) == -signal.SIGKILL
    killed = learner.records("learner")
    successor = run.start("learner")
    after = rises(successor, before, wait_until)
    assert "resumed ckpt-" in successor.text()
    assert after["lost"] == after["refused"] == after["malformed"] == 0
    assert never_falls(killed + successor.records("learner"))
    assert all(process.process.poll() is None for process in (*workers, evaluator))
    wait_until(lambda: successor.last("learner")["workers"] == 2, "both workers back")
    for process in (*workers, evaluator):
        assert process.text().count("does not answer") <= 1
        assert "came back" in process.text()

    workers[0].end(signal.SIGKILL)
    wait_until(lambda: successor.last("learner")["workers"] == 1, "the killed worker given up")
    workers[0] = run.start("worker", 0)
    wait_until(lambda: successor.last("learner")["workers"] == 2, "its successor")

    for process in (*workers, evaluator):
        assert process.end() == contract.EXIT_DONE
    wait_until(lambda: successor.last("learner")["workers"] == 0, "goodbyes")
    began = time.monotonic()
    assert successor.end() == contract.EXIT_DONE
    # Kubernetes' default grace period is 30 s; on a quiet machine it takes two.
    assert time.monotonic() - began < 25
    last = successor.last("learner")
    assert exact(last, 32), last
    for process in run.started:
        assert "Traceback" not in process.text(), process.text()
    made = {path.name for path in (run.folder / "run").iterdir()}
    assert made == {"checkpoints", "tensorboard", "metrics.jsonl", "counters.json", ".lock"}


def contract_fields() -> list[str]:
    """The fields required in every learner record."""
    return [
        *("time", "env_steps", "updates", "policy_version", "policy_lag", "env_steps_per_second"),
        *("updates_per_second", "mean_return", "eval_return", "eval_progress", "workers"),
    ]


@pytest.mark.slow
def test_over_tcp_a_resume_after_sigterm_goes_on_past_a_torn_checkpoint(
    run: RunUnderTest, wait_until: Wait
) -> None:
    run.endpoint = f"tcp://localhost:{free_port()}"
    run.settings["checkpoint_seconds"] = 0.3
    learner, worker = run.start("learner"), run.start("worker")
    rises(learner, {}, wait_until)
    wait_until(lambda: learner.text().count("checkpoint ckpt-") >= 2, "two checkpoints")
    assert learner.end() == contract.EXIT_DONE
    last = learner.last("learner")

    folder = run.folder / "run" / "checkpoints"
    newest = max(folder.glob("*.safetensors"))
    assert f"{last['updates']:010d}" in newest.name, "SIGTERM leaves a checkpoint of the last moment"
    os.truncate(newest, newest.stat().st_size // 2)

    successor = run.start("learner")
    after = rises(successor, last, wait_until)
    assert f"checkpoint {newest.stem} is damaged" in successor.text()
    assert "resumed ckpt-" in successor.text()
    assert never_falls([last, *successor.records("learner")])
    assert after["replay"] > 0
    assert worker.end() == successor.end() == contract.EXIT_DONE


@pytest.mark.slow
def test_a_learner_that_resumes_without_experience_collects_before_it_learns(
    run: RunUnderTest, wait_until: Wait
) -> None:
    """Afterwards it continues at its ratio: no burst makes up for the updates that were due."""
    run.settings |= {"checkpoint_replay_bytes": 0, "warmup_steps": 320, "checkpoint_seconds": 0.2}
    learner, worker = run.start("learner"), run.start("worker")
    rises(learner, {}, wait_until)
    before = learner.text().count("checkpoint ckpt-")
    wait_until(lambda: learner.text().count("checkpoint ckpt-") > before, "a checkpoint with updates", log=learner)
    for process in (learner, worker):  # the worker too: it would resend the data that the checkpoint lacked
        process.end(signal.SIGKILL)

    successor = run.start("learner")
    worker = run.start("worker", 1)
    wait_until(
        lambda: "collects 320 env steps before it learns again" in successor.text(), "the plan", log=successor
    )
    line = next(line for line in successor.text().splitlines() if "resumed ckpt-" in line)
    steps, updates, lost = (
        int(re.search(rf"(\d+) {word}", line)[1]) for word in ("env", "updates,", "updates after")
    )
    rises(successor, learner.last("learner"), wait_until)
    for record in successor.records("learner"):
        collected = record["accepted"] * 32 - steps
        assert record["updates"] - updates - lost <= max(0.0, (collected - 320) * 0.25) + 1
    assert successor.process.poll() is None
    assert worker.end() == successor.end() == contract.EXIT_DONE


@pytest.mark.slow
@pytest.mark.process
def test_the_first_checkpoint_comes_early_and_a_learner_without_any_says_what_is_lost(
    run: RunUnderTest, wait_until: Wait
) -> None:
    run.settings["checkpoint_seconds"] = 10_000
    learner, worker = run.start("learner"), run.start("worker")
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "the first checkpoint", log=learner)
    last = rises(learner, {}, wait_until)
    assert last["learned_env_steps"] == last["env_steps"]
    for process in (learner, worker):
        process.end(signal.SIGKILL)
    for path in (run.folder / "run" / "checkpoints").iterdir():
        path.unlink()
    successor = run.start("learner")
    wait_until(lambda: "begins anew: there is no checkpoint, so the " in successor.text(), "it", log=successor)
    wait_until(lambda: successor.last("learner"), "a record", log=successor)
    record = successor.last("learner")
    assert record["env_steps"] >= last["env_steps"]
    assert record["learned_env_steps"] == 0
    assert successor.end() == contract.EXIT_DONE


@pytest.mark.slow
def test_a_run_that_has_enough_ends_by_itself_and_takes_its_peers_along(
    run: RunUnderTest, wait_until: Wait
) -> None:
    run.settings["total_updates"] = 20
    started = [run.start("learner"), run.start("worker"), run.start("evaluator")]
    for process in started:
        assert process.process.wait(END_SECONDS) == contract.EXIT_DONE, process.text()
    assert "the run is done: 20 updates" in started[0].text()
    assert (run.folder / "run" / "metrics.jsonl").read_text().startswith(contract.METRIC_PREFIX)
    assert list((run.folder / "run" / "tensorboard").glob("events.*"))

    late = run.start("worker", 1)
    wait_until(lambda: "waiting for the learner" in late.text(), "the worker to ask")
    for process in (run.start("learner"), late):
        assert process.process.wait(END_SECONDS) == contract.EXIT_DONE, process.text()


@pytest.mark.slow
def test_a_learner_that_is_done_stays_for_those_that_never_came(run: RunUnderTest, wait_until: Wait) -> None:
    """A worker whose simulator takes long to start would otherwise look for its learner forever."""
    run.settings["total_updates"] = 20
    joiners = {contract.ENV_JOINERS: "3"}
    learner, worker = run.start("learner", **joiners), run.start("worker")
    wait_until(
        lambda: "2 of 3 processes have not been told" in learner.text(), "the learner to be done", log=learner
    )
    assert worker.process.wait(END_SECONDS) == contract.EXIT_DONE
    assert list((run.folder / "run" / "checkpoints").glob("*.safetensors")), "all is saved before it waits"
    late = [run.start("worker", 1), run.start("evaluator")]
    for process in (*late, learner):
        assert process.process.wait(END_SECONDS) == contract.EXIT_DONE, process.text()
    assert "worker ends: " in late[0].text()

    again = run.start("learner", **joiners)
    wait_until(lambda: "3 of 3 processes have not been told" in again.text(), "the learner to be done", log=again)
    began = time.monotonic()
    assert again.end() == contract.EXIT_DONE
    assert time.monotonic() - began < 25, "who is told to end waits for nobody"


@pytest.mark.slow
def test_networks_that_are_not_finite_end_the_learner_before_they_spoil_a_policy_or_a_checkpoint(
    run: RunUnderTest, wait_until: Wait
) -> None:
    worker = run.start("worker")
    learner = run.start("learner")
    rises(learner, {}, wait_until)
    assert learner.end() == contract.EXIT_DONE

    run.settings["sac"] = {**run.settings["sac"], "actor_lr": 1e38, "critic_lr": 1e38}
    diverging = run.start("learner")
    assert diverging.process.wait(END_SECONDS) == contract.EXIT_NOT_FINITE
    assert "not finite after update" in diverging.text()
    assert "Traceback" not in diverging.text()
    for path in (run.folder / "run" / "checkpoints").glob("*.safetensors"):
        arrays = safetensors.numpy.load_file(path)
        assert all(np.isfinite(array).all() for array in arrays.values())

    run.settings["sac"] = TINY["sac"]
    good = run.start("learner")
    rises(good, diverging.last("learner"), wait_until)
    assert "is not used" not in worker.text()
    assert worker.end() == good.end() == contract.EXIT_DONE


@pytest.mark.slow
def test_peers_that_do_not_belong_and_a_second_learner_get_a_sentence(run: RunUnderTest, wait_until: Wait) -> None:
    (run.folder / "token").write_text("right\n")
    (run.folder / "wrong").write_text("wrong\n")
    right = {contract.ENV_TOKEN_FILE: str(run.folder / "token")}
    learner = run.start("learner", **right)
    wait_until(lambda: "ready" in learner.text(), "the learner")
    other = {**run.settings, "hidden": [8]}
    wrong = {contract.ENV_TOKEN_FILE: str(run.folder / "wrong")}
    refused = {
        "its token is not this run's": run.start("worker", 1, **wrong),
        "it belongs to run test (other)": run.start("worker", 2, **right, **{contract.ENV_RUN_ID: "other"}),
        "its actor_floats is": run.start("worker", 3, **right, **{contract.ENV_CONFIG: json.dumps(other)}),
    }
    welcome = run.start("worker", 4, **right)
    second = run.start("learner", 1, **right)
    thief = run.start("learner", 2, **right, **{contract.ENV_DIR: str(run.folder / "elsewhere")})
    for sentence, process in refused.items():
        assert process.process.wait(END_SECONDS) == contract.EXIT_REFUSED
        assert sentence in process.text()
        assert "Traceback" not in process.text()
    rises(learner, {}, wait_until)
    for late in (second, thief):
        assert late.process.wait(END_SECONDS) == contract.EXIT_FAILED
        assert "in use by another process" in late.text()
    rises(learner, learner.last("learner"), wait_until)
    assert welcome.end() == learner.end() == contract.EXIT_DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "number"),
    [
        ("learner", signal.SIGTERM),
        ("worker", signal.SIGTERM),
        ("worker", signal.SIGINT),
        ("evaluator", signal.SIGINT),
    ],
)
def test_a_process_alone_ends_by_signal_while_it_starts_and_while_it_waits(
    run: RunUnderTest, wait_until: Wait, role: str, number: int
) -> None:
    starting = run.start(role)
    wait_until(lambda: listens_to(starting.process.pid, number), "the signal's handler")
    assert starting.end(number) == contract.EXIT_DONE, starting.text()
    waiting = run.start(role)
    wait_until(lambda: "ready" in waiting.text() or "waiting for the learner" in waiting.text(), "the wait")
    assert waiting.end(number) == contract.EXIT_DONE, waiting.text()
    assert "Traceback" not in starting.text() + waiting.text()


def listens_to(pid: int, number: int) -> bool:
    """Return True if the process has a handler for the signal; if the system does not report it, wait a second."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        time.sleep(1.0)
        return True
    caught = next(line for line in status.read_text().split("\n") if line.startswith("SigCgt"))
    # Python has its own handler for SIGINT; ours is installed together with the one for SIGTERM.
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1) and number > 0
