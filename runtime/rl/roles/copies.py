"""Measures how many copies of an environment a worker should step together.

`l2r-runtime config --copies` prints the result.

A step of many copies costs little more than a step of one while call overhead dominates (racing, CartPole), and
grows with their number if copies are stepped one after another (Gymnasium's environments). Only numbers that fit
the other settings are tried: segments must fill a batch of an on-policy method, and two of them must fit the band
of a method with a replay.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from runtime.base import contract, environments
from runtime.base.errors import SetupError
from runtime.base.training import Settings
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.envs.base import HoldsProcesses, VectorEnv, bare, closing_env
from runtime.rl.roles.launch_context import environment_plan, make_environment

COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of copies to try, in this order, if they fit."""
ENOUGH: Final = 0.9
"""Share of the highest rate that suffices: fewer copies mean fresher data and more policies to explore with."""
TRIAL_SECONDS: Final = 0.3
_SLICES: Final = 3
"""Parts of a trial; only the fastest counts, so that other load on a shared core falls out."""
_WORSE: Final = 0.7
"""Share of the highest rate below which more copies are not tried."""
_WARM_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Env steps per second of a worker with this many copies."""

    num_envs: int
    steps_per_second: float


def measure_copies(training: Settings, seconds: float = TRIAL_SECONDS) -> list[CopyRate]:
    """Step and act for `seconds` with each number of copies, on one core, until more are clearly slower.

    Raises SetupError if settings do not fit the environment, or if its copies have processes.
    """
    first = _first_copy(training)
    with closing_env(first, lambda: False):
        actor = NumpyActor(environment_plan(training, first).shape)
        counts = [count for count in COUNTS if _fits(training, first, count)]
    rates: list[CopyRate] = []
    for count in counts:
        env = make_environment(training, count, {})
        with closing_env(env, lambda: False):
            rates.append(CopyRate(count, _rate(env, actor, seconds)))
        if rates[-1].steps_per_second < _WORSE * max(rate.steps_per_second for rate in rates):
            break
    if not rates:
        raise SetupError("no number of copies fits these settings; see batch_steps and band_steps")
    return rates


def _first_copy(training: Settings) -> VectorEnv:
    """Return one copy. Raises SetupError if copies have processes or threads, which a trial would have to start."""
    name = training.environment
    if not environments.has_processes(name, training.environment_options):
        env = make_environment(training, 1, {})
        source = bare(env)
        if not isinstance(source, HoldsProcesses):
            return env
        source.close()
    raise SetupError(f"{contract.ENV_CONFIG}: {name} has processes or threads of its own; set num_envs by hand")


def enough_copies(rates: Sequence[CopyRate]) -> int:
    """Return the smallest number of copies whose rate is within `ENOUGH` of the highest."""
    highest = max(rate.steps_per_second for rate in rates)
    return next(rate.num_envs for rate in rates if rate.steps_per_second >= ENOUGH * highest)


def _fits(training: Settings, env: VectorEnv, count: int) -> bool:
    """Return whether the other settings allow this many copies."""
    changed = replace(training, num_envs=count)
    if not changed.fits_band:
        return False
    try:
        environment_plan(changed, env)
    except SetupError:
        return False
    return True


def _rate(env: VectorEnv, actor: NumpyActor, seconds: float) -> float:
    """Return env steps per second of all copies together, of the fastest part of the time."""
    rng, states = np.random.default_rng(0), CopyStates(actor, env.num_envs)
    obs = env.reset(0)
    for _ in range(_WARM_STEPS):
        obs = env.step(states.act(obs, rng)).obs
    fastest = 0.0
    for _ in range(_SLICES):
        began, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds / _SLICES:
            obs = env.step(states.act(obs, rng)).obs
            steps += 1
        fastest = max(fastest, steps * env.num_envs / passed)
    return fastest
