"""A run of the past is launched again exactly: its first thousand env steps are the same, number by number."""

from __future__ import annotations

import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = pytest.mark.process

STEPS = 1_000
# Each process that steps writes what it did and saw, the observation with all its digits.
MODULE = """
import os
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

made = 0

class Traced(CartPoleEnv):
    def __init__(self, **options):
        global made
        super().__init__(**options)
        self.number, made = made, made + 1

    def step(self, action):
        result = super().step(action)
        with (Path(os.environ["TRACES"]) / str(os.getpid())).open("a") as file:
            file.write(f"{self.number} {action} {result[0].tobytes().hex()} {result[1:4]}\\n")
        return result

gymnasium.register("Traced-v0", entry_point=Traced, max_episode_steps=500)
"""
SPEC = """\
kind: learner-workers
name: pole
seed: {seed}
learner: {{env: {{PYTHONPATH: {folder}}}}}
workers:
  - {{name: w, replicas: 1, env: {{PYTHONPATH: {folder}, TRACES: {folder}/traces}}}}
train: {{environment: traced:Traced-v0, num_envs: 8, total_env_steps: 100000000, {train}}}
"""
# The first rollout is one segment of 8 copies, 1,024 env steps of one policy.
FIRST_ROLLOUT = "algorithm: ppo, segment_steps: 128, ppo: {batch_steps: 1024, minibatch_size: 256, epochs: 10}"
# The learner makes updates within the first thousand steps, and the worker waits for them.
BY_TURNS = {
    "ppo": "algorithm: ppo, lockstep: true, segment_steps: 16, ppo: {batch_steps: 128, minibatch_size: 64}",
    "impala": "algorithm: impala, lockstep: true, segment_steps: 16",
}


@pytest.fixture
def pole(local):
    (local.home / "traced.py").write_text(MODULE)
    (local.home / "traces").mkdir()
    yield local
    local.run("destroy", "pole", "--yes", "--purge")


def first_steps(local):
    """Wait until the worker has made its first steps, and return them."""
    steps = []

    def is_enough():
        files = [file.read_text().splitlines(keepends=True) for file in (local.home / "traces").iterdir()]
        steps[:] = max(files, key=len, default=[])[:STEPS]
        return len(steps) == STEPS

    eventually(is_enough, f"{STEPS} env steps")
    return steps


def ended(local, name):
    """Destroy the run, and put its traces aside."""
    local.json("destroy", "pole", "--yes", "--purge")
    (local.home / "traces").rename(local.home / name)
    (local.home / "traces").mkdir()


def launched_twice(pole, train):
    """Launch, destroy and launch as it was; return the first steps of both."""
    spec = pole.home / "spec.yaml"
    spec.write_text(SPEC.format(seed=3, folder=pole.home, train=train))
    pole.json("launch", "-f", str(spec), "--yes")
    before = first_steps(pole)
    ended(pole, "before")

    # The file has gone, and so has the run: the record is all that is left.
    spec.unlink()
    (row,) = pole.json("history")
    assert (row["run"], row["seed"], row["state"]) == ("pole", 3, "destroyed")
    pole.json("launch", "--as", "pole", "--yes")
    again = first_steps(pole)
    ended(pole, "again")
    assert [row["state"] for row in pole.json("history")] == ["destroyed", "destroyed"]
    return before, again


def test_the_same_seed_gives_the_same_first_env_steps(pole):
    before, again = launched_twice(pole, FIRST_ROLLOUT)
    assert again == before

    # Another seed gives others, or the comparison would prove nothing.
    spec = pole.home / "spec.yaml"
    spec.write_text(SPEC.format(seed=4, folder=pole.home, train=FIRST_ROLLOUT))
    pole.json("launch", "-f", str(spec), "--yes")
    assert first_steps(pole) != before


@pytest.mark.slow
@pytest.mark.parametrize("method", BY_TURNS)
def test_by_turns_they_are_the_same_over_many_policy_versions(pole, method):
    before, again = launched_twice(pole, BY_TURNS[method])
    assert again == before
