"""The reference for the learning curves: Stable-Baselines3 with an example's settings, with periodic JSON records.

Run by `tests.bench.learning` with another Python, so it imports no code of this project.
"""

from __future__ import annotations

import json
import sys
import time

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import RescaleAction
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize

RECORD_STEPS = 1_000


class Records(BaseCallback):
    """Prints the mean return of the latest 100 training episodes.

    For methods with a replay, whose runs have hardly 100 of them, the mean of 10 episodes without exploration, like
    our evaluator.
    """

    def __init__(
        self, environment: str, seed: int, evaluation_steps: int | None = None, episodes: int = 10
    ) -> None:
        """``evaluation_steps`` are the env steps between two evaluations, of any method; None for the above."""
        super().__init__()
        self._environment = environment
        self._seed = seed
        self._episodes = episodes
        self._evaluation_steps = evaluation_steps
        self._began = time.time()
        self._next = evaluation_steps or RECORD_STEPS

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next and self.model.ep_info_buffer:
            self._next = self.num_timesteps + (self._evaluation_steps or RECORD_STEPS)
            self._record()
        return True

    def _on_training_end(self) -> None:
        if self._evaluation_steps is not None:
            self._record()

    def _record(self) -> None:
        record = {
            "env_steps": self.num_timesteps,
            "mean_return": self._mean_return(),
            "seconds": time.time() - self._began,
        }
        print(json.dumps(record), flush=True)

    def _mean_return(self) -> float:
        if isinstance(self.model, PPO) and self._evaluation_steps is None:
            returns = [each["r"] for each in self.model.ep_info_buffer]
            return sum(returns) / len(returns)
        evaluated = copies(self._environment, self._episodes, 1_000 + self._seed)
        mean, _ = evaluate_policy(self.model, evaluated, n_eval_episodes=self._episodes, deterministic=True)
        return mean


def copies(environment: str, count: int, seed: int) -> VecEnv:
    """Return copies of an environment; games of Atari in the usual wrappers."""
    if "NoFrameskip" in environment:
        return VecFrameStack(make_atari_env(environment, count, seed=seed), 4)
    return make_vec_env(environment, count, seed=seed)


