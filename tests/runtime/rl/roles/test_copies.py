"""The measured number of copies: enough for the best rate, within the settings, no simulators."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.training import from_mapping
from runtime.cli import main
from runtime.rl.roles.copies import CopyRate, enough_copies, measure_copies


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
    measured = measure_copies(from_mapping({"hidden": [16], "num_envs": 1, **overrides}), seconds=0.005)
    assert measured[-1].num_envs <= largest
    alone = {"environment": "CartPole-v1", "algorithm": "ppo", "num_envs": 3, "ppo": {"batch_steps": 48}}
    with_remainder = measure_copies(from_mapping(alone), seconds=0.005)
    assert [rate.num_envs for rate in with_remainder] == [1]


@pytest.mark.usefixtures("even_steps")
def test_where_a_step_of_many_costs_no_more_all_that_fit_are_measured_and_the_most_are_enough() -> None:
    measured = measure_copies(from_mapping({"hidden": [16]}), seconds=0.03)
    assert [rate.num_envs for rate in measured] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert enough_copies(measured) == 256


def test_copies_that_are_simulators_are_not_measured() -> None:
    with pytest.raises(SetupError, match="set num_envs by hand"):
        measure_copies(from_mapping({"environment": "l2r"}))


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
