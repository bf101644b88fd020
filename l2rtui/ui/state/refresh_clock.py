"""Common refresh clock: widgets that redraw at the same moment cost one paint.

A screen over SSH is repainted as seldom as people do not notice. A trickle of lines or numbers waits for the next
tick; a burst, and whatever answers a key, does not.
"""

from __future__ import annotations

import time

_PHASE_SECONDS = 0.05
"""Readers that poll do so at whole seconds; what they read is drawn just after, in one paint."""


def seconds_to_refresh(period_seconds: float) -> float:
    """Return the seconds to the next tick; ticks of a period that divides another coincide with its ticks."""
    return period_seconds - (time.monotonic() - _PHASE_SECONDS) % period_seconds