def atari_ppo(environment: str, seed: int) -> BaseAlgorithm:
    """Settings of rl-baselines3-zoo for Atari."""
    return PPO(
        "CnnPolicy",
        copies(environment, 8, seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )


def cartpole_ppo(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of rl-baselines3-zoo's family for CartPole: few copies and many passes over each batch.

    One pass over large batches suits copies that are stepped in one array operation.
    """
    ppo = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=128,
        batch_size=256,
        n_epochs=10,
        learning_rate=lambda left: 1e-3 * left,
        gamma=0.98,
        gae_lambda=0.9,
        seed=seed,
        device="cpu",
    )
    return ppo, 122_880


def pendulum_ppo(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of manifests/pendulum-ppo.yaml, under VecNormalize, with actions of -1 to 1 like ours."""
    environments = make_vec_env(
        "Pendulum-v1",
        4,
        seed=seed,
        wrapper_class=RescaleAction,
        wrapper_kwargs={"min_action": -1.0, "max_action": 1.0},
    )
    normalised = VecNormalize(environments, gamma=0.9)
    return PPO("MlpPolicy", normalised, n_steps=1_024, learning_rate=1e-3, gamma=0.9, **PASSES, seed=seed), 100_000


def lunar_lander_ppo(seed: int) -> tuple[BaseAlgorithm, int]:
    """CleanRL's settings for continuous control, under VecNormalize."""
    return _continuous_ppo(make_vec_env("LunarLander-v3", 4, seed=seed, env_kwargs={"continuous": True}), seed)


def half_cheetah_ppo(seed: int) -> tuple[BaseAlgorithm, int]:
    """CleanRL's settings for continuous control, under VecNormalize."""
    return _continuous_ppo(make_vec_env("HalfCheetah-v5", 4, seed=seed), seed)


def _continuous_ppo(environments: VecEnv, seed: int) -> tuple[BaseAlgorithm, int]:
    normalised, rate = VecNormalize(environments, gamma=0.99), lambda left: 3e-4 * left
    return PPO("MlpPolicy", normalised, n_steps=512, learning_rate=rate, gamma=0.99, **PASSES, seed=seed), 200_704


def lunar_lander_dqn(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of rl-baselines3-zoo, as far as both have them."""
    dqn = DQN(
        "MlpPolicy",
        make_vec_env("LunarLander-v3", 4, seed=seed),
        buffer_size=50_000,
        target_update_interval=250,
        exploration_fraction=0.12,
        policy_kwargs={"net_arch": [256, 256]},
        **CHOICES,
        seed=seed,
    )
    return dqn, 100_000


def cartpole_dqn(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of manifests/cartpole-dqn.yaml, as far as this DQN has them: it has no double Q-learning."""
    dqn = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        target_update_interval=200,
        exploration_fraction=8_000 / 50_000,
        policy_kwargs={"net_arch": [128, 128]},
        **CHOICES,
        seed=seed,
    )
    return dqn, 50_000


def pendulum_sac(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of manifests/pendulum-sac.yaml."""
    sac = SAC("MlpPolicy", make_vec_env("Pendulum-v1", 4, seed=seed), tau=0.01, **REPLAY, seed=seed)
    return sac, 20_000


def pendulum_td3(seed: int) -> tuple[BaseAlgorithm, int]:
    """Settings of manifests/pendulum-td3.yaml."""
    noise = NormalActionNoise(np.zeros(1), np.full(1, 0.1))
    environments = make_vec_env("Pendulum-v1", 4, seed=seed)
    return TD3("MlpPolicy", environments, action_noise=noise, tau=0.005, **REPLAY, seed=seed), 20_000


REPLAY = {
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "batch_size": 256,
    "learning_starts": 1_000,
    "train_freq": 4,
    "gradient_steps": 8,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}
"""Common settings of SAC and TD3 on Pendulum: half an update for each env step."""
PASSES = {"batch_size": 64, "n_epochs": 10, "gae_lambda": 0.95, "device": "cpu"}
"""Common settings of PPO on continuous control."""
CHOICES = {
    "learning_rate": 5e-4,
    "learning_starts": 1_000,
    "batch_size": 128,
    "train_freq": 1,
    "gradient_steps": 4,
    "exploration_final_eps": 0.05,
    "device": "cpu",
}
"""Common settings of DQN on CartPole and LunarLander."""
EXAMPLES = {
    "cartpole-ppo": ("CartPole-v1", cartpole_ppo),
    "cartpole-dqn": ("CartPole-v1", cartpole_dqn),
    "half-cheetah-ppo": ("HalfCheetah-v5", half_cheetah_ppo),
    "lunar-lander-dqn": ("LunarLander-v3", lunar_lander_dqn),
    "lunar-lander-ppo": ("LunarLander-v3", lunar_lander_ppo),
    "pendulum-ppo": ("Pendulum-v1", pendulum_ppo),
    "pendulum-sac": ("Pendulum-v1", pendulum_sac),
    "pendulum-td3": ("Pendulum-v1", pendulum_td3),
}
"""Environment and algorithm of each example."""


def main() -> None:
    """Train one example with one seed: EXAMPLE SEED, or a task with Stable-Baselines3's own settings.

    The latter's words are: defaults SEED ENVIRONMENT METHOD STEPS EVALUATION_STEPS EPISODES.
    """
    torch.set_num_threads(1)
    seed = int(sys.argv[2])
    if sys.argv[1] == "defaults":
        environment, method, steps, evaluation_steps, episodes = *sys.argv[3:5], *map(int, sys.argv[5:])
        if "NoFrameskip" in environment:
            import ale_py

            gymnasium.register_envs(ale_py)
            algorithm = atari_ppo(environment, seed)
        else:
            algorithm = {"ppo": PPO, "sac": SAC, "dqn": DQN}[method](
                "MlpPolicy", environment, seed=seed, device="cpu"
            )
        algorithm.learn(steps, callback=Records(environment, seed, evaluation_steps, episodes))
        return
    environment, make = EXAMPLES[sys.argv[1]]
    algorithm, steps = make(seed)
    algorithm.learn(steps, callback=Records(environment, seed))


if __name__ == "__main__":
    main()
