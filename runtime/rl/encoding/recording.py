"""Records frames of an environment, driven at random or by a saved policy, for the training of an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import InterruptedWorkError, SetupError
from runtime.base.signals import Stop
from runtime.base.training import Settings, parse
from runtime.rl.algos.actor import CopyStates, NumpyActor
from runtime.rl.checkpoints.saved_policy import SavedRun, open_run, say_aside
from runtime.rl.envs.base import VectorEnv, closing_env
from runtime.rl.roles.launch_context import environment_plan, make_environment

Frames = NDArray[np.uint8]
Act = Callable[[NDArray[Any]], NDArray[Any]]
_NEW_ACTION: Final = 0.1
"""Probability per step of a new random action: an action that is held moves a car."""
_COPIES: Final = 16
"""Maximum number of copies of the environment; consecutive frames are very similar."""


def record_frames(count: int, policy: str | None, config: str, seed: int, stop: Stop) -> Frames:
    """Return (count, height, width, channels) images. Raises SetupError, SettingsError, InterruptedWorkError."""
    run = open_run(policy, config, say_aside) if policy is not None else None
    training = run.settings if run is not None else parse(config)
    if run is None:
        training = replace(training, encoder=None)
    if training.encoder not in (None, "convolutions"):
        raise SetupError("--policy: its run sees latents of an encoder; take one that sees pictures")
    env = make_environment(training, min(training.num_envs, _COPIES), {})
    with closing_env(env, stop.is_set):
        _check(env, training)
        frames = _record(env, count, _policy(run, env) if run is not None else _at_random(env, seed), seed, stop)
    if len(frames) < count:
        raise InterruptedWorkError(
            f"ended by {stop.reason} after {len(frames)} of {count} frames; nothing is written"
        )
    return frames


def _check(env: VectorEnv, training: Settings) -> None:
    """Raise SetupError if there are no images, or images of several sizes, which one encoder cannot take."""
    if not env.obs_space.images:
        raise SetupError(
            f"{training.environment} shows no pictures under these settings; set L2R_CONFIG, for example to "
            '{"environment_options": {"observation": "view"}} for racing, or with cameras for l2r'
        )
    if len(set(env.obs_space.images)) > 1:
        raise SetupError(
            f"pictures of {list(env.obs_space.images)} differ in size; set their resize and grey alike"
        )


def _record(env: VectorEnv, count: int, act: Act, seed: int, stop: Stop) -> Frames:
    """Return `count` images, of all cameras; fewer if `stop` was set."""
    frames = np.empty((count, *env.obs_space.images[0]), np.uint8)
    at, reported_at = 0, 0
    obs = env.reset(seed)
    while at < count and not stop.is_set():
        for pictures in env.obs_space.split(obs)[1]:
            part = pictures[: count - at]
            frames[at : at + len(part)] = part
            at += len(part)
        if at - reported_at >= count / 10:
            reported_at = at
            print(f"frames {at}/{count}", flush=True)
        obs = env.step(act(obs)).obs
    return frames[:at]


def _policy(run: SavedRun, env: VectorEnv) -> Act:
    """Act with a saved policy, including its randomness, so that the car also leaves its usual line."""
    plan = environment_plan(run.settings, env)
    actor = NumpyActor(plan.shape)
    actor.load(run.weights(plan))
    states, rng = CopyStates(actor, env.num_envs), np.random.default_rng(run.seed)
    return lambda obs: states.act(obs, rng)


def _at_random(env: VectorEnv, seed: int) -> Act:
    """Draw uniformly random actions and hold each for some steps."""
    rng = np.random.default_rng(seed)
    action = env.action_space.at_random(env.num_envs, rng)

    def act(obs: NDArray[Any]) -> NDArray[Any]:
        del obs
        fresh = rng.random(env.num_envs) < _NEW_ACTION
        action[fresh] = env.action_space.at_random(env.num_envs, rng)[fresh]
        return action.copy()

    return act
