"""Watcher of a supervisor: a shell that sleeps until the supervisor is killed, and then starts another one.

Without it the processes of the run would block once their unread output fills a pipe, and none would be restarted
before the owner's next command. It waits for the end of a pipe that only its supervisor holds: the kernel closes
it, whatever killed the supervisor. A supervisor that ends in order, or by an error of its own, ends its watcher
first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.environment import run_environ
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.records import ProcessIdentity

NAME = "l2rtui-watcher"
MODULE = "l2rtui.backends.local.supervision.supervisor"
_SHELL = "/bin/sh"
_PAUSE_SECONDS = 1
"""Pause before the start: a destroy that has killed the supervisor, or a reboot, ends the watcher in this time."""
_COMMAND = "L2R_WATCHED"
"""Variables with the words of the supervisor's command: a `pkill -f` of supervisors must not match the watcher."""


def supervisor_command(folder: RunFolder) -> list[str]:
    """Return the command of a supervisor."""
    # -P and the root folder: nothing in the user's working folder may be imported instead of a module. -I too if
    # this interpreter runs with it: then it ignores the user's PYTHONPATH.
    isolation = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolation, "-m", MODULE, str(folder.path)]


class Watcher:
    """The watcher of this process; started again if it is killed."""

    def __init__(self, folder: RunFolder, name: str, uid: str, environ: Mapping[str, str]) -> None:
        variables = {f"{_COMMAND}_{number}": word for number, word in enumerate(supervisor_command(folder))}
        words, names = " ".join(f'"${variable}"' for variable in variables), " ".join(variables)
        script = f'read -r _ || {{ sleep {_PAUSE_SECONDS}; set -- {words}; unset {names}; exec "$@"; }}'
        self._argv = [_SHELL, "-c", script, NAME]
        self._environ = run_environ(folder, name, uid, environ) | variables
        self._pipe: int | None = None
        self.pid: int | None = None

    def ensure(self) -> None:
        """Start it unless it lives; without room for another process, the next call tries again."""
        if self.pid is not None:
            with suppress(ChildProcessError):
                if not os.waitpid(self.pid, os.WNOHANG)[0]:
                    return
            self._close()
        try:
            reader, self._pipe = os.pipe()  # inherited by no other process
        except OSError:
            return
        try:
            self.pid = os.posix_spawn(
                _SHELL,
                self._argv,
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, reader, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigmask=[],
            )
        except OSError:
            self._close()
        finally:
            os.close(reader)

    def end(self) -> None:
        """End it, also where it is stopped by a signal."""
        if self.pid is not None:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
            self._close()

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = self.pid = None


def kill_with_watcher(supervisor: ProcessIdentity, folder: RunFolder) -> None:
    """Kill a supervisor and its watcher, which would start another one."""
    path = str(folder.path)
    watchers = process_scan.find_tagged(
        lambda process: process.folder == path and not process.pod_id and NAME in process.command.split()
    )
    for proc in (*(process.proc for process in watchers), supervisor):
        process_scan.signal_process(proc, signal.SIGKILL)
