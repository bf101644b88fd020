"""Hypothesis for a shared machine: no time limit for one example, and the same examples every time."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "domain",
    deadline=None,  # a busy machine is no defect
    derandomize=True,  # a change fails for what it changed, not for the day it is tested on
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("domain")
