"""SIGTERM and SIGKILL escalation on this machine: how the processes of a local run are stopped.

A process group gets SIGTERM first and SIGKILL after its grace period, as kubelet does with
``terminationGracePeriodSeconds``. The supervisor stops pods with ``request_stop``, ``hurry_stop`` and
``kill_if_due``. The deadline is in the pod's record, so it survives the supervisor. A destroy that cannot rely on a
supervisor uses ``terminate_all`` and ``kill_remaining``.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence

from l2rtui.backends.local import process_scan
from l2rtui.backends.local.process_scan import TaggedProcess
from l2rtui.backends.local.state_files import PodRecord, ProcessIdentity
from l2rtui.backends.local.supervision.supervised_process import SupervisedProcess
from runtime.base.cgroups import RunGroup

_POLL_SECONDS = 0.02
_KILL_SECONDS = 5.0
"""Longest wait for the end of a process after SIGKILL; a process that sleeps in the kernel (state D) ignores it."""


# --- in the supervisor: deadlines, never waits -----------------------------------------------------------------
def request_stop(record: PodRecord, process: SupervisedProcess | None, grace_seconds: float, now: float) -> None:
    """Send SIGTERM to the process group of a pod and set the deadline of SIGKILL.

    Args:
        now: ``time.monotonic()``, as the deadline must not move when the date is set.
    """
    record.kill_at = now + grace_seconds
    if process is not None:
        process.signal_group(signal.SIGTERM)


def hurry_stop(record: PodRecord, grace_seconds: float, now: float) -> None:
    """Bring the deadline of SIGKILL forward; a longer grace than the first one never postpones it."""
    if record.kill_at is not None:
        record.kill_at = min(record.kill_at, now + grace_seconds)


def kill_if_due(record: PodRecord, process: SupervisedProcess | None, now: float) -> bool:
    """Send SIGKILL once to the process group of a pod whose deadline has passed; return whether it was sent."""
    if record.kill_at is None or now < record.kill_at:
        return False
    record.kill_at = None
    if process is not None:
        process.signal_group(signal.SIGKILL)
    return process is not None


# --- in a destroy: these block, and belong in a thread ---------------------------------------------------------
def terminate_all(processes: Sequence[TaggedProcess], grace_seconds: float) -> None:
    """Send SIGTERM to every process, and wait until all have ended or the grace period has passed."""
    for process in processes:
        process_scan.signal_process(process.proc, signal.SIGTERM)
    until = time.monotonic() + grace_seconds
    while time.monotonic() < until and any(process_scan.is_alive(process.proc) for process in processes):
        time.sleep(_POLL_SECONDS)


def kill_remaining(
    is_of_run: Callable[[TaggedProcess], bool], recorded: Iterable[ProcessIdentity], group: RunGroup | None = None
) -> dict[ProcessIdentity, str]:
    """Send SIGKILL to every tagged or recorded process, and to the run's control group, until none is left.

    Returns:
        Processes that survive SIGKILL, with their commands; empty proves that the run has ended.
    """
    recorded = tuple(recorded)
    until = time.monotonic() + _KILL_SECONDS
    while True:
        survivors = {
            process.proc: process.command or process.pod or "process" for process in kill_tagged(is_of_run)
        }
        # A recorded process may have cleared its environment; then no scan finds it by its tag. Another user's
        # process cannot be killed, and is skipped.
        for proc in recorded:
            if kill(proc) or process_scan.is_alive(proc):
                survivors.setdefault(proc, process_scan.command_of(proc.pid) or "process")
        if group is not None:
            for pid in group.members():
                if process_scan.is_alive(proc := process_scan.identify(pid)):
                    survivors.setdefault(proc, process_scan.command_of(pid) or "process")
            group.kill()
        # Repeated even after a success: a process may have forked between the scan and its SIGKILL.
        if not survivors or time.monotonic() > until:
            return survivors
        time.sleep(_POLL_SECONDS)


def kill_tagged(is_selected: Callable[[TaggedProcess], bool]) -> list[TaggedProcess]:
    """Send SIGKILL to every selected process and return them. Repeat until the result is empty, as a process may
    fork.
    """
    processes = process_scan.find_tagged(is_selected)
    for process in processes:
        kill(process.proc)
    return processes


def kill(proc: ProcessIdentity) -> bool:
    """Send SIGKILL to one process; return False if it has ended."""
    return process_scan.signal_process(proc, signal.SIGKILL)
