"""How a description is written, whichever backend gives it: indented fields, times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def fields(*pairs: tuple[str, str]) -> list[str]:
    """One line for each name and value; those without a value are left out."""
    return [f"  {name + ':':<13}{value}" for name, value in pairs if value]


def when(seconds: float) -> str:
    """A moment since the epoch, for people; 0 is one that nobody knows."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else "unknown"
