"""Events and leaks as rows. Both are asked for and not watched, so their tables hold what was found last."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import NOTHING, Span, Tone
from l2rtui.ui.values import EventText, LeakText
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

EVENT_COLUMNS: Final = (
    Column("age", "age", most=6, right=True, is_age=True),
    Column("level", "level", most=10),
    Column("reason", "reason", most=24),
    Column("object", "object", most=48, rank=1),
    Column("count", "count", most=5, right=True, rank=2),
    Column("message", "message", most=400),
)
LEAK_COLUMNS: Final = (
    Column("run", "run", most=40),
    Column("kind", "kind", most=24),
    Column("name", "name", most=60),
    Column("reason", "reason", most=400),
)


class EventTable(VirtualTable):
    """What has happened lately, newest first."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(EVENT_COLUMNS, empty="Not asked yet.", clock=clock, id=id)


class LeakTable(VirtualTable):
    """What runs that are gone have left behind."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(LEAK_COLUMNS, empty="Not asked yet.", clock=clock, id=id)


def event_row(event: EventText) -> Row:
    """One event."""
    is_warning = event.level == "Warning"
    cells = (
        Span("", Tone.DIM),
        Span(f"{'▲' if is_warning else '●'} {sanitize(event.level)}", Tone.WARN if is_warning else Tone.DIM),
        Span(sanitize(event.reason)),
        Span(sanitize(event.object), Tone.STRONG),
        Span(str(event.count) if event.count > 1 else NOTHING, Tone.DIM),
        Span(sanitize(event.message)),
    )
    sort = (-event.time, event.level, event.reason, event.object, event.count, event.message)
    key = f"{event.namespace}/{event.object}/{event.reason}/{event.message}"
    return Row(key, cells, sort, is_fault=is_warning)


def leak_row(leak: LeakText) -> Row:
    """One leak."""
    cells = (
        Span(sanitize(leak.run) or NOTHING, Tone.STRONG),
        Span(sanitize(leak.kind)),
        Span(sanitize(leak.name)),
        Span(sanitize(leak.reason), Tone.WARN),
    )
    return Row(
        f"{leak.run}/{leak.kind}/{leak.name}", cells, (leak.run, leak.kind, leak.name, leak.reason), is_fault=True
    )
