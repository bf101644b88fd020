"""A run without workers as real processes: killed, resumed, counted exactly, ended at its limit and by a signal."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from typing import Any

import pytest

from runtime.base import contract
from tests.runtime.conftest import RunUnderTest

pytestmark = pytest.mark.slow
Wait = Callable[..., Any]
ROLLOUT = 16 * 8
COUNTERS = ("env_steps", "updates", "policy_version")
OWN: dict[str, Any] = {"collect": "device", "num_envs": 16, "segment_steps": 8, "device": "cpu"}
PPO: dict[str, Any] = {"algorithm": "ppo", "ppo": {"epochs": 2, "minibatch_size": 64}}


def above(learner: Any, updates: int, wait_until: Wait) -> dict[str, Any]:
    wait_until(lambda: learner.last("learner").get("updates", 0) > updates, f"{updates + 1} updates", log=learner)
    return learner.last("learner")


@pytest.mark.parametrize("method", [PPO, {"algorithm": "impala"}])
def test_a_run_without_workers_survives_a_kill_and_every_step_is_counted(
    run: RunUnderTest, wait_until: Wait, method: dict[str, Any]
) -> None:
    run.settings |= {**OWN, **method}
    learner, evaluator = run.start("learner"), run.start("evaluator")
    wait_until(lambda: evaluator.records("evaluator"), "an evaluation", log=evaluator)
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "a checkpoint", log=learner)
    before = above(learner, 5, wait_until)
    assert before["env_steps"] == ROLLOUT * before["updates"] == ROLLOUT * before["accepted"]
    assert before["workers"] == before["lost"] == before["idle_share"] == 0
    assert before["bound_by"] in ("update", "environment")
    assert {"episodes", "mean_length", "mean_progress", "laps", "device"} <= set(before)

    assert learner.end(signal.SIGKILL) == -signal.SIGKILL
    successor = run.start("learner")
    after = above(successor, before["updates"] + 5, wait_until)
    assert "resumed ckpt-" in successor.text()
    assert "they restart" not in successor.text()
    # Updates undone by a kill are counted as lost, and their steps are not counted.
    assert after["accepted"] == after["updates"] - after["lost_updates"]
    records = learner.records("learner") + successor.records("learner")
    assert all(b[name] >= a[name] for name in COUNTERS for a, b in itertools.pairwise(records))
    wait_until(lambda: successor.last("learner")["eval_progress"] is not None, "an evaluation", log=successor)

    assert evaluator.end() == successor.end() == contract.EXIT_DONE
    last = successor.last("learner")
    assert last["accepted"] == last["updates"] - last["lost_updates"]
    for process in run.started:
        assert "Traceback" not in process.text(), process.text()


def test_it_ends_by_itself_after_the_env_steps_of_its_settings(run: RunUnderTest) -> None:
    run.settings |= {**OWN, **PPO, "total_env_steps": 20 * ROLLOUT}
    learner, evaluator = run.start("learner"), run.start("evaluator")
    for process in (learner, evaluator):
        assert process.process.wait(90) == contract.EXIT_DONE, process.text()
    assert f"the run is done: {20 * ROLLOUT} env steps" in learner.text()
    assert learner.last("learner")["updates"] == 20


def test_sac_fills_its_replay_by_itself(run: RunUnderTest, wait_until: Wait) -> None:
    run.settings |= {**OWN, "algorithm": "sac", "updates_per_step": 1 / 16}
    learner = run.start("learner")
    record = above(learner, 20, wait_until)
    assert record["env_steps"] % ROLLOUT == 0
    assert record["replay"] == min(record["env_steps"], 20_000)
    wait_until(lambda: "checkpoint ckpt-" in learner.text(), "a checkpoint", log=learner)
    assert learner.end(signal.SIGKILL) == -signal.SIGKILL
    successor = run.start("learner")
    above(successor, record["updates"], wait_until)
    assert successor.end() == contract.EXIT_DONE


def test_a_worker_of_such_a_run_ends_with_a_sentence(run: RunUnderTest) -> None:
    run.settings |= {**OWN, **PPO}
    worker = run.start("worker")
    assert worker.process.wait(60) == contract.EXIT_USAGE, worker.text()
    assert "collect is device: the learner of this run takes no workers" in worker.text()


def test_an_environment_without_a_device_form_ends_the_learner_with_a_sentence(run: RunUnderTest) -> None:
    run.settings |= {**OWN, **PPO, "environment": "Acrobot-v1"}
    learner = run.start("learner")
    assert learner.process.wait(60) == contract.EXIT_USAGE, learner.text()
    assert "environment Acrobot-v1 has no device form" in learner.text()
