"""`l2r-runtime classify`: its options, read without importing what they start."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from runtime.stopping import Stop

EXAMPLES: Final = """\
examples:
  export L2R_DIR=/l2r
  l2r-runtime fetch digits
  l2r-runtime classify train --epochs 3
  l2r-runtime elastic --nodes 1:4 -- l2r-runtime classify train --epochs 3
  l2r-runtime classify evaluate

Data is CIFAR-10's binary format: data_batch_N.bin, test_batch.bin, batches.meta.txt. Without --data, and where
there is no $L2R_DIR/data, it is scikit-learn's digits. Snapshots (model, optimiser, epoch, step) go to
L2R_DIR/checkpoints; training goes on from the newest whole one, with any number of processes: the mean gradient of
a step is over --batch pictures however many share them.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "classify",
        help="train an image classifier, or evaluate it",
        description="Train a small convolutional network on images, alone or as processes of an elastic job.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="train|evaluate")
    train = what.add_parser("train", help="train, going on from the newest snapshot")
    evaluate = what.add_parser("evaluate", help="print the accuracy of the newest snapshot, in all and per class")
    for each in (train, evaluate):
        each.add_argument("--data", metavar="DIR", help="folder of the images, or digits ($L2R_DIR/data)")
        each.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add = train.add_argument
    add("--epochs", type=int, default=5, help="how often each picture is seen (%(default)s)")
    add("--batch", type=int, default=64, help="pictures to a step, over all processes (%(default)s)")
    add("--lr", type=float, default=0.02, help="step size at the start; it falls to 0 along a cosine (%(default)s)")
    add("--augment", choices=("none", "shift", "flip"), default="shift", help="flip shifts too (%(default)s)")
    add("--snapshot-steps", type=int, default=20, help="steps between two snapshots (%(default)s)")
    add("--step-seconds", type=float, default=0.0, help="least time for a step: slows small data down (0)")
    add("--timeout-seconds", type=float, default=30.0, help="a process that is silent for so long is gone (30)")
    add("--threads", type=int, default=1, help="threads of each process on a CPU (%(default)s)")
    parser.set_defaults(start=start)


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Train or evaluate."""
    import os

    from runtime.commands import run_folder
    from runtime.metrics import Console
    from runtime.process import UsageError

    for name in ("epochs", "batch", "lr", "snapshot_steps", "timeout_seconds", "threads"):
        if getattr(options, name, 1) <= 0:
            raise UsageError(f"--{name.replace('_', '-')} must be above 0")
    folder = run_folder(os.environ)
    data = _data(options.data, folder)
    if options.what == "evaluate":
        from runtime.classify.evaluation import evaluate

        return evaluate(data, folder, options.device, Console())
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))

    from runtime.classify.training import Plan, train

    plan = Plan(
        epochs=options.epochs,
        batch=options.batch,
        lr=options.lr,
        augment=options.augment,
        snapshot_steps=options.snapshot_steps,
        step_seconds=options.step_seconds,
        timeout_seconds=options.timeout_seconds,
        threads=options.threads,
        device=options.device,
    )
    return train(plan, data, folder, stop, Console())


def _data(given: str | None, folder: Path) -> Path | None:
    """Return the folder of the images, or None for the digits that come with this program."""
    if given == "digits" or (given is None and not (folder / "data").exists()):
        return None
    return Path(given) if given else folder / "data"
