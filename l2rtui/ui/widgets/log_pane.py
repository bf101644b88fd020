"""Log pane: the last 50,000 lines, filtered by patterns, at most ten repaints a second."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from textual.message import Message
from textual.timer import Timer

from l2rtui.errors import UsageError
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.refresh_clock import seconds_to_refresh
from l2rtui.ui.text import HUES, apart
from l2rtui.ui.widgets.log_ring import (
    BufferedLine,
    JsonMode,
    LogEntry,
    LogFilter,
    LogStore,
    bounded,
    name_of,
)
from l2rtui.ui.widgets.log_view import LogView
from l2rtui.ui.widgets.record_table import RecordTable
from runtime.base.contract import METRIC_PREFIX
from runtime.base.metric_records import parse_record

RUSH_SECONDS: Final = 0.1
"""Time between two repaints while many lines arrive."""
QUIET_SECONDS: Final = 0.5
"""The same while few arrive: lines of several pods share a repaint, and an idle screen costs little."""
RUSH_LINES: Final = 20
MOST_LEARNT: Final = 64
"""Records of a batch that are read for the columns of the table."""
_PREFIX_MOST: Final = 16
_POD: Final = attrgetter("pod")


@dataclass
class PatternsRemoved(Message):
    """The patterns of a log took too long on new lines, and were removed."""

    sentence: str


class LogPane(LogView, can_focus=True):
    """Log of one or more pods, with its keys.

    Attributes:
        log_filter: Patterns of the displayed lines, and the form of JSON lines.
        received: Number of lines received since the log was started.
    """

    BINDINGS = bindings(KeyContext.LOG)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.log_filter = LogFilter()
        self._all = LogStore()
        self._timer: Timer | None = None
        self._waiting = 0
        self._is_rush = False
        self._has_drawn = False
        self._table = RecordTable()

    def restart(self, *, run: str, is_merged: bool, empty: str) -> None:
        """Drop all lines and start another log.

        Args:
            run: Its name is left out of the prefixes of pods.
            is_merged: Prefix each line with its pod.
            empty: Text until the first line arrives.
        """
        self.ring.clear()
        self._all.clear()
        self._table = RecordTable()
        self._head()
        self.received = 0
        self.empty_text, self._run, self._pan = empty, run, 0
        self.log_search.forget()
        self._prefix = 1 if is_merged else 0
        self._hues.clear()
        self._names = {}
        self.is_following = True
        self._has_drawn = False
        self._arrange()
        self.post_message(self.Changed())

    def extend(self, lines: Iterable[BufferedLine]) -> None:
        """Append lines; they are drawn at the next repaint. A newer state of the last line replaces it."""
        entries = bounded(self._all.newest_states(lines, self.ring))
        # Once for each pod of a batch, not for each line, of which thousands may arrive in a second.
        self._meet(map(name_of, dict.fromkeys(map(_POD, entries))))
        before = self.ring.dropped
        self.received += len(entries)
        stored, displayed = self._store(entries)
        gone = 0
        if self._learn(stored):
            self._refill(self.log_filter)  # the existing rows have other columns
        else:
            self._head()
            gone = self.ring.extend(self.log_filter.apply(displayed, self.ring.table))
        self.log_search.drop(self.ring.dropped - before)
        # The visible text keeps its place while old lines are dropped above it.
        if gone and not self.is_following:
            self._go(self._top - gone)
        self._waiting += len(entries)
        is_rush = self._waiting >= RUSH_LINES or not self._has_drawn
        # A slow timer that is already running would delay the first lines of a burst.
        if self._timer is not None and is_rush and not self._is_rush:
            self._timer.stop()
            self._timer = None
        if self._timer is None:
            self._is_rush = is_rush
            seconds = RUSH_SECONDS if is_rush else seconds_to_refresh(QUIET_SECONDS)
            self._timer = self.set_timer(seconds, self._drawn)

    def _store(self, lines: Sequence[BufferedLine]) -> tuple[Sequence[BufferedLine], Sequence[BufferedLine]]:
        """Store lines; return them and the displayed ones. Patterns that take too long are removed."""
        try:
            return self._all.extend(lines)
        except UsageError as error:
            self.narrow(include="", exclude="")
            self.post_message(PatternsRemoved(f"{error}; & and ! hide nothing now."))
            return self._all.extend(lines)

    def _learn(self, lines: Iterable[BufferedLine]) -> bool:
        """Add columns for the records among new lines; return True if the existing rows no longer match the
        columns.

        One record of each kind and pod is read: the others in a burst have the same fields.
        """
        newest: dict[tuple[str, str], str] = {}
        for line in lines:
            if line.text.startswith(METRIC_PREFIX) and len(newest) < MOST_LEARNT:
                newest[line.pod, line.text[: line.text.find(",")]] = line.text
        records = ((pod, parse_record(text)) for (pod, _), text in newest.items())
        changes = [self._table.learn(pod, record) for pod, record in records if record is not None]
        return any(changes)

    def _head(self) -> None:
        """Show headings if rows are shown below them; wrapped lines have no columns, so records get another
        form.
        """
        has_rows = self.log_filter.json_as is JsonMode.TABLE and not self.is_wrapping
        self.ring.table = self._table if has_rows else None
        self.heading = self._table.heading if has_rows else ""
        self.column_ends = self._table.ends

    def action_wrap(self) -> None:
        """Turn wrapping of long lines on or off."""
        super().action_wrap()
        if self.log_filter.json_as is JsonMode.TABLE and self._table:
            self._refill(self.log_filter)

    def _meet(self, pods: Iterable[str]) -> None:
        """Give new pods their hue, and all pods distinguishable names."""
        new = [pod for pod in pods if pod not in self._hues]
        for pod in new:
            self._hues[pod] = HUES[len(self._hues) % len(HUES)]
        if new and self._prefix:
            short = {pod: pod.removeprefix(f"{self._run}-") for pod in self._hues}
            names = apart([*dict.fromkeys(short.values())], _PREFIX_MOST)
            self._names = {pod: names[name] for pod, name in short.items()}
            self._prefix = max(self._prefix, *map(len, self._names.values()))

    @property
    def dropped(self) -> int:
        """Number of received lines that were dropped since, displayed or not."""
        return self.received - len(self._all)

    @property
    def hidden(self) -> int:
        """Number of stored lines that the patterns hide."""
        return self._all.hidden

    def narrow(self, *, include: str | None = None, exclude: str | None = None) -> None:
        """Display only lines with a pattern and without another one, including existing lines.

        Args:
            include, exclude: None keeps the pattern, empty removes it.

        Raises:
            re.error: a pattern is not a regular expression; nothing has changed.
            UsageError: it takes too long on the existing lines; nothing has changed.
        """
        old = self.log_filter
        patterns = old.include if include is None else include, old.exclude if exclude is None else exclude
        log_filter = LogFilter(*patterns, old.json_as)
        self._all.narrow(log_filter)
        self._refill(log_filter)

    def _refill(self, log_filter: LogFilter) -> None:
        """Fill the ring again through another filter; the line at the top of the view stays roughly in place."""
        self.log_filter = log_filter
        top = self.ring.at(self._top)
        top_time = self.ring[top[0]].time if top else 0.0
        self.ring.clear()
        self.ring.json_as = log_filter.json_as
        self._head()
        self.ring.extend(log_filter.apply(self._all.displayed(), self.ring.table))
        self.log_search.forget()
        self._arrange()
        if not self.is_following:
            later = next((number for number, entry in enumerate(self.ring) if entry.time >= top_time), 0)
            self._go(self.ring.row_of(later))
        self.refresh()
        self.post_message(self.Changed())

    async def action_since(self, by: int) -> None:
        """Restart the log with the next longer time span, or with -1 the previous one."""
        await self.screen.run_action(f"log_since({by})")

    async def action_ask(self, what: str) -> None:
        """Open the prompt for a pattern: ``include`` or ``exclude``."""
        await self.screen.run_action(f"ask_log({what!r})")

    def action_json(self) -> None:
        """Display JSON lines in the next form."""
        modes = list(JsonMode)
        old = self.log_filter
        following = modes[(modes.index(old.json_as) + 1) % len(modes)]
        self._refill(LogFilter(old.include, old.exclude, following))

    def action_marker(self) -> None:
        """Append a marker line with the current time and scroll to it, so that later lines are easy to find."""
        text = f"marked at {time.strftime('%H:%M:%S')}"
        entry = LogEntry(time.time(), "", text, len(text), is_mark=True)
        self.received += 1
        self.ring.extend(self._all.extend([entry])[1])
        self._arrange()
        self._follow(True)
        self.post_message(self.Changed())

    async def action_save(self) -> None:
        """Open the prompt for a file to save the lines in."""
        await self.screen.run_action("ask_log('save')")

    async def action_close_pane(self) -> None:
        """Close this pane."""
        await self.screen.run_action("close_log")

    def _drawn(self) -> None:
        self._timer = None
        self._waiting, self._has_drawn = 0, True
        self._arrange()
        if self.dropped:
            self.post_message(self.Changed())
