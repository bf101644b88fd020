"""Tiers of the tests, limits of property tests, and signals as a foreground program has them.

Unmarked tests stay in their own process (fakes listen on the loopback). `process` starts others, `slow` takes
longer than about eight seconds, `cluster` needs a Kubernetes, `gpu` a graphics card; the Makefile has a target for
each.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROCESS_FIXTURES = frozenset(
    {"lab", "local", "programs", "run", "siege", "simulators", "simulator", "terminal", "training"}
)
"""Fixtures that start processes: a test that asks for one is marked by that alone, so that none is forgotten."""

# A busy machine is slow and not wrong: pytest's own timeout bounds a test. The same examples each time, so that a
# change is judged by what it changed; `pytest --hypothesis-profile=search` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT, max_examples=1000)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they use."""
    for item in items:
        if PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what failed at first and passed when it was run again: a race to be mended, not a success."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
