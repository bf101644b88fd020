"""How long property tests may take, which examples they see, and that what they start may be interrupted."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A busy machine is slow and not wrong: pytest's own timeout bounds a test. The same examples each time, so that a
# change is judged by what it changed; `pytest --hypothesis-profile=search` looks for new ones.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True)
settings.register_profile("search", _PATIENT, max_examples=1000)
settings.load_profile("same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background; children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
