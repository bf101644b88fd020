"""Common refresh clock: widgets that redraw at the same moment cost one paint.

A screen over SSH is repainted as rarely as users do not notice. A trickle of lines or numbers waits for the next
tick. A burst, and any response to a key, is drawn immediately.
"""

from __future__ import annotations

import time

_PHASE_SECONDS = 0.05
"""Readers poll at whole seconds; their data are drawn just after that, in one paint."""


def seconds_to_refresh(period_seconds: float) -> float:
    """Return the seconds to the next tick; if one period divides another, their ticks coincide."""
    return period_seconds - (time.monotonic() - _PHASE_SECONDS) % period_seconds
