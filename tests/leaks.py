"""What a test of the quick tier leaves open fails that test: threads, descriptors and child processes.

Without this a leak shows where the garbage collector happens to run: in another test, or in none. Collecting after
each test would cost more than many tests, so it is done only where descriptors have grown.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SOON_SECONDS = 0.5
GRACE_SECONDS = 2.0
"""Given to threads and processes that end at this moment."""
UNCOUNTED = ("/dev/", "anon_inode:", "/proc/", "/sys/", "/usr/", "/root/", "/home/")
"""Prefixes of what libraries open at their first use and keep."""
_FDS = Path("/proc/self/fd")


class Possessions:
    """What this process has open."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.children = _children()
        self.descriptors = _descriptors()

    def left(self, before: Possessions) -> list[str]:
        threads = [
            thread.name for thread in self.threads - before.threads if thread.is_alive() and not thread.daemon
        ]
        return [
            *(f"thread {name}" for name in threads),
            *(f"process {pid}" for pid in sorted(self.children - before.children)),
            *(f"descriptor of {name}" for name in (self.descriptors - before.descriptors).elements()),
        ]


def _children() -> set[int]:
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir() if _FDS.exists() else ():
        try:
            pids.update(map(int, (task / "children").read_text().split()))
        except OSError:
            continue
    return pids


def _descriptors() -> Counter[str]:
    """Count descriptors by what they lead to; sockets and pipes by their kind."""
    names: Counter[str] = Counter()
    for entry in os.listdir(_FDS) if _FDS.exists() else ():  # noqa: PTH208  (before each test: it is to be quick)
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
        except OSError:
            continue
        if not target.startswith(UNCOUNTED) and not target.endswith("/l2rtui.log"):  # open for a process's life
            names[target.split(":")[0]] += 1
    return names


class Leaks:
    """The check around each test."""

    def __init__(self) -> None:
        self.before = Possessions()
        self.has_shared_fixture = False


leaks = Leaks()


def _left_after(seconds: float) -> list[str]:
    """Return what is left after at most so long: threads of servers close their sockets a moment later."""
    deadline = time.monotonic() + seconds
    while (left := Possessions().left(leaks.before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    leaks.has_shared_fixture = False
    leaks.before = Possessions()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any) -> None:
    if fixturedef.scope != "function" and not fixturedef.argname.startswith("_"):
        leaks.has_shared_fixture = True  # what it opens outlives the test rightly


@pytest.hookimpl(trylast=True)  # behind the fixtures' own, before pytest looks for warnings of the collector
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # Descriptors of killed processes may close a while later; the fixture `no_leaks` watches where that matters.
    if leaks.has_shared_fixture or item.get_closest_marker("process"):
        return
    left = _left_after(SOON_SECONDS)
    if not left:
        return
    gc.collect()  # warnings of what is unclosed belong to this test
    if Possessions().left(leaks.before):
        left = _left_after(GRACE_SECONDS)
        if not left:
            return
    else:
        left = [f"{name}, until the garbage collector came" for name in left]
    if path := os.environ.get("L2R_LEAKS"):
        with Path(path).open("a") as file:
            file.write(f"{item.nodeid}\t{'; '.join(left)}\n")
    else:
        pytest.fail(f"{item.nodeid} left {'; '.join(left)}", pytrace=False)
