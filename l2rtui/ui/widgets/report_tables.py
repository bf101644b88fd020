"""Tables of events and leaks. Both are fetched on request, without a watch; the rows are from the last fetch."""

from __future__ import annotations

from l2rtui.domain.event import KubeEvent
from l2rtui.domain.receipt import Leak
from l2rtui.domain.sanitize import sanitize
from l2rtui.tables.column import TableColumn
from l2rtui.ui.text import NOTHING, Span, TextStyle
from l2rtui.ui.widgets.table_model import Row, make_row
from l2rtui.ui.widgets.virtual_table import VirtualTable


class EventTable(VirtualTable):
    """Recent events, newest first."""

    COLUMNS = (
        TableColumn("age", "age", most=6, right=True, is_age=True),
        # In a narrow table the level is dropped first: a reason without its object is useless.
        TableColumn("level", "level", most=10, rank=1),
        TableColumn("reason", "reason", most=26),
        TableColumn("object", "object", most=48),
        TableColumn("count", "count", most=5, right=True, rank=2),
        TableColumn("message", "message", most=400),
    )
    EMPTY = "Not asked yet."


class LeakTable(VirtualTable):
    """Objects left behind by deleted runs."""

    COLUMNS = (
        TableColumn("run", "run", most=40),
        TableColumn("kind", "kind", most=24),
        TableColumn("name", "name", most=60),
        TableColumn("reason", "reason", most=400),
    )
    EMPTY = "Not asked yet."


def event_row(event: KubeEvent) -> Row:
    """Make the row of an event."""
    is_warning = event.level == "Warning"
    # The glyph is in the reason column: a narrow table drops the level, and colour is not enough.
    glyph, style = ("▲ ", TextStyle.WARN) if is_warning else ("", TextStyle.PLAIN)
    return make_row(
        # Without time and count: an event that occurs again updates its row in place.
        f"{event.namespace}/{event.object}/{event.reason}/{event.message}",
        # Ascending by minus the time is newest first, as with ages in the other tables.
        (Span("", TextStyle.DIM), -event.time),
        (Span(sanitize(event.level), TextStyle.WARN if is_warning else TextStyle.DIM), event.level),
        (Span(f"{glyph}{sanitize(event.reason)}", style), event.reason),
        (Span(sanitize(event.object), TextStyle.STRONG), event.object),
        (Span(str(event.count) if event.count > 1 else NOTHING, TextStyle.DIM), event.count),
        (Span(sanitize(event.message)), event.message),
        is_fault=is_warning,
    )


def leak_row(leak: Leak) -> Row:
    """Make the row of a leak."""
    return make_row(
        f"{leak.run}/{leak.kind}/{leak.name}",
        (Span(sanitize(leak.run) or NOTHING, TextStyle.STRONG), leak.run),
        (Span(sanitize(leak.kind)), leak.kind),
        (Span(sanitize(leak.name)), leak.name),
        (Span(sanitize(leak.reason), TextStyle.WARN), leak.reason),
        is_fault=True,
    )
