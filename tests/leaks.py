"""A test of the quick tier fails if it leaves threads, descriptors or child processes open.

Without this a leak would show where the garbage collector happens to run: in another test, or in none. Collecting
after each test would cost more than many tests, so it is done only if descriptors have grown.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable, gc_collect_iterations_key

SOON_SECONDS = 0.5
GRACE_SECONDS = 2.0
"""Time for threads and processes that are just ending."""
UNCOUNTED = ("/dev/", "anon_inode:", "/proc/", "/sys/", "/usr/", f"{Path.home()}/", "/home/")
"""Prefixes of resources that libraries open at their first use and keep."""
_FDS = Path("/proc/self/fd")


class Possessions:
    """Open threads, descriptors and child processes of this process."""

    def __init__(self) -> None:
        self.threads = set(threading.enumerate())
        self.children = _children()
        self.descriptors = _descriptors()

    def add(self, after: Possessions, before: Possessions) -> None:
        """Add the resources opened between two moments to these."""
        self.threads |= after.threads - before.threads
        self.children |= after.children - before.children
        self.descriptors += after.descriptors - before.descriptors

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
    """Count descriptors by their target; sockets and pipes by their kind."""
    names: Counter[str] = Counter()
    for entry in os.listdir(_FDS) if _FDS.exists() else ():  # noqa: PTH208  (before each test: it is to be quick)
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
        except OSError:
            continue
        if not target.startswith(UNCOUNTED) and not target.endswith("/l2rtui.log"):  # never closed
            names[target.split(":")[0]] += 1
    return names


def close_files_below(folder: Path) -> None:
    """Close the files that a supervisor keeps open for the life of its process: logs and the journal of events."""
    for entry in os.listdir(_FDS):  # noqa: PTH208
        with suppress(OSError):
            if os.readlink(_FDS / entry).startswith(f"{folder}/"):  # noqa: PTH115
                os.close(int(entry))


class Leaks:
    """The check around each test."""

    def __init__(self) -> None:
        self.before = Possessions()


leaks = Leaks()


def pytest_configure(config: pytest.Config) -> None:
    # At the end of a worker: the second for what the first has released. pytest's five take seconds.
    config.stash[gc_collect_iterations_key] = 2


def _left_after(seconds: float) -> list[str]:
    """Return the leaks after at most this long: threads of servers close their sockets a moment later."""
    deadline = time.monotonic() + seconds
    while (left := Possessions().left(leaks.before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    leaks.before = Possessions()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[object]:
    if fixturedef.scope == "function":
        return (yield)
    before = Possessions()
    try:
        return (yield)
    finally:
        leaks.before.add(Possessions(), before)  # its resources may outlive the test


@pytest.hookimpl(trylast=True)  # after the fixtures' own
def pytest_runtest_teardown(item: pytest.Item) -> None:
    # Descriptors of killed processes may close a while later; the fixture `no_leaks` checks them where that
    # matters. Trackers keep their threads and databases.
    if item.get_closest_marker("process") or item.get_closest_marker("packages"):
        return
    left = _left_after(SOON_SECONDS)
    if not left:
        return
    gc.collect()
    try:
        collect_unraisable(item.config)  # the collector's warnings belong to this test, not to the next
        is_warned = False
    except Exception:  # noqa: BLE001  (a warning as an error)
        is_warned = True
    if Possessions().left(leaks.before):
        left = _left_after(GRACE_SECONDS)
        if not left:
            return
    elif is_warned:
        left = [f"{name}, until the garbage collector came" for name in left]
    else:
        return  # a cycle that closes its resources, as a response of urllib3 does
    if path := os.environ.get("L2R_LEAKS"):
        with Path(path).open("a") as file:
            file.write(f"{item.nodeid}\t{'; '.join(left)}\n")
    else:
        pytest.fail(f"{item.nodeid} left {'; '.join(left)}", pytrace=False)
