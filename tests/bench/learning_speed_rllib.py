"""Env steps a second of RLlib's PPO or IMPALA on CartPole-v1 while it learns, as one JSON line.

Run by `tests.bench.learning_speed` with a Python of its own, so it imports nothing of this project:
ppo|impala WORKERS COPIES EPOCHS BATCH SECONDS. With 0 workers the learner's process collects.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

STEPS = "num_env_steps_sampled_lifetime"


def main() -> None:
    """Learn for a while."""
    workers, copies, epochs, batch = map(int, sys.argv[2:6])
    seconds = float(sys.argv[6])
    ray.init(num_cpus=max(2, workers + 1), include_dashboard=False, log_to_driver=False)
    if sys.argv[1] == "ppo":
        config = PPOConfig().training(minibatch_size=batch, num_epochs=epochs)
    else:
        config = IMPALAConfig()
    config = (
        config.environment("CartPole-v1")
        .env_runners(num_env_runners=workers, num_envs_per_env_runner=copies, rollout_fragment_length="auto")
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=batch)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
        .reporting(min_time_s_per_iteration=0)
    )
    algorithm = config.build_algo()

    counted = [(0.0, 0)]
    while counted[-1][0] - counted[min(1, len(counted) - 1)][0] < seconds or len(counted) < 3:
        steps = int(algorithm.train().get("env_runners", {}).get(STEPS, 0))
        if steps > counted[-1][1]:  # not every iteration tells
            counted.append((time.perf_counter(), steps))
    (began, first), (ended, last) = counted[1], counted[-1]
    print(json.dumps({"steps_per_second": round((last - first) / (ended - began), 1)}))
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
