"""Tables of events and leaks. Both are fetched on request, without a watch; the rows are from the last fetch."""

from __future__ import annotations

from l2rtui.domain.receipt import Leak
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.status import KubeEvent
from l2rtui.tables.resources import EVENTS, LEAKS, is_warning
from l2rtui.ui.text import NOTHING, Span, TextStyle
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of
from l2rtui.ui.widgets.virtual_table import VirtualTable


class EventTable(VirtualTable):
    """Recent events, newest first."""

    COLUMNS = columns_of(EVENTS)
    EMPTY = "Not asked yet."


class LeakTable(VirtualTable):
    """Objects left behind by deleted runs."""

    COLUMNS = columns_of(LEAKS)
    EMPTY = "Not asked yet."


def event_row(event: KubeEvent) -> Row:
    """Make the row of an event."""
    # The glyph is in the reason column: a narrow table drops the level, and colour is not enough.
    glyph, style = ("▲ ", TextStyle.WARN) if is_warning(event) else ("", TextStyle.PLAIN)
    return row_of(
        EVENTS,
        # Without time and count: an event that occurs again updates its row in place.
        f"{event.namespace}/{event.object}/{event.reason}/{event.message}",
        event,
        is_fault=is_warning(event),
        # Ascending by minus the time is newest first, as with ages in the other tables.
        age=(Span("", TextStyle.DIM), -event.time),
        reason=(Span(f"{glyph}{sanitize(event.reason)}", style), event.reason),
        count=(Span(str(event.count) if event.count > 1 else NOTHING, TextStyle.DIM), event.count),
    )


def leak_row(leak: Leak) -> Row:
    """Make the row of a leak."""
    return row_of(LEAKS, f"{leak.run}/{leak.kind}/{leak.name}", leak, is_fault=True)
