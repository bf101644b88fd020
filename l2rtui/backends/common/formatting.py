"""Format of descriptions, the same for every backend: indented fields, times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def fields(*pairs: tuple[str, str]) -> list[str]:
    """Return one line for each name and value; those without a value are left out."""
    return [f"  {name + ':':<13}{value}" for name, value in pairs if value]


def when(seconds: float) -> str:
    """Format seconds since the epoch in UTC; 0 is an unknown time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if seconds else "unknown"
