"""One beat for everything that may wait: what is drawn at the same moment costs one paint.

A screen over SSH is repainted as seldom as people do not notice. News that come in a trickle (lines, numbers) wait
for the next beat; a rush, and whatever answers a key, does not.
"""

from __future__ import annotations

import time

_PHASE_SECONDS = 0.05
"""Readers that poll look at whole seconds; what they find is drawn just after, in one piece."""


def until_beat(period_seconds: float) -> float:
    """Seconds from now to the next beat; beats of a period that divides another's fall together with them."""
    return period_seconds - (time.monotonic() - _PHASE_SECONDS) % period_seconds
