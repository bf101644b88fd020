"""Processes of a run that have no tags: they have cleared their environment, as `sudo`, `env -i` and daemons do.

The supervisor is their subreaper (prctl(2), PR_SET_CHILD_SUBREAPER): the kernel makes it the parent of each
descendant whose parent has ended, whatever its session, group and environment. Descendants of an earlier supervisor
are found in the run's control group, where one may be created. Children of a daemon are not descendants and are not
seen: a container, a job of `at` or systemd, a login by ssh.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.paths import RunFolder
from l2rtui.backends.local.state_files import AdoptedProcess


class AdoptedProcesses:
    """Children of a supervisor that it has not started.

    Args:
        earlier: Adopted processes of an earlier supervisor. They belong to the run, but are not children of this
            one.
    """

    def __init__(self, folder: RunFolder, earlier: Iterable[AdoptedProcess]) -> None:
        self._folder = folder
        self._known = {process.proc: process for process in earlier}

    @property
    def living(self) -> list[AdoptedProcess]:
        """Living adopted processes, as of the latest `look`."""
        return list(self._known.values())

    def look(self, own: Collection[int], members: Collection[int] = ()) -> bool:
        """Reap ended children and record new ones; return whether anything changed.

        Args:
            own: Pids of the processes that the supervisor has started, which it reaps itself.
            members: Pids of the processes in the run's control group.
        """
        before = set(self._known)
        for pid in process_scan.own_children():
            if pid in own:
                continue
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue
            self._note(pid)
        for pid in set(members).difference(own):
            self._note(pid, is_child=False)
        self._known = {proc: process for proc, process in self._known.items() if process_scan.is_alive(proc)}
        return set(self._known) != before

    def kill(self, is_over: Callable[[str], bool]) -> set[str]:
        """Send SIGKILL to the processes of pods that are over; return the pods of the signalled processes."""
        selected = [process for process in self._known.values() if is_over(process.pod_uid)]
        return {
            process.pod_uid for process in selected if process_scan.signal_process(process.proc, signal.SIGKILL)
        }

    def _note(self, pid: int, *, is_child: bool = True) -> None:
        process = process_scan.tags_of(pid)
        if process is None or process.proc in self._known:
            return
        if process.folder and not is_child:  # found by its tags at any time
            return
        # With tags but no pod: the supervisor of another run that a command of this one has launched, and that ends
        # with its own run; or a delivery of alerts, which is not awaited.
        if process.folder and (process.folder != str(self._folder.path) or not process.pod_id):
            return
        self._known[process.proc] = AdoptedProcess(process.proc, process.pod_id or self._pod_by_output(pid))

    def _pod_by_output(self, pid: int) -> str:
        """Return the pod whose pipe a process has open, as its output or otherwise."""
        pipes = f"{self._folder.pipes}/"
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115
                    if target.startswith(pipes):
                        return target.removeprefix(pipes).partition(".")[0]
        return ""
