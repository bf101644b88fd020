"""Cause of a process's end that its exit code does not say: the machine's memory, or a limit of the user.

The kernel counts the processes that it killed because memory ran out, on the machine and in all control groups. A
process that dies of SIGKILL within a few seconds of a rise is taken as one of them. Other causes are found in the
last lines of the process.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from runtime.base.cgroups import number_of

_COUNTS = Path("/proc/vmstat")
_SIGKILL: Final = 128 + signal.SIGKILL
_LINES: Final = 5
"""Number of last lines that are searched: libraries of threads print some after their error."""


class DeathCause(NamedTuple):
    """Reason of a pod in one word, and a sentence without its subject."""

    reason: str
    sentence: str


OOM_KILLED = DeathCause("OOMKilled", "the kernel killed it, as memory ran out")
_IN_WORDS: Final = (
    (
        re.compile(r"(CUDA|HIP|cuda\w*|NCCL|GPU).{0,40}out of memory"),
        DeathCause("OutOfGpuMemory", "the memory of its GPU is full"),
    ),
    (
        re.compile(
            r"\b\w*MemoryError\b|std::bad_alloc|[Cc]annot allocate memory|can't allocate memory|[Oo]ut of memory"
            r"|memory allocation of \d+ bytes failed|failed to map segment from shared object"
        ),
        DeathCause("OutOfMemory", "memory ran out, or its limit (`ulimit -v`)"),
    ),
    (
        re.compile(
            r"can't start new thread|[Tt]hread creation failed|pthread_create failed|unable to create .{0,20}thread"
            r"|(fork|thread|cannot be started|clone).{0,80}Resource temporarily unavailable"
        ),
        DeathCause("ThreadLimit", "the limit of processes and threads is reached (`ulimit -u`)"),
    ),
    (
        re.compile(r"Too many open files"),
        DeathCause("FileLimit", "the limit of open files is reached (`ulimit -n`)"),
    ),
    (re.compile(r"No space left on device|Disk quota exceeded"), DeathCause("NoSpace", "its disk is full")),
)


class OomKills:
    """Count of processes that the kernel has killed as memory ran out; 0 where it does not count them."""

    def __init__(self) -> None:
        # Two: a look may fall between a kill and the moment in which its end is noticed.
        self._looks = (_count(), _count())

    def look(self) -> None:
        """Read the count; to be called every few seconds."""
        self._looks = (self._looks[1], _count())

    def has_risen(self) -> bool:
        """Return True if the count has risen since the look before the last."""
        return _count() > self._looks[0]


def cause_of(exit_code: int | None, lines: Sequence[str], *, has_oom_kill: bool) -> DeathCause | None:
    """Return the cause of a failure; None if nothing beyond the exit code is known.

    Args:
        exit_code: None if it is unknown. lines: Last lines of the process.
        has_oom_kill: The kernel has killed some process of the machine at that time.
    """
    if has_oom_kill and exit_code in (None, _SIGKILL):
        return OOM_KILLED
    if exit_code == _SIGKILL:  # somebody killed it, whatever it had said before
        return None
    # The last error is the one that ended it: an earlier one may have been handled.
    for line in reversed(lines[-_LINES:]):
        for pattern, cause in _IN_WORDS:
            if pattern.search(line):
                return cause
    return None


def _count() -> int:
    return number_of(_COUNTS, "oom_kill") or 0
