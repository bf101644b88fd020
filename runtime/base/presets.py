"""Settings of other libraries by name, and those that fit the racing environments.

A preset gives defaults; values in a spec take precedence. Sources are the defaults of Stable-Baselines3 2.x (its
classes) and of CleanRL (the script of each name), read in 2026. Lengths that these libraries take as shares of a
run follow from `total_env_steps`, and keep the defaults here where a run has no end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from runtime.base import environments

Values = dict[str, Any]
_UNCHANGED_TARGET: Final = {"double": False, "dueling": False}


def _sb3_ppo(total: int | None) -> Values:
    del total
    # Stable-Baselines3 multiplies the mean square by vf_coef = 0.5, this method half of it.
    method = {"lr": 3e-4, "batch_steps": 2_048, "minibatch_size": 64, "epochs": 10, "value_cost": 1.0}
    return {"num_envs": 1, "segment_steps": 2_048, "ppo": {**method, **_AS_ONE_NETWORK, "hidden": [64, 64]}}


def _sb3_sac(total: int | None) -> Values:
    del total
    rates = {"actor_lr": 3e-4, "critic_lr": 3e-4, "alpha_lr": 3e-4, "init_alpha": 1.0}
    method = {**rates, "gamma": 0.99, "tau": 0.005, "batch_size": 256, "hidden": [256, 256]}
    return {**_EACH_STEP, "warmup_steps": 100, "replay_capacity": 1_000_000, "sac": method}


def _sb3_td3(total: int | None) -> Values:
    del total
    method = {"actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.005, "batch_size": 256, "hidden": [400, 300]}
    # Without action_noise its policy does not explore; RL Zoo takes 0.1.
    return {**_EACH_STEP, "warmup_steps": 100, "replay_capacity": 1_000_000, "td3": {**method, **_TD3_NOISE}}


def _sb3_dqn(total: int | None) -> Values:
    method = {"lr": 1e-4, "batch_size": 32, "target_updates": 2_500, "max_grad_norm": 10.0, "hidden": [64, 64]}
    explored = {} if total is None else {"exploration_updates": max(1, total // 40)}
    every_fourth = {"updates_per_step": 0.25, "warmup_steps": 100, "replay_capacity": 1_000_000}
    return {**_EACH_STEP, **every_fourth, "dqn": {**method, **_UNCHANGED_TARGET, **explored}}


def _cleanrl_ppo(total: int | None) -> Values:
    method = {"lr": 2.5e-4, "batch_steps": 512, "minibatch_size": 128, "epochs": 4, "entropy_cost": 0.01}
    block = {**method, **_AS_ONE_NETWORK, **_annealed(total, 512), "value_clip": 0.2, "hidden": [64, 64]}
    return {"num_envs": 4, "segment_steps": 128, "ppo": block}


def _cleanrl_ppo_continuous(total: int | None) -> Values:
    method = {"lr": 3e-4, "batch_steps": 2_048, "minibatch_size": 64, "epochs": 10, "normalise_returns": True}
    block = {**method, **_AS_ONE_NETWORK, **_annealed(total, 2_048), "value_clip": 0.2, "hidden": [64, 64]}
    return {"num_envs": 1, "segment_steps": 2_048, "normalise_observations": True, "ppo": block}


def _cleanrl_ppo_atari(total: int | None) -> Values:
    method = {"lr": 2.5e-4, "batch_steps": 1_024, "minibatch_size": 256, "epochs": 4, "entropy_cost": 0.01}
    network = {"shared_layers": True, "hidden": [512], "clip": 0.1, "value_clip": 0.1}
    block = {**method, **_AS_ONE_NETWORK, **_annealed(total, 1_024), **network}
    return {"num_envs": 8, "segment_steps": 128, "clip_rewards": 1.0, "ppo": block}


def _cleanrl_sac(total: int | None) -> Values:
    del total
    rates = {"actor_lr": 3e-4, "critic_lr": 1e-3, "alpha_lr": 1e-3, "init_alpha": 1.0}
    method = {**rates, "gamma": 0.99, "tau": 0.005, "batch_size": 256, "hidden": [256, 256]}
    return {**_EACH_STEP, "warmup_steps": 5_000, "replay_capacity": 1_000_000, "sac": method}


def _cleanrl_td3(total: int | None) -> Values:
    del total
    method = {"actor_lr": 3e-4, "critic_lr": 3e-4, "tau": 0.005, "batch_size": 256, "hidden": [256, 256]}
    return {**_EACH_STEP, "warmup_steps": 25_000, "replay_capacity": 1_000_000, "td3": {**method, **_TD3_NOISE}}


def _cleanrl_dqn(total: int | None) -> Values:
    method = {"lr": 2.5e-4, "batch_size": 128, "target_updates": 50, "huber": False, "hidden": [120, 84]}
    # It does not clip the gradient, and explores less from the first env step on until half of all.
    method |= {"max_grad_norm": 1e9, **_UNCHANGED_TARGET}
    warmup, updates_per_step = 10_000, 0.1
    if total is not None:
        method["exploration_updates"] = max(1, round((total // 2 - warmup) * updates_per_step))
    every_tenth = {"updates_per_step": updates_per_step, "warmup_steps": warmup, "replay_capacity": 10_000}
    return {**_EACH_STEP, **every_tenth, "dqn": method}


def _annealed(total: int | None, batch: int) -> Values:
    return {} if total is None else {"anneal_updates": max(1, total // batch)}


_AS_ONE_NETWORK: Final = {"adam_eps": 1e-5, "joint_clipping": True, "max_grad_norm": 0.5}
_EACH_STEP: Final = {"num_envs": 1, "updates_per_step": 1.0, "segment_steps": 8, "publish_every": 4}
"""Those libraries act with the newest policy after each step; `completed` keeps collection as close to learning."""
_TD3_NOISE: Final = {"exploration_noise": 0.1, "target_noise": 0.2, "target_noise_clip": 0.5, "policy_delay": 2}
PRESETS: Final[Mapping[str, Mapping[str, Callable[[int | None], Values]]]] = {
    "sb3": {"ppo": _sb3_ppo, "sac": _sb3_sac, "td3": _sb3_td3, "dqn": _sb3_dqn},
    "cleanrl": {"ppo": _cleanrl_ppo, "sac": _cleanrl_sac, "td3": _cleanrl_td3, "dqn": _cleanrl_dqn},
    "cleanrl-continuous": {"ppo": _cleanrl_ppo_continuous},
    "cleanrl-atari": {"ppo": _cleanrl_ppo_atari},
}
"""Values by the setting ``preset`` and the algorithm, given `total_env_steps`."""
RACING: Final[Mapping[str, Values]] = {
    "sac": {
        "hidden": [128, 128],
        "gamma": 0.98,
        "tau": 0.01,
        "actor_lr": 5e-4,
        "critic_lr": 5e-4,
        "alpha_lr": 1e-3,
        "init_alpha": 0.1,
    }
}
"""Settings of methods where the environment is racing or l2r and no preset is named: tests/bench/racing.py."""


def of_environment(environment: str, algorithm: str) -> Values:
    """Return the settings of a method that were tuned on an environment; {} for none."""
    return RACING.get(algorithm, {}) if environment in environments.BUILT_IN else {}


def completed(values: Mapping[str, Any]) -> Values:
    """Return settings with what their preset adds. ValueError for a preset that does not know the algorithm.

    Args:
        values: Settings by name, each of the right form.
    """
    algorithm, preset = values.get("algorithm", "sac"), values.get("preset")
    if preset is None:
        added = {}
        if tuned := of_environment(values.get("environment", environments.DEFAULT), algorithm):
            added = {algorithm: tuned}
    elif (of_method := PRESETS[preset].get(algorithm)) is not None:
        added = of_method(values.get("total_env_steps"))
    else:
        raise ValueError(
            f"preset: {preset} has no settings for {algorithm}, but for {', '.join(PRESETS[preset])}; leave preset "
            "out, or change algorithm"
        )
    block = {**added.get(algorithm, {}), **values.get(algorithm, {})}
    if values.get("hidden") is not None and "hidden" not in values.get(algorithm, {}):
        block.pop("hidden", None)  # the spec's own widths stand, wherever it has them
    result = {**added, **values, **({algorithm: block} if block else {})}
    if "publish_every" in added:
        result.setdefault("band_steps", 2 * result["num_envs"] * result["segment_steps"])
    return result
