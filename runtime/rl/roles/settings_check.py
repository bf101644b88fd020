"""Checks training settings before a launch: finds errors that a learner would report, without starting one.

`check_settings` opens no socket, starts no simulator and makes no environment of Gymnasium: an id is looked up.
A user-defined class is created, as its learner would make it. `try_environment` makes the environment once.

`measure_copies` finds how many copies of an environment a worker should step together, for `l2r-runtime config
--copies`. A step of many copies costs little more than a step of one while call overhead dominates (racing,
CartPole), and grows with their number if copies are stepped one after another (Gymnasium's environments). Only
numbers that fit the other settings are tried: segments must fill a batch of an on-policy method, and two of them
must fit the band of a method with a replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from runtime.base import contract, environments, trackers
from runtime.base.errors import EnvironmentFault, SetupError
from runtime.base.training import Settings
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.envs.base import HoldsCopies, HoldsProcesses, VectorEnv, bare, closing_env
from runtime.rl.roles.launch_context import (
    ended_by_environment,
    environment_plan,
    keep_torch_defaults,
    make_environment,
    network_of,
)
from runtime.rl.spaces import ActionSpace, ObsSpace

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


def check_settings(training: Settings) -> None:
    """Raise SetupError for an invalid environment, option or method setting."""
    from runtime.rl.algos.plan import make_plan, method_of
    from runtime.rl.encoders.encoder import EncoderSetting, tuned_encoder

    trackers.check_installed(training.log_to)
    try:
        method_of(training)  # also if only the environment itself knows whether the plan fits
        encoding = EncoderSetting.of(training.encoder)
        spaces = _spaces(training)
        if spaces is not None and encoding is not None:
            obs, action = spaces
            if not obs.images:
                encoding.load(())  # reports that there are no images
            # The weights may be readable only in the workers; the number of latents does not affect the plan's
            # validity.
            if encoding.is_frozen:
                spaces = ObsSpace(obs.vector + 1), action
            elif not Path(str(encoding.options["weights"])).is_file():
                training = replace(training, encoder=None, convolutions=((1, 1, 1),))
        if spaces is not None:
            layers = tuned_encoder(training.encoder, spaces[0].images)
            # The number of latents in a network's input is only known where the encoder runs.
            network = network_of(training, spaces[0]) if encoding is None else None
            make_plan(training, *spaces, layers, network)
    except (TypeError, ValueError) as error:
        raise SetupError(str(error)) from error


def try_environment(training: Settings) -> VectorEnv | None:
    """Make one copy of the environment, reset it, take a step and close it.

    Simulators are not started, and weights of an encoder may be readable in the workers alone. Return the closed
    copy, whose spaces are the run's; None where they are not. SetupError or EnvironmentFault says what failed.
    """
    from runtime.rl.roles.launch_context import environment_plan, make_environment

    name, options = training.environment, dict(training.environment_options)
    # A process for each copy would only hide the error of the one that is made here.
    options.pop(environments.PROCESSES, None)
    if environments.has_processes(name, options) and not name.startswith(environments.ENVPOOL):
        return None
    plain = replace(training, environment_options=options, encoder=None, num_envs=1, collect="workers")
    with _sentences(name, "when it is made"):
        env = make_environment(plain, 1, {})
    try:
        with _sentences(name, "at its first step"):
            env.reset(0)
            env.step(env.action_space.at_random(1, np.random.default_rng(0)))
    finally:
        if isinstance(env, HoldsCopies):
            env.close()
        keep_torch_defaults()
    if training.encoder is not None:
        return None
    if training.collect != "dataset":
        environment_plan(training, env)
    return env


@contextmanager
def _sentences(name: str, moment: str) -> Iterator[None]:
    """Turn whatever an environment's own code raises into a sentence that names it, without a traceback of ours."""
    try:
        yield
    except (SetupError, EnvironmentFault):  # the second with its own exit code: a new start would not mend it
        raise
    except BaseException as error:
        if not isinstance(error, Exception):
            raise EnvironmentFault(ended_by_environment(name, error)) from error
        raise SetupError(f"environment {name} fails {moment} ({type(error).__name__}: {error})") from error


def _spaces(training: Settings) -> tuple[ObsSpace, ActionSpace] | None:
    """Return the spaces of the environment; None if only the environment itself knows them."""
    name, options = training.environment, training.environment_options
    if not environments.is_possible(name):
        raise ValueError(f"unknown environment {name!r}. {environments.suggestion(name)}")
    if name == "l2r":
        from runtime.rl.envs.l2r_options import L2ROptions
        from runtime.rl.envs.racing_rules import RacingRules

        # Creating one would start its simulators.
        return L2ROptions.from_mapping(options).obs_space, ActionSpace(RacingRules.act_dim)
    is_ours = name in environments.BUILT_IN or (name in environments.CLASSIC and not options)
    if is_ours or (training.collect == "device" and environments.may_be_class(name)):
        from runtime.rl.envs.registry import make_vector_env

        env = make_vector_env(name, 1, options=options)
        return env.obs_space, env.action_space
    _look_up(name)
    return None


def _look_up(name: str) -> None:
    """Raise ValueError for an id that Gymnasium does not know."""
    # Looking up an id with a module would import it, which runs arbitrary code; an id without a version means the
    # newest one, which only its creation finds.
    if ":" in name or "-v" not in name:
        return
    import gymnasium

    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(environments.unknown_id(name, error)) from error
