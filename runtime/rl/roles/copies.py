"""Number of environment copies: a short measurement of how many steps a second a worker takes with more of them.

A step of many copies costs little more than a step of one while calls dominate (racing, CartPole), and grows with
their number where copies are stepped one after the other (Gymnasium's environments). Only numbers that fit the
other settings are tried: segments must fill a batch of an on-policy method, and two of them fit the
band of a method with a replay.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from runtime.base.errors import SetupError
from runtime.rl.algos.actor import NumpyActor
from runtime.rl.algos.recurrent.copy_states import CopyStates
from runtime.rl.envs.base import HoldsProcesses, VectorEnv
from runtime.rl.roles.launch_context import environment_plan, make_environment
from runtime.rl.settings import Settings

COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Copies that are tried, in this order, as far as they fit."""
ENOUGH: Final = 0.9
"""Share of the highest rate that is enough: fewer copies mean fresher data and more policies to explore by."""
TRIAL_SECONDS: Final = 0.3
_WORSE: Final = 0.7
"""Share of the highest rate below which more copies are not tried."""
_WARM_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Env steps a second of a worker with so many copies."""

    num_envs: int
    steps_per_second: float


def measure_copies(training: Settings, seconds: float = TRIAL_SECONDS) -> list[CopyRate]:
    """Step and act for `seconds` with each number of copies, on one core, until more are clearly slower.

    Raises SetupError for settings that do not fit the environment, and for one whose copies have processes.
    """
    first = make_environment(training, 1, {})
    if isinstance(first, HoldsProcesses):
        first.close()
        raise SetupError(f"{training.environment} has processes or threads of its own; set num_envs by hand")
    actor = NumpyActor(environment_plan(training, first).shape)
    rates: list[CopyRate] = []
    for count in COUNTS:
        if not _fits(training, first, count):
            continue
        rates.append(CopyRate(count, _rate(make_environment(training, count, {}), actor, seconds)))
        if rates[-1].steps_per_second < _WORSE * max(rate.steps_per_second for rate in rates):
            break
    if not rates:
        raise SetupError("no number of copies fits these settings; see batch_steps and band_steps")
    return rates


def enough_copies(rates: Sequence[CopyRate]) -> int:
    """Return the smallest number of copies whose rate is within `ENOUGH` of the highest."""
    highest = max(rate.steps_per_second for rate in rates)
    return next(rate.num_envs for rate in rates if rate.steps_per_second >= ENOUGH * highest)


def _fits(training: Settings, env: VectorEnv, count: int) -> bool:
    """Say whether the other settings allow so many copies."""
    changed = replace(training, num_envs=count)
    if not changed.fits_band:
        return False
    try:
        environment_plan(changed, env)
    except SetupError:
        return False
    return True


def _rate(env: VectorEnv, actor: NumpyActor, seconds: float) -> float:
    """Return env steps a second of all copies together."""
    rng, states = np.random.default_rng(0), CopyStates(actor, env.num_envs)
    obs = env.reset(0)
    for _ in range(_WARM_STEPS):
        obs = env.step(states.act(obs, rng)).obs
    began, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        obs = env.step(states.act(obs, rng)).obs
        steps += 1
    return steps * env.num_envs / passed
