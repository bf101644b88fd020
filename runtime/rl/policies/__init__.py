"""Policies outside a run: drives a checkpoint's policy without a learner, films it, and exports it.

Training code is in `roles` and `algos` and does not import this package. Here are the options of the commands,
whose code is imported when they start.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from runtime.base import contract
from runtime.base.cli_options import Commands, add_command
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_DRIVE: Final = """\
drive a saved policy without a learner, print its score, film it
Drive the policy of a checkpoint without exploration, as an evaluator does, and print its score.

CHECKPOINT is a file of one (.json or .safetensors), a folder of checkpoints or of a run, where the newest is
taken, or a bucket's s3://BUCKET/PREFIX/RUN/RUN_ID. The settings are those that the checkpoint states; L2R_CONFIG, a
JSON object, goes over them, for example '{"eval_options": {"track": "ridge", "start": "line", "laps": 1}}'.

examples:
  l2r-runtime drive ~/runs/racing-sac --episodes 8
  l2r-runtime drive ckpt-0000012000-000000192512.json --json --video lap.mp4

A film needs ffmpeg for mp4 (imageio-ffmpeg has it), Pillow for gif; both come with `pip install 'imageio[ffmpeg]'`.
"""

_EXPORT: Final = """\
export a saved policy to ONNX or TorchScript
Write the policy of a checkpoint as a file that runs without l2r-runtime, and compare the two.

examples:
  l2r-runtime export ~/runs/racing-sac --to onnx policy.onnx
  l2r-runtime export ckpt-0000012000-000000192512.json --to torchscript policy.pt
  l2r-runtime export s3://lab/runs/racing-sac/racing-sac-1 --to onnx policy.onnx

Inputs: vector (batch, numbers) float32, and image_0, image_1 ... (batch, height, width, channels) bytes, as far as
the environment shows them. Outputs: action (batch, size), the likeliest one, numbers or choices from 0, and
outputs, from which actions can be drawn (docs/learning.md). CHECKPOINT and L2R_CONFIG are those of `drive`.
onnx needs `pip install onnx onnxscript onnxruntime`. Torch has deprecated TorchScript.
"""


_DATASET: Final = """\
list the contents of a folder of recorded episodes
Print environment, episodes, transitions and returns of files that `record_experience` or `drive --record` wrote.

examples:
  l2r-runtime dataset /l2r/expert
  l2r-runtime dataset /l2r/expert --json

Files that are damaged are named and left out. It needs `pip install h5py`.
"""


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    drive = add_command(commands, "drive", _DRIVE, start_drive)
    drive.add_argument("checkpoint", metavar="CHECKPOINT")
    add = drive.add_argument
    add("--episodes", type=int, metavar="N", help="episodes to drive (eval_episodes of the settings)")
    add("--seed", type=int, metavar="N", help="seed of the starts; that of the run starts as its evaluator did")
    add("--video", type=Path, metavar="FILE", help="film the first episode: .gif or .mp4")
    add("--record", metavar="FOLDER", help="write the episodes there, as HDF5 in Minari's form")
    add("--json", action="store_true", help="print one JSON object")
    dataset = add_command(commands, "dataset", _DATASET, start_dataset)
    dataset.add_argument("folder", metavar="FOLDER")
    dataset.add_argument("--json", action="store_true", help="print one JSON object")
    export = add_command(commands, "export", _EXPORT, start_export)
    export.add_argument("checkpoint", metavar="CHECKPOINT")
    export.add_argument("--to", choices=("onnx", "torchscript", "torch"), required=True, help="form of the file")
    export.add_argument("file", type=Path, metavar="FILE")


def start_dataset(options: argparse.Namespace, _stop: Stop) -> int:
    """Print a summary of a dataset and return the exit code."""
    from runtime.rl.datasets.episode_files import print_summary

    return print_summary(options)


def start_export(options: argparse.Namespace, _stop: Stop) -> int:
    """Export a checkpoint's policy and return the exit code."""
    if not options.file.absolute().parent.is_dir():
        raise SetupError(f"{options.file}: there is no folder {options.file.parent}")
    from runtime.rl.policies.export import export

    return export(options.checkpoint, options.to, options.file, os.environ.get(contract.ENV_CONFIG, ""))


def start_drive(options: argparse.Namespace, stop: Stop) -> int:
    """Drive a checkpoint and return the exit code."""
    if options.episodes is not None and options.episodes < 1:
        raise SetupError("--episodes must be at least 1")
    if options.seed is not None and not 0 <= options.seed < 2**63:
        raise SetupError("--seed must be a whole number from 0")
    from runtime.rl.roles.launch_context import bound_to_one_thread

    bound_to_one_thread()  # before NumPy is imported: it acts like a worker, often next to a run's workers
    if options.video is not None:
        from runtime.rl.policies.film import check_video

        check_video(options.video)  # before minutes of driving
    from runtime.rl.policies.drive import drive

    return drive(options, os.environ.get(contract.ENV_CONFIG, ""), stop)
