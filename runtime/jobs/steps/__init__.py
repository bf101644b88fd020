"""Steps of a run (`data → train → evaluate`): each waits for the steps before it, and writes a marker when done.

Here are the options of `l2r-runtime step`; the command's code is imported when it starts.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from runtime.base import addresses
from runtime.base.cli_options import Commands, add_command, run_folder, run_id
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_TEXT: Final = """\
run a command when the steps before it are done
Wait for other steps of the run, run a command, and leave a mark when it is done.

examples:
  l2r-runtime step data -- l2r-runtime fetch digits
  l2r-runtime step train --after data -- python train.py --epochs 3
  l2r-runtime step shards --parts 4 --once -- python shard.py      four replicas, each with its L2R_INDEX

The marks are files in L2R_DIR/steps: NAME.done when the command ended with 0; a step that has one is skipped, so
a run that is launched again continues with the step that failed. NAME.failed holds the launch that it failed in.
Exit codes: the command's; 1 when a step before it failed; 143 when it was stopped while it waited.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime step NAME [--after A,B] [--parts N] [--once] -- COMMAND..."
    add = add_command(commands, "step", _TEXT, start, usage).add_argument
    add("name", metavar="NAME", help="of the step: letters, digits, '.', '_' and '-'")
    add("--after", default="", metavar="A,B", help="steps that must be done before")
    add("--parts", type=int, default=1, metavar="N", help="replicas that must all end with 0 (%(default)s)")
    add("--once", action="store_true", help="this step is not retried: if it fails, the steps after it end")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the step and return its exit code."""
    from runtime.base.metrics import Console
    from runtime.jobs.steps.run import StepMarkers, StepProgram, checked_name

    if not options.command:
        raise SetupError("a step needs a command: l2r-runtime step NAME -- COMMAND")
    if options.parts < 1:
        raise SetupError(f"--parts is {options.parts}; it must be at least 1")
    marks = StepMarkers(run_folder(os.environ) / "steps", run_id(os.environ))
    step = StepProgram(
        name=checked_name(options.name),
        after=tuple(checked_name(name.strip()) for name in options.after.split(",") if name.strip()),
        part=addresses.index(os.environ) if options.parts > 1 else 0,
        parts=options.parts,
        is_once=options.once,
        command=tuple(options.command),
    )
    return step.run(marks, stop, Console())
