"""Training of encoders, `l2r-runtime encode`: records frames of an environment and trains an autoencoder on them.

Here are its options. The encoders that a run uses are in `runtime.rl.encoders`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from runtime.base import contract
from runtime.base.cgroups import usable_cores
from runtime.base.cli_options import Commands, add_command
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_ENCODE: Final = """\
record pictures of an environment and train a variational autoencoder on them
Record pictures of the environment of L2R_CONFIG and train a variational autoencoder (VAE) on them.

examples:
  export L2R_CONFIG='{"environment": "racing", "environment_options": {"observation": "view"}}'
  l2r-runtime encode view.safetensors --frames 4000 --epochs 10 --threads 2
  l2r-runtime encode view.safetensors --policy ~/runs/racing-view      # frames as a saved policy sees them
  L2R_CONFIG="$(yq -o json .train manifests/l2r-vision.yaml)" l2r-runtime encode road.safetensors --latents 16

Then, in a spec:  train: {encoder: {name: vae, weights: /path/in/each/worker/view.safetensors}}

The file has the keys of Learn-to-Race's VAE and is written after each epoch: Ctrl-C keeps the newest. Without
--policy actions are drawn at random and each is held for some steps. A tenth of the frames is held out; their loss
is printed.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    encode = add_command(commands, "encode", _ENCODE, start)
    encode.add_argument("file", metavar="FILE", type=Path, help="where the weights are written (.safetensors)")
    add = encode.add_argument
    add("--frames", type=int, default=5000, metavar="N", help="frames to record (5000)")
    add("--epochs", type=int, default=20, metavar="N", help="times that training goes over them (20)")
    add("--latents", type=int, default=32, metavar="N", help="numbers that a picture becomes (32)")
    add("--channels", default="32,64,128,256", metavar="N,N,...", help="of each convolution (32,64,128,256)")
    add("--kl", type=float, default=1.0, metavar="X", help="weight of the divergence from the prior (1)")
    add("--policy", metavar="CHECKPOINT", help="act by this saved policy, as in `drive`")
    add("--seed", type=int, default=0, metavar="N")
    add("--threads", type=int, metavar="N", help="of the training; frames are recorded by one (all cores)")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Record, train, and return the exit code."""
    if options.threads is None:
        options.threads = max(1, int(usable_cores()))
    for name in ("frames", "epochs", "latents", "threads"):
        if getattr(options, name) < 1:
            raise SetupError(f"--{name} must be at least 1")
    if options.frames < 100:
        raise SetupError("--frames must be at least 100: a tenth of them is held out")
    if not 0 <= options.kl < float("inf"):
        raise SetupError("--kl must be a number from 0")
    if not 0 <= options.seed < 2**63:
        raise SetupError("--seed must be a whole number from 0")
    parts = options.channels.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise SetupError(f"--channels is {options.channels!r}; it must be whole numbers, for example 16,32,64")
    if not options.file.absolute().parent.is_dir():
        raise SetupError(f"{options.file}: there is no folder {options.file.parent}")
    from runtime.rl.roles.launch_context import bound_to_one_thread

    bound_to_one_thread()  # before NumPy is imported: it acts like a worker
    from runtime.rl.encoding.recording import record_frames
    from runtime.rl.encoding.training import Training, train

    frames = record_frames(
        options.frames, options.policy, os.environ.get(contract.ENV_CONFIG, ""), options.seed, stop
    )
    channels = tuple(map(int, parts))
    training = Training(options.epochs, options.latents, channels, options.kl, options.seed, options.threads)
    train(frames, training, options.file, stop)
    return contract.EXIT_DONE
