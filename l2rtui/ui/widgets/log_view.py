"""View of a log over Textual's line API: the visible part of the ring, its scroll position, wrapping and search.

Lines are sanitised and styled when they become visible. Scrolling back stops following; the visible text then keeps
its place, however much is appended.

The view implements scrolling and its scroll bar itself: a ScrollView lays out the whole screen again whenever its
virtual size changes, which here is with every line.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import Line, Span, TextStyle, broken, fit
from l2rtui.ui.widgets.log_ring import LogEntry, LogRing, chopped
from l2rtui.ui.widgets.log_search import LogSearch, pan_to
from l2rtui.ui.widgets.record_table import COLUMN_GAP, TableCell
from l2rtui.ui.widgets.span_renderer import SpanWidget

PAN_COLUMNS: Final = 20
SLICE_SECONDS: Final = 0.004
"""Longest time that a search takes from the keys before it lets them pass."""
SLICE_REST_SECONDS: Final = 0.001
_CLOCK: Final = re.compile(r"\d\d:\d\d:\d\d ")
_LEAST_WITH_FOOT: Final = 8
"""Rows of a pane from which it has room for a table below its lines."""
_ROWS_TO_COMPARE: Final = 64
"""Lines above a row among which the previous row of its pod is looked for."""
_MOST_A_COLUMN: Final = 4
"""Characters of a line that are read for each column of the view; some characters have no width."""


class Foot(NamedTuple):
    """Table below the lines of a log: the newest record of each worker."""

    title: str = ""
    heading: str = ""
    column_ends: Sequence[int] = ()
    rows: Sequence[LogEntry] = ()


class LogView(SpanWidget):
    """Lines of a ring: followed, scrolled, wrapped, searched.

    Attributes:
        top_row: Row of the log that is drawn first.
        pan: Columns at the left that are not drawn.
        hues: Colour of each pod's name.
    """

    @dataclass
    class Changed(Message):
        """Following, wrapping, search or the dropped count has changed: the title is out of date."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.ring = LogRing()
        self.is_following = True
        self.is_wrapping = False
        self.is_arranging = False
        self._times: bool | None = None
        self.log_search = LogSearch()
        self.is_searching = False
        self.empty_text = ""
        self.received = 0
        self.heading = ""
        """Headings of the columns, in the first row of the pane; empty if no table is shown."""
        self.column_ends: Sequence[int] = ()
        self.cells: Sequence[TableCell] = ()
        self.foot = Foot()
        self.top_row = 0
        self.pan = 0
        self._run = ""
        self._prefix = 0
        self.hues: dict[str, TextStyle] = {}
        self._names: dict[str, str] = {}
        """Names of the pods as shown at the start of lines."""

    def continue_soon(self, work: Callable[[], None]) -> None:
        """Go on with work in slices after the keys that came meanwhile.

        Not with ``set_timer``: Textual drops a timer whose time has passed before it starts to wait, so one of a
        millisecond is lost when the process loses its core at that moment.
        """
        asyncio.get_running_loop().call_later(SLICE_REST_SECONDS, self.call_next, work)

    # --- search ---------------------------------------------------------------------------------------------
    def find(self, text: str) -> None:
        """Search for text, ignoring case; empty ends the search."""
        self.log_search = LogSearch(text, self.log_search)
        self._search_on(self.log_search)

    def _search_on(self, search: LogSearch, *, is_new: bool = True, is_said: bool = False) -> None:
        """Count matches for a moment, and go on after the keys that came meanwhile; then show the newest match of a
        new search.

        Args:
            is_said: The title already says that it searches.
        """
        if search is not self.log_search:
            return
        self.is_searching = not search.count(self.ring, self.heading, SLICE_SECONDS)
        if self.is_searching:
            self.continue_soon(partial(self._search_on, search, is_new=is_new, is_said=True))
            if is_said:  # another paint would show the same, and take longer than the slice
                return
        elif is_new:
            self.action_hit(-1)
        self.refresh()
        self.post_message(self.Changed())

    @property
    def search(self) -> str:
        """Searched text, in lower case; empty without a search."""
        return self.log_search.text

    @property
    def hits(self) -> int:
        """Number of matches of the search."""
        return self.log_search.position(self.ring, self.heading)[1]

    @property
    def search_fact(self) -> str:
        """Searched text and number of the current match; empty without a search."""
        if not self.search:
            return ""
        if self.is_searching:
            return f"/{sanitize(self.search)}, searching …"
        current, total = self.log_search.position(self.ring, self.heading)
        return f"/{sanitize(self.search)}, " + (f"{current:,} of {total:,}" if total else "no match")

    def action_hit(self, by: int) -> None:
        """Go to the next or the previous match, sideways too."""
        search = self.log_search
        if self.is_searching or not search.step(self.ring, self.heading, by) or search.line is None:
            return
        self._follow(False)
        entry, room = self.ring[search.line], max(1, self.size.width - 1 - self._left)
        row = self.ring.row_of(search.line)
        if self.ring.width:
            row += search.match.start // room
        else:
            ends = self.column_ends if entry.is_row else ()
            self.pan = pan_to(search.match, self.pan, room, ends)
        self._go(row - self._height // 2)
        self.refresh()
        self.post_message(self.Changed())

    # --- keys and mouse -------------------------------------------------------------------------------------
    def action_follow(self) -> None:
        """Turn following on or off."""
        self._follow(not self.is_following)

    def action_wrap(self) -> None:
        """Turn wrapping of long lines on or off."""
        self.is_wrapping = not self.is_wrapping
        self.pan = 0
        self._arrange()
        self.post_message(self.Changed())

    @property
    def has_times(self) -> bool:
        """True if the time of each line is shown: as the user chose, and otherwise for the table of records."""
        return bool(self.heading) if self._times is None else self._times

    def action_times(self) -> None:
        """Show or hide the time of each line."""
        self._times = not self.has_times
        self._arrange()

    def on_click(self, event: events.Click) -> None:
        """Scroll to the position that was clicked in the scroll bar."""
        place = event.get_content_offset(self)
        if place is not None and place.x >= self.size.width - 1 and self.size.height > 1:
            self._scroll(round(self.last_top_row * place.y / (self.size.height - 1)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up with the wheel."""
        event.stop()
        event.prevent_default()
        self._scroll(self.top_row - 3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down with the wheel."""
        event.stop()
        event.prevent_default()
        self._scroll(self.top_row + 3)

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self._scroll(self.top_row + by)

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        self._scroll(self.top_row + by * max(1, self._height - 1))

    def action_edge(self, side: int) -> None:
        """Go to the oldest or the newest line."""
        if side > 0:
            self._follow(True)
        else:
            self._scroll(0)

    def action_pan(self, by: int) -> None:
        """Move sideways along lines that are too long."""
        if not self.is_wrapping:
            self.pan = max(0, self.pan + by * PAN_COLUMNS)
            self.refresh()

    # --- inside ---------------------------------------------------------------------------------------------
    def _go(self, top: int) -> None:
        """Make this row of the log the first visible one."""
        self.top_row = max(0, min(top, self.last_top_row))
        self.refresh()

    @property
    def _height(self) -> int:
        """Rows for lines."""
        return self.size.height - bool(self.heading) - len(self._foot_rows)

    @property
    def _foot_rows(self) -> Sequence[LogEntry]:
        """Heading and rows of the table below the lines, as far as half of the pane has room for them."""
        room = self.size.height // 2 if self.foot.rows and self.size.height >= _LEAST_WITH_FOOT else 0
        return [LogEntry(0.0, "", self.foot.heading, len(self.foot.heading), is_row=True), *self.foot.rows][:room]

    @property
    def last_top_row(self) -> int:
        """First visible row at the end of the log."""
        return max(0, self.ring.rows - self._height)

    def _follow(self, is_following: bool) -> None:
        if is_following != self.is_following:
            self.is_following = is_following
            self.post_message(self.Changed())
        if is_following:
            self._go(self.last_top_row)

    def _scroll(self, top: int) -> None:
        """Scroll; following resumes at the end and stops anywhere else."""
        self._go(top)
        self._follow(self.top_row >= self.last_top_row)

    def _arrange(self) -> None:
        """Update wrapping and scroll position, and draw."""
        # Before the first layout; on_resize() calls this again.
        if not self.size.width:
            return
        # Wrapping changes the rows of all lines: the line at the top stays, not its row number.
        top = self.ring.at(self.top_row)
        # One column is for the scroll bar.
        width = max(1, self.size.width - 1 - self._left) if self.is_wrapping else 0
        was_arranging, self.is_arranging = self.is_arranging, not self.ring.wrap(width, SLICE_SECONDS)
        if self.is_arranging is not was_arranging:
            self.post_message(self.Changed())
            if self.is_arranging:
                self.continue_soon(self._arrange_on)
        first = self.top_row if top is None or self.ring.at(self.top_row) == top else self.ring.row_of(top[0])
        self._go(self.last_top_row if self.is_following else first)

    def _arrange_on(self) -> None:
        """Go on measuring lines, after the keys that came meanwhile."""
        self._arrange()
        if self.is_arranging:
            self.continue_soon(self._arrange_on)

    def on_resize(self) -> None:
        """Wrap lines at the new width."""
        self._arrange()

    @property
    def _left(self) -> int:
        """Columns before the text: margin, time, pod."""
        return 2 + (9 if self.has_times else 0) + (self._prefix + 3 if self._prefix else 0)

    def render_line(self, y: int) -> Strip:
        """One row of the log, with its part of the scroll bar; the headings are always the first row."""
        if self.heading:
            if y == 0:
                return self._heading_line(self.heading, self.size.width)
            y -= 1
        if y >= self._height:
            return self._foot_line(y - self._height, self.size.width)
        strip = self._line(y, self.size.width - 1)
        bar = self.strip((Span("▐" if self._has_thumb(y) else " ", TextStyle.DIM),), 1)
        return Strip.join([strip, bar])

    def _heading_line(self, heading: str, width: int) -> Strip:
        entry = LogEntry(0.0, "", heading, cell_len(heading), is_row=True)
        room = width - 1 - self._left
        spans = _window(entry, self.pan, room, TextStyle.HEADING, self.column_ends, is_heading=True)
        return self.strip((Span(" " * self._left), *spans), width)

    def _foot_line(self, number: int, width: int) -> Strip:
        """One line of the table below the lines; its first row has the headings."""
        entry, room, foot = self._foot_rows[number], width - 1 - self._left, self.foot
        left: Line = (Span(fit(f"  {foot.title}", self._left), TextStyle.HEADING),)
        style = TextStyle.PLAIN if number else TextStyle.HEADING
        spans = _window(entry, self.pan, room, style, foot.column_ends, is_heading=not number)
        return self.strip((*(self._before(entry, 0, is_hit=False) if number else left), *spans), width)

    def _has_thumb(self, y: int) -> bool:
        """True if the scroll bar's thumb covers this row; it is at least one row high."""
        rows, height = self.ring.rows, self._height
        if rows <= height:
            return False
        length = max(1, height * height // rows)
        first = round((height - length) * self.top_row / self.last_top_row)
        return first <= y < first + length

    def _line(self, y: int, width: int) -> Strip:
        position = self.ring.at(y + self.top_row)
        if position is None:
            empty = "The patterns (& and !) hide all lines that came." if self.received else self.empty_text
            text = "" if len(self.ring) else broken(empty, width - 4, y)
            return self.strip((Span(f"  {text}", TextStyle.DIM),), width)
        number, part = position
        entry = self.ring[number]
        line = (*self._before(entry, part, is_hit=number == self.log_search.line), *self.body(number, part, width))
        strip = self.strip(line, width)
        if entry.colours and not part and not self.pan:
            strip = self._painted(strip, entry)
        if not self.search:
            return strip
        is_current = number == self.log_search.line and not self.ring.width
        current = self.log_search.match.start - self.pan + self._left if is_current else -1
        return _highlighted(strip, self.search, self._left, current)

    def _before(self, entry: LogEntry, part: int, *, is_hit: bool) -> Line:
        point = Span("▸ " if is_hit else "  ", TextStyle.ACCENT)
        if part:
            return (point, Span(" " * (self._left - 2)))
        spans = [point]
        if self.has_times:
            spans.append(Span(f"{time.strftime('%H:%M:%S', time.localtime(entry.time))} ", TextStyle.DIM))
        if self._prefix:
            spans.append(
                Span(
                    fit(self._names.get(entry.pod, entry.pod), self._prefix),
                    self.hues.get(entry.pod, TextStyle.DIM),
                )
            )
            spans.append(Span(" │ ", TextStyle.DIM))
        return tuple(spans)

    def body(self, number: int, part: int, width: int) -> Sequence[Span]:
        """Return the text of a line, without what stands before it; ``part`` is its row where it is wrapped."""
        entry, room = self.ring[number], width - self._left
        if entry.is_mark:
            text = f"──── {entry.text} "
            return (Span(fit(text, room) if len(text) > room else text.ljust(room, "─"), TextStyle.WARN),)
        style = TextStyle.DIM if entry.is_record else _level_style(entry.text)
        if not self.ring.width:
            spans = _window(entry, self.pan, room, style, self.column_ends)
            if entry.is_row:
                return _compared(spans, self.pan, self.cells, entry, self._row_above(number))
            return self._with_dim_clock(spans) if self.has_times else spans
        room = self.ring.width
        if entry.columns == len(entry.text):
            return (Span(entry.text[part * room : (part + 1) * room], style),)
        pieces = chopped(entry.text, room)
        return (Span(pieces[part] if part < len(pieces) else "", style),)

    def _with_dim_clock(self, spans: Line) -> Line:
        """Return the visible part of a line with the time that it begins with dim: its row has the time already."""
        before, (text, style), after = spans
        clock = _CLOCK.match(text)
        if clock is None or before.text:
            return spans
        return Span(text[: clock.end()], TextStyle.FAINT), Span(text[clock.end() :], style), after

    def _row_above(self, number: int) -> str:
        """Return the row of records above a line that is of the same pod; empty if there is none near it."""
        pod = self.ring[number].pod
        above = (self.ring[at] for at in range(number - 1, max(-1, number - 1 - _ROWS_TO_COMPARE), -1))
        return next((entry.text for entry in above if entry.is_row and entry.pod == pod), "")

    def _painted(self, strip: Strip, entry: LogEntry) -> Strip:
        """Apply the line's ANSI colours to its first row."""
        # Positions are characters, which differ from columns with wide characters; such a line stays uncoloured.
        if entry.columns != len(entry.text):
            return strip
        for start, end, style in entry.colours:
            first, last = min(self._left + start, strip.cell_length), min(self._left + end, strip.cell_length)
            if first < last:
                before, piece, after = strip.divide([first, last, strip.cell_length])
                strip = Strip([*before, *piece.apply_style(style), *after], strip.cell_length)
        return strip


def _highlighted(strip: Strip, search: str, left: int, current: int) -> Strip:
    """Reverse the matches, and underline the current one: visible without colour too.

    Args:
        left: First column of the text. current: column of the current match; -1 for a line without it.
    """
    text = strip.text.casefold()
    at = text.find(search, left)
    cuts: list[int] = []
    while at >= 0:
        cuts += [at, at + len(search)]
        at = text.find(search, at + len(search))
    if not cuts or cell_len(text) != len(text):
        return strip  # wide characters shift the columns: the line is drawn without marks
    look, look_of_current = Style(reverse=True), Style(reverse=True, bold=True, underline=True)
    segments: list[Segment] = []
    # Cuts alternate between start and end of a match, so odd pieces are matches.
    for number, piece in enumerate(strip.divide([*cuts, strip.cell_length])):
        style = look_of_current if number % 2 and cuts[number - 1] == current else look
        segments.extend(piece.apply_style(style) if number % 2 else piece)
    return Strip(segments, strip.cell_length)


def _window(
    entry: LogEntry, pan: int, room: int, style: TextStyle, column_ends: Sequence[int], *, is_heading: bool = False
) -> Line:
    """Visible part of a line; a sign marks each edge where the line continues.

    Args:
        column_ends: Positions at which a row of the table may be cut: half a number reads as another number.
        is_heading: The line names the columns; its sign stands for all rows that are cut between two columns.
    """
    # Not the whole rest: the width of the longest line takes some milliseconds, and a screen may be full of them.
    text = entry.text[pan : pan + _MOST_A_COLUMN * room]
    before = "…" if pan and entry.text else ""
    if pan and entry.is_row:
        cut = len(text.partition(" ")[0])
        text = " " * cut + text[cut:]
    has_more = len(entry.text) > pan + len(text)
    has_more = has_more or (len(text) if entry.columns == len(entry.text) else cell_len(text)) > room
    if has_more:
        fitting = [end - pan for end in column_ends if 0 < end - pan < room - 1] if entry.is_row else []
        has_more = is_heading or not fitting or not text.startswith(COLUMN_GAP, fitting[-1])
        text = set_cell_size(text[: fitting[-1]] if fitting else text, max(0, room - 1))
    return Span(before, TextStyle.ACCENT), Span(text[len(before) :], style), Span("…" * has_more, TextStyle.ACCENT)


def _compared(spans: Line, pan: int, cells: Sequence[TableCell], entry: LogEntry, above: str) -> Line:
    """Return the visible part of a row: dim where it repeats the row above, strong where it is a return."""
    before, (text, style), after = spans
    first = pan + len(before.text)
    parts: list[Span] = []
    done = 0
    for start, end, is_return in cells:
        end = max(0, min(len(text), end - first))  # noqa: PLW2901
        if end > done and above[start : first + end] == entry.text[start : first + end]:
            parts.append(Span(text[done:end], TextStyle.DIM))
        else:
            parts.append(Span(text[done:end], TextStyle.STRONG if is_return else style))
        done = max(done, end)
    return (before, *parts, Span(text[done:], style), after)


def _level_style(text: str) -> TextStyle:
    """Style by the log level near the start of a line; the word itself shows the level without colour."""
    # Long enough for a timestamp and a logger's name before the level.
    head = text[:48]
    if "ERROR" in head or "CRITICAL" in head or head.startswith(("Traceback", "error:")):
        return TextStyle.BAD
    return TextStyle.WARN if "WARN" in head else TextStyle.PLAIN
