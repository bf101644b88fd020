"""Env steps a second of Sample Factory's APPO on CartPole-v1 while it learns, as one JSON line.

Run by `tests.bench.learning_speed` with a Python of its own, so it imports nothing of this project:
WORKERS COPIES EPOCHS BATCH SECONDS.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

START_SECONDS = 10.0


class Clock(AlgoObserver):
    """Counts from the first training step after the start on, and ends it after so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = START_SECONDS + seconds
        self.began = time.perf_counter()
        self.counted: list[tuple[float, int]] = []

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Note how far it is."""
        now = time.perf_counter()
        if now - self.began > START_SECONDS:
            self.counted.append((now, sum(runner.env_steps.values())))
        if now - self.began > self._end:
            runner.cfg.train_for_env_steps = 0


def _make(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(name, render_mode=render_mode)


def main() -> None:
    """Learn for a while."""
    workers, copies, epochs, batch = map(int, sys.argv[1:5])
    register_env("CartPole-v1", _make)
    clock = Clock(float(sys.argv[5]))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        options = {
            "algo": "APPO",
            "env": "CartPole-v1",
            "experiment": "speed",
            "train_dir": folder,
            "device": "cpu",
            "use_rnn": False,
            "normalize_input": False,
            "nonlinearity": "tanh",
            "num_workers": workers,
            "num_envs_per_worker": copies,
            "worker_num_splits": 2,
            "rollout": 16,
            "batch_size": batch,
            "num_batches_per_epoch": 1,
            "num_epochs": epochs,
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        arguments += ["--encoder_mlp_layers", "64", "64"]
        parser, _ = parse_sf_args(arguments)
        _, runner = make_runner(parse_full_cfg(parser, arguments))
        runner.register_observer(clock)
        runner.init()
        runner.run()
    (began, first), (ended, last) = clock.counted[0], clock.counted[-1]
    print(json.dumps({"steps_per_second": round((last - first) / (ended - began), 1)}))


if __name__ == "__main__":
    main()
