"""A sweep with successive halving on this machine, stopped by the keeper of the queue without any other program."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.l2rtui.cli.conftest import processes_of

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(2400)]

TOTAL = 122_880
RATES = ("3e-3", "1e-8", "1e-5", "3e-6", "1e-6", "3e-7", "1e-7", "3e-8")
GAMMAS = ("0.1", "0.98", "0.3")
TRIALS = len(RATES) * len(GAMMAS)
LIMIT_SECONDS = 1100.0


def grid(env_steps, rates):
    return f"""\
kind: learner-workers
name: half
queue: true
sweep:
  train.ppo.lr: [{", ".join(rates)}]
  train.ppo.gamma: [{", ".join(GAMMAS)}]
train:
  environment: CartPole-v1
  algorithm: ppo
  num_envs: 8
  segment_steps: 128
  total_env_steps: {env_steps}
  ppo: {{batch_steps: 1024, minibatch_size: 512, epochs: 10, gae_lambda: 0.9}}
"""


def halved(spec):
    return spec.replace("train:\n", "  halving: {min_env_steps: 8192, factor: 3}\ntrain:\n")


def prepare(cli):
    """Give the program eight slots for four trials at a time."""
    # The keeper starts in the root folder: this checkout need not be the installed one.
    cli.env |= {"L2RTUI_SLOTS_PER_CORE": "4", "L2RTUI_MAX_CPU_SLOTS": "8", "PYTHONPATH": str(Path.cwd())}


def results(cli, spec, trials):
    """Launch the sweep and return the results of its trials, best first, once every run has ended."""
    (cli.home / "half.yaml").write_text(spec)
    # A separate process checks the settings of each trial.
    launch = cli.start("launch", "-f", str(cli.home / "half.yaml"), "--yes", "-o", "json")
    out, err = launch.communicate(timeout=LIMIT_SECONDS)
    assert launch.returncode == 0, err
    assert len(json.loads(out)) == trials
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        rows = cli.json("sweep", "half")
        if not {"queued", "running"} & {state for row in rows for state in row["states"]}:
            return rows
        assert time.monotonic() < end, json.dumps(rows)
        time.sleep(2.0)


def test_halving_takes_half_the_env_steps_of_the_grid_and_finds_its_best(local):
    prepare(local)
    best, *others = results(local, halved(grid(TOTAL, RATES)), TRIALS)
    # In the full grid every trial takes all env steps, and this one reaches the maximum return, 500.
    assert best["values"] == {"train.ppo.lr": 3e-3, "train.ppo.gamma": 0.98}
    assert best["states"] == {"done": 1}
    assert best["env_steps"] == TOTAL
    env_steps = sum(trial["env_steps"] for trial in (best, *others))
    share = env_steps / (TRIALS * TOTAL)
    print(f"{env_steps:,.0f} of {TRIALS * TOTAL:,} env steps: {share:.3f} of the full grid")
    assert share <= 0.5
    assert sum("destroyed" in trial["states"] for trial in others) > TRIALS / 2
    done = local.run("destroy", "--all-mine", "--grace", "0", "--purge", "--yes")
    assert done.returncode == 0, done.stderr
    end = time.monotonic() + 60.0
    while processes_of(local.home):  # the keeper exits when no sweep is watched any longer
        assert time.monotonic() < end
        time.sleep(0.1)
