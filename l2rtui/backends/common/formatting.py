"""Format of descriptions, shared by all backends: indented fields, times in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from l2rtui.domain.event import KubeEvent
from l2rtui.domain.quantity import utc
from l2rtui.domain.secret import is_secret_variable


def fields(*pairs: tuple[str, str]) -> list[str]:
    """Return one line for each pair of name and value; empty values are left out."""
    return [f"  {name + ':':<13}{value}" for name, value in pairs if value]


def when(seconds: float) -> str:
    """Format seconds since the epoch in UTC; 0 means unknown."""
    return utc(seconds) or "unknown"


def variables_text(variables: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each variable of a process; values that may be secrets are hidden."""
    for name, value in variables:
        yield f"  env {name}={'(hidden)' if value and is_secret_variable(name) else value}"


def with_events(lines: Iterable[str], events: Iterable[KubeEvent]) -> tuple[str, ...]:
    """Append the events of an object to its description."""
    history = [
        f"  {when(event.time)} {event.level} {event.reason} {event.object}"
        + (f": {event.message}" if event.message else "")
        for event in events
    ]
    return (*lines, "", "events:", *(history or ["  none are kept"]))
