"""Tiers by the behaviour of a test: a quick one fails if it starts a process, leaves the loopback or computes for
long.

An audit hook sees the processes that Python starts and its connections. A fixture that starts processes is
decorated with `starts_processes`; each test that uses it belongs to the process tier, so the mark cannot be
forgotten.
"""

from __future__ import annotations

import gc
import hashlib
import ipaddress
import json
import multiprocessing.process
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

CPU_SECONDS = 8.0
"""CPU limit of a test of the quick and the process tier in this process, without its fixtures.

Five times the 1.5 seconds that it should take: CI draws four times the examples, and tiers slow each other.
"""
STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.system"})
OTHER_MACHINES = {"cluster", "browser"}
SHARES = 5
LONGEST_NAME = 80
"""Characters of a parameter in the name of its test, which goes to each worker and each child's environment."""
GARBAGE_THRESHOLDS = (50_000, 20, 100)
"""Allocations until a collection. With Python's own 700 a fifth of the time of the UI tests is spent on them."""
_OF_ALL_TESTS = re.compile(r"^pytestmark = (?:\[.*?\]$|(?!\[).*?$)", re.DOTALL | re.MULTILINE)
BEGAN = time.monotonic()
REPORT = "L2R_TIER_REPORT"
"""Variable with a file to which a JSON line is written for each test: what it did, and what that took.

``cpu``: CPU seconds of its process; ``children``: those of its children that have ended; ``seconds``: its duration.
"""

Function = TypeVar("Function", bound=Callable[..., Any])


def starts_processes(fixture: Function) -> Function:
    """Mark a fixture's function; placed below `pytest.fixture`."""
    fixture.starts_processes = True  # type: ignore[attr-defined]
    return fixture


class Deeds:
    """Actions of the running test."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.connected: list[str] = []
        self.cpu_seconds = 0.0
        self.began = (0.0, 0.0)

    def clear(self) -> None:
        self.started, self.connected, self.cpu_seconds = [], [], 0.0
        self.began = (time.monotonic(), _children_seconds())


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


deeds = Deeds()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        deeds.started.append(f"{event} {str(arguments[:2])[:120]}")
    elif event == "socket.connect" and (place := _outside(arguments[1])):
        deeds.connected.append(place)


def _outside(address: object) -> str:
    """Return the address if it is on the network and not on the loopback."""
    if not isinstance(address, tuple) or not isinstance(address[0], str):
        return ""  # a Unix socket
    try:
        is_local = ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        is_local = address[0] in {"", "localhost"}
    return "" if is_local else f"{address[0]}:{address[1]}"


def _noted_start(self: multiprocessing.process.BaseProcess) -> None:
    deeds.started.append(f"multiprocessing {self.name}")  # its spawn raises no audit event
    _start(self)


_start = multiprocessing.process.BaseProcess.start


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--most-seconds", type=float, help="begin no test after so many seconds; the rest are skipped")
    group.addoption("--share", metavar="COMMIT", help="run the fifth of the tests that a commit chooses")


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(_audit)
    multiprocessing.process.BaseProcess.start = _noted_start  # type: ignore[method-assign]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the name of a long text, which would otherwise be the whole text."""
    if not isinstance(val, str | bytes) or len(val) <= LONGEST_NAME:
        return None
    text = val if isinstance(val, str) else val.decode("latin-1")
    return f"{text[:LONGEST_NAME].encode('unicode_escape').decode('ascii')}~{len(val)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Look for no garbage among what is imported, neither now (a tenth of the time) nor at each full collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a file whose every test has a mark that ``-m`` excludes: a worker would import it for nothing."""
    expression = config.option.markexpr
    is_file = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not is_file or "not " not in expression or " or " in expression:
        return None
    of_all = _OF_ALL_TESTS.search(collection_path.read_text("utf-8"))
    marks = re.findall(r"pytest\.mark\.(\w+)", of_all.group()) if of_all else []
    return True if any(re.search(rf"\bnot {mark}\b", expression) for mark in marks) else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they use, and select the requested share."""
    for item in items:
        if any(_starts(definitions[-1].func) for definitions in _fixtures(item).values()):
            item.add_marker(pytest.mark.process)
    if commit := config.option.share:
        left_out = [item for item in items if share_of(item.nodeid) != int(commit, 16) % SHARES]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if share_of(item.nodeid) == int(commit, 16) % SHARES]


def share_of(name: str) -> int:
    """Return the share of a test: the same on each machine, and even."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % SHARES


def pytest_report_header(config: pytest.Config) -> str | None:
    commit = config.option.share
    return f"share {int(commit, 16) % SHARES + 1} of {SHARES}, chosen by {commit}" if commit else None


def _fixtures(item: pytest.Item) -> dict[str, Any]:
    info = getattr(item, "_fixtureinfo", None)
    return info.name2fixturedefs if info else {}


def _starts(function: Callable[..., Any]) -> bool:
    return bool(getattr(function, "starts_processes", False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    deeds.clear()
    most = item.config.option.most_seconds
    if most is not None and time.monotonic() - BEGAN > most:
        pytest.skip(f"not reached in {most:g} s")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    began = time.process_time()
    try:
        return (yield)
    finally:
        deeds.cpu_seconds = time.process_time() - began


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    result = yield
    marks = {mark.name for mark in item.iter_markers()}
    if path := os.environ.get(REPORT):
        line = {
            "test": item.nodeid,
            "marks": sorted(marks),
            "started": deeds.started[:3],
            "connected": deeds.connected[:3],
            "cpu": round(deeds.cpu_seconds, 2),
            "children": round(_children_seconds() - deeds.began[1], 2),
            "seconds": round(time.monotonic() - deeds.began[0], 2),
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
    if problem := misplaced(marks):
        pytest.fail(problem, pytrace=False)
    return result


def misplaced(marks: set[str]) -> str:
    """Return the action of the test that its tier does not allow, or an empty text."""
    if marks & OTHER_MACHINES:
        return ""
    if deeds.started and not marks & {"process", "slow", "packages"}:
        return f"an unmarked test started a process; mark it `process` or decorate its fixture: {deeds.started[0]}"
    if deeds.connected:
        return f"a test connected to another machine: {deeds.connected[0]}"
    if deeds.cpu_seconds > CPU_SECONDS and not marks & {"slow", "gpu", "packages"}:
        return f"a test computed for {deeds.cpu_seconds:.1f} s; above {CPU_SECONDS:g} s it is to be marked `slow`"
    return ""
