"""Supervisor of the workers in one pod: equal processes that share the GPU allocated by the device plugin.

Here are the options of `l2r-runtime supervise`; the command's code is imported when it starts.
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from runtime.base.cli_options import Commands, add_command
from runtime.base.errors import SetupError
from runtime.base.signals import Stop

_TEXT: Final = """\
run several workers in one pod, and restart those that end
Run equal processes of one command in this pod, and start each again that ends.

examples:
  l2r-runtime supervise --workers 4 -- l2r-runtime worker
  l2r-runtime supervise --kill 2 --grace 5            in the same pod: stop worker 2, which is started again

Launchers start it where `workers_per_pod` is set. Worker N is named L2R_POD.N; with L2R_INDEX set its index is
L2R_INDEX times the number of workers, plus N. Each line of its output begins with `[N] `.
Exit codes: 0 when all workers have ended with 0 and are not started again, else that of the first one that failed.
"""


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    usage = "l2r-runtime supervise --workers K [--restart POLICY] [--grace S] -- COMMAND..."
    add = add_command(commands, "supervise", _TEXT, start, usage).add_argument
    add("--workers", type=int, default=1, metavar="K", help="number of workers (%(default)s)")
    add("--restart", choices=("Always", "OnFailure", "Never"), default="Always", help="(%(default)s)")
    add("--grace", type=float, default=10.0, metavar="S", help="seconds from SIGTERM to SIGKILL (%(default)g)")
    add("--kill", metavar="N,M", help="tell the supervisor of this pod to stop these workers")


def start(options: argparse.Namespace, stop: Stop) -> int:
    """Run the workers, or stop some of the running ones."""
    from runtime.jobs.supervise.supervisor import PodSupervisor, ask_to_kill

    if options.kill is not None:
        try:
            numbers = [int(text) for text in options.kill.split(",")]
        except ValueError:
            raise SetupError(f"--kill {options.kill!r}: write the numbers of workers, such as 0,2") from None
        ask_to_kill(os.environ, numbers, options.grace)
        return 0
    if not options.command:
        raise SetupError("supervise needs a command: l2r-runtime supervise --workers 4 -- COMMAND")
    if options.workers < 1:
        raise SetupError(f"--workers is {options.workers}; it must be at least 1")
    supervisor = PodSupervisor(options.command, options.workers, os.environ, options.restart, options.grace)
    return supervisor.run(stop)
