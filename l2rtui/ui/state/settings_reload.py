"""Reload of settings while the app runs: which changes apply immediately, and which at the next start."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Final

from l2rtui.config import Settings

LIVE: Final = frozenset({"theme", "keys", "filters", "notify", "readonly", "protected", "grace_seconds", "limits"})
"""Settings of the app itself. The backend has already used the others for reading nodes and making clients."""


def reloaded(before: Settings, after: Settings) -> tuple[Settings, str]:
    """Return the settings to use from now on, and a sentence about the changes.

    Args:
        before: Current settings. after: Settings just read.
    """
    changed = [name for name in (setting.name for setting in fields(Settings)) if _differs(name, before, after)]
    if not changed:
        return before, "The settings are as they were."
    live = [name for name in changed if name in LIVE]
    later = [name for name in changed if name not in LIVE]
    parts = (
        f"Counts now: {', '.join(live)}." if live else "",
        f"From the next start: {', '.join(later)}." if later else "",
    )
    return replace(before, **{name: getattr(after, name) for name in live}), " ".join(filter(None, parts))


def _differs(name: str, before: Settings, after: Settings) -> bool:
    return bool(getattr(before, name) != getattr(after, name))
