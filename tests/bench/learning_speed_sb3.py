"""Env steps a second and a CPU second of Stable-Baselines3's PPO on CartPole-v1 while it learns, as one JSON line.

Run by `tests.bench.learning_speed` with another Python, so it imports no code of this project: COPIES THREADS
EPOCHS BATCH SECONDS.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Clock(BaseCallback):
    """Counts from the second batch on, for this many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._began: tuple[float, float, int] | None = None
        self.rate = self.cpu_rate = 0.0

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        if self._began is None and self.num_timesteps:
            self._began = now, time.process_time(), self.num_timesteps
        elif self._began is not None and now > self._began[0]:
            began, cpu, first = self._began
            self.rate = (self.num_timesteps - first) / (now - began)
            self.cpu_rate = (self.num_timesteps - first) / (time.process_time() - cpu)

    def _on_step(self) -> bool:
        return self._began is None or not self.rate or time.perf_counter() - self._began[0] < self._seconds


def main() -> None:
    """Learn for a while."""
    copies, threads, epochs, batch = map(int, sys.argv[1:5])
    torch.set_num_threads(threads)
    clock = Clock(float(sys.argv[5]))
    ppo = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", copies, seed=0),
        n_steps=batch // copies,
        batch_size=batch,
        n_epochs=epochs,
        seed=0,
        device="cpu",
    )
    ppo.learn(10**9, callback=clock)
    print(json.dumps({"steps_per_second": clock.rate, "steps_per_cpu_second": clock.cpu_rate}))


if __name__ == "__main__":
    main()
