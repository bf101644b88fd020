"""Checks training settings before a launch: finds errors that a learner would report, without starting one.

`check_settings` opens no socket, starts no simulator and makes no environment of Gymnasium: an id is looked up.
A user-defined class is created, as its learner would make it. `try_environment` makes the environment once.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from runtime.base import environments, trackers
from runtime.base.errors import EnvironmentFault, SetupError
from runtime.base.training import Settings
from runtime.rl.envs.base import HoldsCopies, VectorEnv
from runtime.rl.roles.launch_context import network_of
from runtime.rl.spaces import ActionSpace, ObsSpace


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
    env = make_environment(plain, 1, {})
    try:
        env.reset(0)
        env.step(env.action_space.at_random(1, np.random.default_rng(0)))
    except EnvironmentFault:  # with its own exit code: a new start would not mend it
        raise
    # Whatever the environment's own code does is its own: a sentence names it, and no traceback of ours.
    except Exception as error:
        raise SetupError(f"environment {name} fails at its first step ({type(error).__name__}: {error})") from error
    finally:
        if isinstance(env, HoldsCopies):
            env.close()
    if training.encoder is not None:
        return None
    if training.collect != "dataset":
        environment_plan(training, env)
    return env


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
