"""Image classification with distributed data parallelism: the trainer of elastic jobs, and their evaluation.

Here are the options of `l2r-runtime classify`; torch is imported when it starts.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Final

from runtime.base.cli_options import Commands, add_command, run_folder
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_TEXT: Final = """\
train an image classifier, or evaluate it
Train a small convolutional network on images, alone or as processes of an elastic job.

examples:
  export L2R_DIR=/l2r
  l2r-runtime fetch digits
  l2r-runtime classify train --epochs 3
  l2r-runtime elastic --nodes 1:4 -- l2r-runtime classify train --epochs 3
  l2r-runtime classify evaluate

Data is CIFAR-10's binary format: data_batch_N.bin, test_batch.bin, batches.meta.txt. Without --data, and where
there is no $L2R_DIR/data, it is scikit-learn's digits. Snapshots (model, optimiser, epoch, step) go to
L2R_DIR/checkpoints, on the other nodes of an elastic job to L2R_NODE_DIR; training continues from the newest of all
nodes, with any number of processes: the mean gradient of a step is over --batch pictures however many share them.
On GPUs each process has one of its own.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    parser = add_command(commands, "classify", _TEXT, start)
    what = parser.add_subparsers(dest="what", required=True, metavar="train|evaluate")
    train = what.add_parser("train", help="train, going on from the newest snapshot")
    evaluate = what.add_parser("evaluate", help="print the accuracy of the newest snapshot, in all and per class")
    for command in (train, evaluate):
        command.add_argument("--data", metavar="DIR", help="folder of the images, or digits ($L2R_DIR/data)")
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add = train.add_argument
    add("--epochs", type=int, default=5, help="how often each picture is seen (%(default)s)")
    add("--batch", type=int, default=64, help="pictures to a step, over all processes (%(default)s)")
    add("--lr", type=float, default=0.02, help="step size at the start; it falls to 0 along a cosine (%(default)s)")
    add("--augment", choices=("none", "shift", "flip"), default="shift", help="flip shifts too (%(default)s)")
    add("--snapshot-steps", type=int, default=20, help="steps between two snapshots (%(default)s)")
    add("--step-seconds", type=float, default=0.0, help="least time for a step: slows small data down (0)")
    add(
        "--timeout-seconds",
        type=float,
        default=30.0,
        help="a process that is silent for this long counts as lost (30)",
    )
    add("--shared-gpu", action="store_true", help="processes may share a GPU: their gradients go through the CPU")
    add("--threads", type=int, default=1, help="threads of each process on a CPU (%(default)s)")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Train or evaluate."""
    from runtime.base.metrics import Console

    for name in ("epochs", "batch", "lr", "snapshot_steps", "timeout_seconds", "threads"):
        if getattr(options, name, 1) <= 0:
            raise SetupError(f"--{name.replace('_', '-')} must be above 0")
    folder = run_folder(os.environ)
    data = _data(options.data, folder)
    if options.what == "evaluate":
        from runtime.jobs.classify.training import evaluate

        return evaluate(data, folder, options.device, Console())
    from runtime.rl.roles.launch_context import set_numeric_threads

    set_numeric_threads(options.threads)

    from runtime.jobs.classify.training import TrainingPlan, train

    plan = TrainingPlan(**{field.name: getattr(options, field.name) for field in fields(TrainingPlan)})
    return train(plan, data, folder, stop, Console())


def _data(option: str | None, folder: Path) -> Path | None:
    """Return the folder of the images, or None for the digits that this program contains."""
    if option == "digits" or (option is None and not (folder / "data").exists()):
        return None
    return Path(option) if option else folder / "data"
