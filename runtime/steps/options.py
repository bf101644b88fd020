"""`l2r-runtime step`: its options, read without importing what they start."""

from __future__ import annotations

import argparse
from typing import Final

from runtime.stopping import Stop

EXAMPLES: Final = """\
examples:
  l2r-runtime step data -- l2r-runtime fetch digits
  l2r-runtime step train --after data -- python train.py --epochs 3
  l2r-runtime step shards --parts 4 --once -- python shard.py      four replicas, each with its L2R_INDEX

The marks are files in L2R_DIR/steps: NAME.done when the command ended with 0; a step that has one is skipped, so
a run that is launched again goes on with the step that failed. NAME.failed holds the launch that it failed in.
Exit codes: the command's; 1 when a step before it failed; 143 when it was stopped while it waited.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "step",
        help="run a command when the steps before it are done",
        description="Wait for other steps of the run, run a command, and leave a mark when it is done.",
        usage="l2r-runtime step NAME [--after A,B] [--parts N] [--once] -- COMMAND...",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="of the step: letters, digits, '.', '_' and '-'")
    parser.add_argument("--after", default="", metavar="A,B", help="steps that must be done before")
    parser.add_argument(
        "--parts", type=int, default=1, metavar="N", help="replicas that must all end with 0 (%(default)s)"
    )
    parser.add_argument(
        "--once", action="store_true", help="nobody starts this step again: if it fails, those behind it end"
    )
    parser.set_defaults(start=start)


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the step and return its exit code."""
    import os

    from runtime import peers
    from runtime.commands import run_folder, run_id
    from runtime.metrics import Console
    from runtime.process import UsageError
    from runtime.steps.marks import Marks, checked_name
    from runtime.steps.run import Step

    if not options.command:
        raise UsageError("a step needs a command: l2r-runtime step NAME -- COMMAND")
    if options.parts < 1:
        raise UsageError(f"--parts is {options.parts}; it must be at least 1")
    marks = Marks(run_folder(os.environ) / "steps", run_id(os.environ))
    step = Step(
        name=checked_name(options.name),
        after=tuple(checked_name(each.strip()) for each in options.after.split(",") if each.strip()),
        part=peers.index(os.environ) if options.parts > 1 else 0,
        parts=options.parts,
        is_once=options.once,
        command=tuple(options.command),
    )
    return step.run(marks, stop, Console())
