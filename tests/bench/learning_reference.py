"""The reference for the learning curves: Stable-Baselines3 with an example's settings, a JSON record now and then.

Run by `tests.bench.learning` with a Python of its own, so it imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

RECORD_STEPS = 1_000


class Records(BaseCallback):
    """Prints the mean return of the latest 100 training episodes.

    Of SAC, whose runs have hardly 100 of them, that of 10 episodes without exploration, as our evaluator does.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._began = time.time()
        self._next = RECORD_STEPS

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next and self.model.ep_info_buffer:
            self._next = self.num_timesteps + RECORD_STEPS
            record = {
                "env_steps": self.num_timesteps,
                "mean_return": self._mean_return(),
                "seconds": time.time() - self._began,
            }
            print(json.dumps(record), flush=True)
        return True

    def _mean_return(self) -> float:
        if not isinstance(self.model, SAC):
            returns = [each["r"] for each in self.model.ep_info_buffer]
            return sum(returns) / len(returns)
        evaluated = make_vec_env("Pendulum-v1", 1, seed=1_000 + self._seed)
        mean, _ = evaluate_policy(self.model, evaluated, n_eval_episodes=10, deterministic=True)
        return mean


def make(example: str, seed: int) -> tuple[BaseAlgorithm, int]:
    """Return the algorithm and its env steps.

    SAC has the settings of manifests/pendulum-sac.yaml; PPO those of rl-baselines3-zoo's family for CartPole, few
    copies and many passes over each batch: one pass over large batches is for copies that are stepped in one array
    operation.
    """
    if example == "cartpole-ppo":
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
    sac = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", 4, seed=seed),
        learning_rate=1e-3,
        gamma=0.99,
        tau=0.01,
        batch_size=256,
        learning_starts=1_000,
        train_freq=4,
        gradient_steps=8,
        policy_kwargs={"net_arch": [64, 64]},
        seed=seed,
        device="cpu",
    )
    return sac, 20_000


def main() -> None:
    """Train one example with one seed."""
    torch.set_num_threads(1)
    seed = int(sys.argv[2])
    algorithm, steps = make(sys.argv[1], seed)
    algorithm.learn(steps, callback=Records(seed))


if __name__ == "__main__":
    main()
