"""Parent of a learner with alerts: reports an end that the learner itself could not report.

SIGKILL, a crash in native code and the kernel's out-of-memory killer leave a process no time. The parent is the
same program before its large imports, so it is small, and the out-of-memory killer spares it. If the whole
container is killed, the next learner reports it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final

from runtime.base import contract
from runtime.base.errors import SetupError
from runtime.base.signals import Stop
from runtime.sim.launchers.shim import PR_SET_PDEATHSIG, prctl

PATIENCE_SECONDS: Final = 5.0
"""Longest wait for the delivery: it delays the learner's restart."""
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)
_QUIET: Final = (contract.EXIT_DONE, contract.EXIT_INTERRUPTED)


def end_of_child(environ: Mapping[str, str], stop: Stop) -> int | None:
    """Fork; return None in the child, which becomes the learner, and the child's exit code in the parent.

    Call only before the first thread starts: a fork does not copy other threads, and their locks stay locked.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(contract.EXIT_FAILED)
        return None

    def forward(number: int, _frame: FrameType | None) -> None:
        stop.reason = signal.Signals(number).name
        # The child is not reaped while this handler is installed, so its process id was not reused.
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    if stop.is_set():  # set before the handlers were installed, by a signal to this process only
        os.kill(child, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(_status_of(child))
    if code not in _QUIET and not (code < 0 and stop.is_set()):
        _report(environ, code)
    return 128 - code if code < 0 else code


def _status_of(child: int) -> int:
    """Wait for the child; return its wait status. As process 1 of a container it also reaps orphans."""
    while True:
        # WNOWAIT: until the handlers are removed the child stays a zombie, so its number is not reused.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == child:
            break
        if ended is not None:
            os.waitpid(ended.si_pid, 0)
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    return os.waitpid(child, 0)[1]


def _report(environ: Mapping[str, str], code: int) -> None:
    from runtime.rl.roles import alert

    reason = f"killed by {signal.Signals(-code).name} (exit {128 - code})" if code < 0 else f"exit {code}"
    try:
        alert.report_death(environ, reason, patience_seconds=PATIENCE_SECONDS)
    except (SetupError, OSError) as error:
        print(f"l2r-runtime: no alert of the learner's end: {error}", file=sys.stderr)
