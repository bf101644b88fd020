"""Tiers of the tests, limits of property tests, and signals as a foreground program has them.

Unmarked tests stay in their own process (fakes listen on the loopback). `process` starts others. `slow` computes
for more than 1.5 seconds or takes 25. `cluster` needs a Kubernetes (`smoke`: those of each change), `gpu` a card.
The Makefile has a target for each, and `tests.tiers` fails a test that does what its mark does not say.
"""

from __future__ import annotations

import os
import signal
import tempfile

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.leaks", "tests.tiers", "tests.distribution"]

# A busy machine is slow and not wrong: pytest's own timeout bounds a test. A change is judged by what it changed:
# the examples are the same each time: 25 for a developer, 100 in CI; `make nightly` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", _PATIENT, derandomize=True, max_examples=25)
settings.register_profile("ci", _PATIENT, derandomize=True, max_examples=100)
settings.register_profile("nightly", _PATIENT, max_examples=1000)
settings.load_profile("quick")

# Runs of tests stay out of the history of the person who runs them, whose settings stay out of the tests.
_home = tempfile.TemporaryDirectory(prefix="l2r-tests-")
for name in ("STATE", "CONFIG"):
    os.environ[f"XDG_{name}_HOME"] = f"{_home.name}/{name.lower()}"


def pytest_unconfigure() -> None:
    _home.cleanup()


# `launch --wait` looks for ten seconds whether pods stay ready; what it does then is tested where it is tested.
os.environ.setdefault("L2RTUI_READY_SECONDS", "0.5")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
