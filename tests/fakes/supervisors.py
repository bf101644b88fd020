"""The end of a supervisor of a local run, together with the watchers that would start another one."""

from __future__ import annotations

import psutil

from l2rtui.backends.local.supervision.watcher import NAME


def kill_supervisor(supervisor: psutil.Process) -> None:
    """Kill a supervisor and its watchers, and wait until the supervisor has ended."""
    children = supervisor.children()
    supervisor.suspend()  # it would replace them
    for child in children:
        if NAME in child.cmdline():
            child.kill()
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=60)
