"""How long property tests may take, and which examples they see."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine is slow and not wrong: pytest's own timeout bounds a test. The same examples each time, so that a
# change is judged by what it changed; `pytest --hypothesis-profile=search` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT, max_examples=1000)
settings.load_profile("same")
