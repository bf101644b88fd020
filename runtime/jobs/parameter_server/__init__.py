"""Asynchronous parameter servers: weights in shards on several servers, gradients from workers that do not wait.

One exchange per shard transfers gradients as in `runtime.rl.buffers.rollout_buffer`: each server counts and
acknowledges them, and rejects them if they are too stale (Li et al. 2014; Ho et al. 2013). Everything here uses
NumPy: no process imports torch.

Here are the options of `l2r-runtime ps` and `l2r-runtime ps-worker`.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from runtime.base.cli_options import Commands, add_command
from runtime.base.signals import Stop

_EXAMPLES: Final = """\
example:
  export L2R_PEERS='{"ps":["tcp://127.0.0.1:2222","tcp://127.0.0.1:2232"]}' L2R_DIR=/tmp/ps TRAIN_STEPS=200
  L2R_INDEX=0 l2r-runtime ps & L2R_INDEX=1 l2r-runtime ps &
  L2R_INDEX=0 l2r-runtime ps-worker & L2R_INDEX=1 l2r-runtime ps-worker

A server needs its port and the next one. Settings come from L2R_CONFIG (JSON), or as variables in capitals:
  batch_size (20), learning_rate (0.001, of Adam), train_steps (200; 0: no end), hidden_units (128),
  max_staleness (8: steps that a gradient's weights may be behind), log_dir ($L2R_DIR)
Servers keep checkpoints in L2R_DIR/ps-INDEX and go on from them. All end with 0 after train_steps global steps;
143 when they were stopped before.
"""


def add_parser(commands: Commands) -> None:
    """Add both commands."""
    for name, text in (
        ("ps", "hold a shard of the weights and apply the gradients of the workers"),
        ("ps-worker", "compute gradients on scikit-learn's digits for the parameter servers"),
    ):
        add_command(commands, name, f"{text}\n{text[0].upper()}{text[1:]}.\n{_EXAMPLES}", start)


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Serve or work, and return the exit code."""
    from runtime.base.metrics import Console
    from runtime.rl.roles.launch_context import bound_to_one_thread

    bound_to_one_thread()  # before NumPy is imported: with all cores each, workers on a node wait for each other
    from runtime.jobs.parameter_server.rank_context import PsRank, PsSettings

    role = "ps" if options.role == "ps" else "worker"
    place = PsRank.from_environment(os.environ, role, PsSettings.from_environment(os.environ))
    if role == "ps":
        from runtime.jobs.parameter_server import server

        return server.run(place, stop, Console())
    from runtime.jobs.parameter_server import worker

    return worker.run(place, stop, Console())
