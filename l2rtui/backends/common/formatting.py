"""Format of descriptions, shared by all backends: indented fields, times in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from l2rtui.domain.quantity import utc
from l2rtui.domain.secret import is_secret_variable
from l2rtui.domain.status import KubeEvent

_WIDEST_COLUMN: Final = 40


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


def with_events(lines: Iterable[str], events: Sequence[KubeEvent]) -> tuple[str, ...]:
    """Append the events of an object to its description."""
    return (*lines, "", "events:", *(f"  {line}" for line in event_lines(events)))


def event_lines(events: Sequence[KubeEvent]) -> list[str]:
    """Return one line for each event, with its level, reason and object below those of the others."""
    rows = [(when(event.time), event.level, event.reason, event.object) for event in events]
    widths = [min(max(map(len, column)), _WIDEST_COLUMN) for column in zip(*rows, strict=True)]
    lines = []
    for row, event in zip(rows, events, strict=True):
        times = f"(x{event.count})" if event.count > 1 else ""
        cells = (f"{text:<{width}}" for text, width in zip(row, widths, strict=True))
        lines.append("  ".join((*cells, " ".join((*event.message.split(), times)))).rstrip())
    return lines or ["none are kept"]
