"""Parent of a process that may end without a word: names the end, and reports it for a learner with alerts.

SIGKILL, a crash in native code and `os._exit` leave a process no time, and code 0 would say that its work is done.
The parent is the same program before its large imports, so it is small, and the out-of-memory killer spares it. If
the whole container is killed, the next learner reports it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Final

from runtime.base import bounded_json, contract, environments
from runtime.base.errors import SetupError
from runtime.base.signals import Stop
from runtime.sim.launchers.shim import PR_SET_PDEATHSIG, prctl

PATIENCE_SECONDS: Final = 5.0
"""Longest wait for the delivery: it delays the learner's restart."""
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT)
_QUIET: Final = (contract.EXIT_DONE, contract.EXIT_INTERRUPTED)
_DONE: Final = 217
"""Exit code by which the child says that its work is done: foreign code can end it with 0."""
_STOPPED: Final = 218
"""The same for a child that got SIGTERM or SIGINT."""


def is_needed(environ: Mapping[str, str], role: str) -> bool:
    """Return True for a learner with alerts, and where the environment's code is not of this project."""
    name, options = _environment(environ)
    is_ours = name in environments.BUILT_IN or (name in environments.CLASSIC and not options)
    return not is_ours or _has_alerts(environ, role)


def end_of_child(environ: Mapping[str, str], role: str, stop: Stop) -> int | None:
    """Fork; return None in the child, which takes the role, and the process's exit code in the parent.

    The child ends with `signed` codes. Call only before the first thread starts: a fork does not copy other
    threads, and their locks stay locked.
    """
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(contract.EXIT_FAILED)
        faulthandler.enable(all_threads=False)
        return None

    def forward(number: int, _frame: FrameType | None) -> None:
        stop.reason = signal.Signals(number).name
        # The child is not reaped while this handler is installed, so its process id was not reused.
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    if stop.is_set():  # set before the handlers were installed, by a signal to this process only
        os.kill(child, signal.SIGTERM)
    ended = os.waitstatus_to_exitcode(_status_of(child))
    code, sentence = _meaning(ended, f"this {role}, which steps {_environment(environ)[0]},", stop)
    if sentence:
        os.write(2, f"l2r-runtime: {sentence}\n".encode())
    if code not in _QUIET and not (ended < 0 and stop.is_set()) and _has_alerts(environ, role):
        _report(environ, ended, code)
    return code


def signed(code: int, stop: Stop) -> int:
    """Return the exit code by which a child says that its work is done; other codes stay."""
    if code != contract.EXIT_DONE:
        return code
    return _STOPPED if stop.is_set() else _DONE


def _meaning(ended: int, subject: str, stop: Stop) -> tuple[int, str]:
    """Return the exit code of this process, and a sentence about an end that the child could not explain itself.

    Args:
        ended: Exit code of the child; negative for a signal.
    """
    if ended == _DONE or (stop.is_set() and ended in (_STOPPED, contract.EXIT_DONE)):
        return contract.EXIT_DONE, ""
    if ended == _STOPPED:
        sentence = "was asked to end by a signal that its launcher has not sent; its environment's code may send it"
        return contract.EXIT_FAILED, f"{subject} {sentence}"
    if ended == contract.EXIT_DONE:
        sentence = (
            "ended with exit code 0 within its work, as by os._exit(0) in the environment's code; an environment "
            "ends an episode by terminated or truncated, and fails by an exception"
        )
        return contract.EXIT_ENVIRONMENT, f"{subject} {sentence}"
    if ended > 0 or stop.is_set():
        return (128 - ended if ended < 0 else ended), ""
    cause = "out of memory" if ended == -signal.SIGKILL else "a crash of native code"
    return 128 - ended, f"{subject} was ended by {signal.Signals(-ended).name}: {cause}, or its environment's code"


def _environment(environ: Mapping[str, str]) -> tuple[str, object]:
    """Return name and options of the environment; settings that cannot be read are reported by the child."""
    try:
        settings = bounded_json.loads(environ.get(contract.ENV_CONFIG) or "{}")
        return str(settings.get("environment", environments.DEFAULT)), settings.get("environment_options")
    except (ValueError, AttributeError):
        return environments.DEFAULT, None


def _has_alerts(environ: Mapping[str, str], role: str) -> bool:
    return role == "learner" and bool(environ.get(contract.ENV_ALERTS))


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


def _report(environ: Mapping[str, str], ended: int, code: int) -> None:
    from runtime.rl.roles import alert

    reason = f"killed by {signal.Signals(-ended).name} (exit {code})" if ended < 0 else f"exit {code}"
    try:
        alert.report_death(environ, reason, patience_seconds=PATIENCE_SECONDS)
    except (SetupError, OSError) as error:
        print(f"l2r-runtime: no alert of the learner's end: {error}", file=sys.stderr)
