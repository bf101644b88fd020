"""Watchers of a supervisor: two shells that sleep until the supervisor is killed, and then start another one.

Without them the processes of the run would block once their unread output fills a pipe, and none would be restarted
before the owner's next command. They wait for the end of a pipe that only their supervisor holds: the kernel closes
it, whatever killed the supervisor. The second one waits longer: it has an effect only if the first was killed with
the supervisor. A supervisor replaces a killed watcher immediately. It ends both when it ends in order or by an
error of its own.
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
from l2rtui.backends.local.state_files import ProcessIdentity

NAME = "run-watcher"
"""Last word of their command, without the name of this program: a `pkill -f l2rtui` spares them."""
MODULE = "l2rtui.backends.local.supervision.supervisor"
_SHELL = "/bin/sh"
_PAUSES_SECONDS = (1, 4)
"""Pause of each before the start: a destroy that has killed the supervisor, or a reboot, ends them in this time."""
_COMMAND = "L2R_WATCHED"
"""Variables with the words of the supervisor's command: a `pkill -f` of supervisors must not match the watcher."""


def supervisor_command(folder: RunFolder) -> list[str]:
    """Return the command of a supervisor."""
    # -P and the root folder: nothing in the user's working folder may be imported instead of a module. -I too if
    # this interpreter runs with it: then it ignores the user's PYTHONPATH.
    isolation = "-I" if sys.flags.isolated else "-P"
    return [sys.executable, isolation, "-m", MODULE, str(folder.path)]


class Watchers:
    """The watchers of this process."""

    def __init__(self, folder: RunFolder, name: str, uid: str, environ: Mapping[str, str]) -> None:
        variables = {f"{_COMMAND}_{number}": word for number, word in enumerate(supervisor_command(folder))}
        words, names = " ".join(f'"${variable}"' for variable in variables), " ".join(variables)
        self._script = f'read -r _ || {{ sleep %d; set -- {words}; unset {names}; exec "$@"; }}'
        self._environ = run_environ(folder, name, uid, environ) | variables
        self._folder = folder
        self._reader = self._writer = -1
        self._pids: dict[int, int] = {}

    @property
    def pids(self) -> set[int]:
        """Their process ids."""
        return set(self._pids.values())

    def start(self) -> None:
        """Start them, and end those of an earlier supervisor, which have done their work."""
        earlier = _find(self._folder)
        self.ensure()
        for proc in earlier:
            process_scan.signal_process(proc, signal.SIGKILL)

    def ensure(self) -> None:
        """Start those that do not live; without room for another process, the next call tries again."""
        if self._reader < 0:
            with suppress(OSError):
                self._reader, self._writer = os.pipe()  # inherited by no other process
        for pause in _PAUSES_SECONDS if self._reader >= 0 else ():
            if pause in self._pids:
                with suppress(ChildProcessError):
                    if not os.waitpid(self._pids[pause], os.WNOHANG)[0]:
                        continue
                del self._pids[pause]
            with suppress(OSError):
                self._pids[pause] = os.posix_spawn(
                    _SHELL,
                    [_SHELL, "-c", self._script % pause, NAME],
                    self._environ,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, self._reader, 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    ],
                    setsid=True,
                    setsigmask=[],
                )

    def end(self) -> None:
        """End them, also where one is stopped by a signal."""
        for pid in self._pids.values():
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self._pids.clear()
        for descriptor in {self._reader, self._writer} - {-1}:
            os.close(descriptor)
        self._reader = self._writer = -1


def kill_with_watchers(supervisor: ProcessIdentity, folder: RunFolder) -> None:
    """Kill a supervisor and its watchers, which would start another one."""
    for proc in (*_find(folder), supervisor):
        process_scan.signal_process(proc, signal.SIGKILL)


def _find(folder: RunFolder) -> list[ProcessIdentity]:
    path = str(folder.path)
    tagged = process_scan.find_tagged(
        lambda process: process.folder == path and not process.pod_id and NAME in process.command.split()
    )
    return [process.proc for process in tagged]
