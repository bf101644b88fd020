"""A past run is launched again exactly: its first thousand env steps are identical, number by number."""

from __future__ import annotations

import pytest

from tests.l2rtui.cli.conftest import eventually

pytestmark = pytest.mark.process

STEPS = 1_000
# Each process that steps writes its actions and results, with all digits of the observation.
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
        folder = Path(os.environ["TRACES"]) / os.environ["L2R_RUN"]
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / str(os.getpid())).open("a") as file:
            file.write(f"{self.number} {action} {result[0].tobytes().hex()} {result[1:4]}\\n")
        return result

gymnasium.register("Traced-v0", entry_point=Traced, max_episode_steps=500)
"""
SPEC = """\
kind: learner-workers
name: pole
seed: 3
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
    yield local
    local.run("destroy", "pole", "--all-matching", "--yes", "--purge")


def first_steps(local, run):
    """Wait until the worker of a run has made its first steps, and return them."""
    steps = []

    def is_enough():
        files = [file.read_text().splitlines(keepends=True) for file in (local.home / "traces" / run).glob("*")]
        steps[:] = max(files, key=len, default=[])[:STEPS]
        return len(steps) == STEPS

    eventually(is_enough, f"{STEPS} env steps")
    return steps


def launched_again(pole, train, *runs, words=()):
    """Launch runs, destroy them, and launch the first again; return the first steps of each, and of the
    relaunch.
    """
    spec = pole.home / "spec.yaml"
    spec.write_text(SPEC.format(folder=pole.home, train=train))
    pole.json("launch", "-f", str(spec), *words, "--yes")
    before = [first_steps(pole, run) for run in runs]
    pole.json("destroy", "pole", "--all-matching", "--yes", "--purge")
    (pole.home / "traces").rename(pole.home / "before")

    # The file and the runs are deleted: only the records are left.
    spec.unlink()
    assert {(row["run"], row["state"]) for row in pole.json("history")} == {(run, "destroyed") for run in runs}
    pole.json("launch", "--like", runs[0], "--yes")
    again = first_steps(pole, runs[0])
    pole.json("destroy", runs[0], "--yes", "--purge")
    assert [row["state"] for row in pole.json("history")] == ["destroyed"] * (len(runs) + 1)
    return *before, again


def test_one_run_of_an_experiment_has_the_same_first_env_steps_again(pole):
    third, fourth, again = launched_again(pole, FIRST_ROLLOUT, "pole-s3", "pole-s4", words=("--seeds", "3-4"))
    assert again == third
    # Another seed gives other steps; otherwise the comparison would prove nothing.
    assert fourth != third


@pytest.mark.slow
@pytest.mark.parametrize("method", BY_TURNS)
def test_by_turns_they_are_the_same_over_many_policy_versions(pole, method):
    before, again = launched_again(pole, BY_TURNS[method], "pole")
    assert again == before
