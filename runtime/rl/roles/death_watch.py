"""Parent of a learner that has alerts: reports an end of which the learner itself could say nothing.

SIGKILL, a fault in native code and the kernel's out-of-memory killer leave a process no time. The parent is the
same program before its large imports, so it is small, and that killer spares it. Where the whole container is
killed, the next learner reports it.
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
"""Longest wait for the delivery: it delays the next start of the learner."""
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)
_QUIET: Final = (contract.EXIT_DONE, contract.EXIT_INTERRUPTED)


def end_of_child(environ: Mapping[str, str], stop: Stop) -> int | None:
    """Fork; return None in the child, which is to be the learner, and in the parent the child's exit code.

    Only before the first thread: a fork copies no other, and the locks that they hold stay locked.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(contract.EXIT_FAILED)
        return None

    def forward(number: int, _frame: FrameType | None) -> None:
        stop.reason = signal.Signals(number).name
        # The child cannot have been reaped: then this process waits no more, and its number may not be reused.
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    if stop.is_set():  # before the handlers stood, when it reached this process alone
        os.kill(child, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(_status_of(child))
    if code not in _QUIET and not (code < 0 and stop.is_set()):
        _report(environ, code)
    return 128 - code if code < 0 else code


def _status_of(child: int) -> int:
    """Wait for the child; return its wait status. As process 1 of a container it reaps orphans meanwhile."""
    while True:
        # WNOWAIT: until the handlers are off, the child stays a zombie whose number nobody else gets.
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
