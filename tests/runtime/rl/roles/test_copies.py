"""The measured number of copies: enough for the best rate, within the settings, no simulators."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.metrics import Console
from runtime.cli import main
from runtime.rl import settings
from runtime.rl.roles.copies import CopyRate, enough_copies, measure_copies, with_measured_copies
from runtime.rl.roles.launch_context import Context, environment_plan, make_environment
from tests.runtime.conftest import RunUnderTest


@pytest.fixture
def even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which a step of many copies takes as long as of one, whatever the load of the machine."""
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: 0.001 * next(ticks), monotonic=lambda: 0.0)
    monkeypatch.setattr("runtime.rl.roles.copies.time", clock)


def rates(*values: float) -> list[CopyRate]:
    return [CopyRate(2**power, value) for power, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "enough"), [((10, 19, 35, 36, 30), 4), ((10, 20, 40), 4), ((10, 9.5, 11), 1), ((5.0,), 1)]
)
def test_the_smallest_number_that_is_nearly_the_best_is_enough(values: tuple[float, ...], enough: int) -> None:
    assert enough_copies(rates(*values)) == enough


@pytest.mark.parametrize(
    ("overrides", "largest"),
    [
        ({"band_steps": 2048, "segment_steps": 16}, 64),  # two segments in the band
        ({"environment": "CartPole-v1", "algorithm": "dqn", "band_steps": 64, "segment_steps": 8}, 4),
        ({"environment": "Pendulum-v1", "algorithm": "td3", "band_steps": 64, "segment_steps": 8}, 4),
        ({"environment": "CartPole-v1", "algorithm": "ppo", "segment_steps": 32, "ppo": {"batch_steps": 1024}}, 32),
    ],
)
def test_only_numbers_that_fit_the_settings_are_tried(overrides: dict[str, Any], largest: int) -> None:
    measured = measure_copies(settings.from_mapping({"hidden": [16], "num_envs": 1, **overrides}), seconds=0.005)
    assert measured[-1].num_envs <= largest
    alone = {"environment": "CartPole-v1", "algorithm": "ppo", "num_envs": 3, "ppo": {"batch_steps": 48}}
    with_remainder = measure_copies(settings.from_mapping(alone), seconds=0.005)
    assert [rate.num_envs for rate in with_remainder] == [1]


@pytest.mark.usefixtures("even_steps")
def test_where_a_step_of_many_costs_no_more_all_that_fit_are_measured_and_the_most_are_enough() -> None:
    measured = measure_copies(settings.from_mapping({"hidden": [16]}), seconds=0.03)
    assert [rate.num_envs for rate in measured] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert enough_copies(measured) == 256


def test_copies_that_are_simulators_are_not_measured() -> None:
    with pytest.raises(SetupError, match="set num_envs by hand"):
        measure_copies(settings.from_mapping({"environment": "l2r"}))


@pytest.mark.usefixtures("even_steps")
def test_the_command_prints_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.ENV_CONFIG, '{"environment": "CartPole-v1", "algorithm": "ppo"}')
    monkeypatch.setattr("runtime.rl.roles.copies.COUNTS", (1, 4))
    assert main(["config", "--copies"]) == contract.EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[-1] == "num_envs: 4"


PPO_AUTO: dict[str, Any] = {
    "environment": "CartPole-v1",
    "algorithm": "ppo",
    "num_envs": "auto",
    "segment_steps": 8,
    "hidden": [16],
    "ppo": {"batch_steps": 256, "minibatch_size": 128, "epochs": 1},
}


@pytest.mark.parametrize(
    ("overrides", "most"),
    [
        ({"environment": "racing", "num_envs": "auto"}, 256),  # two segments of 16 steps in the band
        (  # an image is a kilobyte, and a segment 4 MiB
            {
                "num_envs": "auto",
                "environment_options": {"observation": "view"},
                "convolutions": [[8, 4, 4]],
            },
            128,
        ),
        (PPO_AUTO, 8),  # each worker waits for the policy: a quarter of the batch
        ({**PPO_AUTO, "ppo": {"batch_steps": 96}}, 2),
        ({**PPO_AUTO, "ppo": {"batch_steps": 256, "is_synchronous": False}}, 16),
        ({**PPO_AUTO, "algorithm": "impala", "ppo": {}}, 64),
    ],
)
def test_the_largest_number_that_a_worker_may_choose_fits_the_settings(
    overrides: dict[str, Any], most: int
) -> None:
    training = settings.from_mapping(overrides)
    plan = environment_plan(training, make_environment(training, 1, {}))
    assert plan.segment_transitions == most * training.segment_steps


@pytest.mark.usefixtures("even_steps")
def test_a_worker_takes_the_number_that_it_has_measured_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {contract.ENV_ENDPOINT: "ipc:///nowhere", contract.ENV_CONFIG: json.dumps(PPO_AUTO)}
    measured = with_measured_copies(Context.from_environment(environ, "worker"), Console())
    line = capsys.readouterr().out
    assert measured.settings.copies == 8, line
    assert re.search(r"num_envs is 8, .*\(at most 8 fit\): 1: [\d,]+, 2: ", line), line


def test_a_run_learns_by_workers_of_numbers_of_their_own_and_one_that_comes_again(
    run: RunUnderTest, wait_until: Callable[..., Any]
) -> None:
    run.settings = {**PPO_AUTO, "total_env_steps": 200_000}
    learner, first = run.start("learner"), run.start("worker", 0)
    # Fewer copies than it would measure: the learner accepts segments of each size.
    second = run.start("worker", 1, **{contract.ENV_CONFIG: json.dumps({**run.settings, "num_envs": 1})})
    wait_until(lambda: learner.last("learner").get("updates", 0) > 20, "updates", log=learner)
    assert first.end() == contract.EXIT_DONE
    again = run.start("worker", 0)
    before = learner.last("learner")["updates"]
    wait_until(lambda: "num_envs is " in again.text(), "the second measurement", log=again)
    wait_until(lambda: learner.last("learner")["updates"] > before + 20, "more updates", log=learner)
    for process in (again, second, learner):
        assert process.end() == contract.EXIT_DONE, process.text()
    last = learner.last("learner")
    assert last["refused"] == last["malformed"] == 0
    assert [process.last("worker")["num_envs"] for process in (first, again, second)][2] == 1
    assert first.last("worker")["num_envs"] > 1, first.text()
    assert "resumed ckpt-" not in learner.text()
    resumed = run.start("learner")
    wait_until(lambda: "resumed ckpt-" in resumed.text(), "a resume with what waited", log=resumed)
