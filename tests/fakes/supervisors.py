"""The end of a supervisor of a local run, together with the watcher that would start another one."""

from __future__ import annotations

import psutil

from l2rtui.backends.local.supervision.watcher import NAME


def kill_supervisor(supervisor: psutil.Process) -> None:
    """Kill a supervisor and its watcher, and wait until the supervisor has ended."""
    for child in supervisor.children():
        if NAME in child.cmdline():
            child.kill()
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=10)
