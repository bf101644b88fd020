"""Log pane: the last 50,000 lines, filtered by patterns, at most ten repaints a second."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from rich.cells import cell_len
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
from l2rtui.ui.widgets.log_view import SLICE_SECONDS, Foot, LogView
from l2rtui.ui.widgets.record_table import RecordTable
from runtime.base.contract import METRIC_PREFIX
from runtime.base.metrics import parse_record

RUSH_SECONDS: Final = 0.1
"""Time between two repaints while many lines arrive."""
QUIET_SECONDS: Final = 0.5
"""The same while few arrive: lines of several pods share a repaint, and an idle screen costs little."""
RUSH_LINES: Final = 20
MOST_LEARNT: Final = 256
"""Newest records of a batch among which one of each kind and pod is read for the columns of the table."""
SAMPLED_RECORDS: Final = 16
"""Records of a batch that are read to see which values change."""
_LEARNER: Final = f'{METRIC_PREFIX}learner"'
_WORKER: Final = f'{METRIC_PREFIX}worker"'
_PREFIX_MOST: Final = 16
_POD: Final = attrgetter("pod")


@dataclass
class PatternsRemoved(Message):
    """Patterns took too long, and were removed, or refused if they are new."""

    sentence: str


class LogPane(LogView, can_focus=True):
    """Log of one or more pods, with its keys.

    Attributes:
        log_filter: Patterns of the displayed lines, and the form of JSON lines.
        received: Number of lines received since the log was started.
        store: The newest lines, also those that the patterns hide.
    """

    BINDINGS = bindings(KeyContext.LOG)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.log_filter = self._wanted = LogFilter()
        self.store = LogStore()
        self._timer: Timer | None = None
        self._waiting = 0
        self._is_rush = False
        self._has_drawn = False
        self._table = RecordTable()
        self._workers: dict[str, tuple[float, dict[str, object]]] = {}
        self._has_learner = self._were_apart = self._is_foot_old = False
        self.is_filtering = False

    def restart(self, *, run: str, is_merged: bool, empty: str) -> None:
        """Drop all lines and start another log.

        Args:
            run: Its name is left out of the prefixes of pods.
            is_merged: Prefix each line with its pod.
            empty: Text until the first line arrives.
        """
        self.ring.clear()
        self.store.clear()
        self._table = RecordTable()
        self._workers, self._has_learner, self._were_apart = {}, False, False
        self._head()
        self.received = 0
        self.empty_text, self._run, self.pan = empty, run, 0
        self.log_search.forget()
        self._prefix = 1 if is_merged else 0
        self.hues.clear()
        self._names = {}
        self.is_following = True
        self._has_drawn = False
        self._arrange()
        self.post_message(self.Changed())

    def extend(self, lines: Iterable[BufferedLine]) -> None:
        """Append lines; they are drawn at the next repaint. A newer state of the last line replaces it."""
        entries = bounded(self.store.newest_states(lines, self.ring))
        # Once for each pod of a batch, not for each line, of which thousands may arrive in a second.
        self._meet(map(name_of, dict.fromkeys(map(_POD, entries))))
        before = self.ring.dropped
        self.received += len(entries)
        stored, displayed = self._store(entries)
        self._has_learner = self._has_learner or any(line.text.startswith(_LEARNER) for line in stored)
        gone = 0
        # Existing rows may have other columns: the first record of a learner changes the workers' columns, too.
        has_moved = self._are_workers_apart is not self._were_apart
        displayed = self._take_workers(displayed)
        if has_moved or self._learn(displayed):
            self._refill(self.log_filter)
        else:
            self._head()
            gone = self.ring.extend(self.log_filter.apply(displayed, self.ring.table))
        self.log_search.drop(self.ring.dropped - before)
        # The visible text keeps its place while old lines are dropped above it.
        if gone and not self.is_following:
            self._go(self.top_row - gone)
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
            return self.store.extend(lines)
        except UsageError as error:
            self.narrow(include="", exclude="")
            self.post_message(PatternsRemoved(f"{error}; & and ! hide nothing now."))
            return self.store.extend(lines)

    @property
    def _are_workers_apart(self) -> bool:
        """True if the records of workers are in a table of their own: between those of the learner they would leave
        most columns of each other's rows empty.
        """
        log_filter = self.log_filter
        is_table = log_filter.json_as is JsonMode.TABLE and not self.is_wrapping
        return self._has_learner and bool(self._prefix) and is_table and not log_filter.has_patterns

    def _take_workers(self, lines: Iterable[BufferedLine]) -> Sequence[BufferedLine]:
        """Return the lines without records of workers, if these are apart, and keep the newest of each worker."""
        if not self._are_workers_apart:
            return [*lines]
        others: list[BufferedLine] = []
        newest: dict[str, BufferedLine] = {}
        for line in lines:
            if line.text.startswith(_WORKER):
                newest[line.pod] = line
            else:
                others.append(line)
        for pod, line in newest.items():
            if (record := parse_record(line.text)) is not None:
                self._workers[name_of(pod)] = line.time, record
        # Its table is made once for each repaint: workers report one by one.
        self._is_foot_old = self._is_foot_old or bool(newest)
        return others

    def _show_foot(self) -> None:
        """Show the newest record of each worker below the lines, unless it is shown already."""
        if not self._is_foot_old or not self._are_workers_apart:
            return
        self._is_foot_old = False
        table = RecordTable(hides_constants=False)
        workers = sorted(self._workers.items())
        for pod, (_, record) in workers:
            table.learn(pod, {**record, "l2r": "worker"})
        rows = [(when, pod, table.row(record)) for pod, (when, record) in workers]
        entries = [LogEntry(when, pod, text, cell_len(text), is_row=True) for when, pod, text in rows]
        self.foot = Foot("workers", table.heading, table.ends, entries)

    def _learn(self, lines: Iterable[BufferedLine]) -> bool:
        """Add columns for the records among new lines; return True if the existing rows no longer match the
        columns.

        The newest record of each kind and pod is read, and some of the others, which have the same fields.
        """
        records = [line for line in lines if line.text.startswith(METRIC_PREFIX)]
        newest = {(line.pod, line.text[: line.text.find(",")]): line for line in records[-MOST_LEARNT:]}
        sample = [*records[:: 1 + len(records) // SAMPLED_RECORDS], *newest.values()]
        parsed = ((name_of(line.pod), parse_record(line.text)) for line in sample)
        changes = [self._table.learn(pod, record) for pod, record in parsed if record is not None]
        return any(changes)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names and values that are the same in all records of the table, for the title."""
        return self._table.constants if self.heading else ()

    def _head(self) -> None:
        """Show headings if rows are shown below them; wrapped lines have no columns, so records get another
        form.
        """
        has_rows = self.log_filter.json_as is JsonMode.TABLE and not self.is_wrapping
        self.ring.table = self._table if has_rows else None
        self.heading = self._table.heading if has_rows else ""
        self.column_ends, self.cells = self._table.ends, self._table.cells
        if not self._are_workers_apart:
            self.foot = Foot()

    def action_wrap(self) -> None:
        """Turn wrapping of long lines on or off."""
        if self.log_filter.json_as is JsonMode.TABLE and self._table:
            self.is_wrapping, self.pan = not self.is_wrapping, 0
            self._refill(self.log_filter)  # records have another form
        else:
            super().action_wrap()

    def _meet(self, pods: Iterable[str]) -> None:
        """Give new pods their hue, and all pods distinguishable names."""
        new = [pod for pod in pods if pod not in self.hues]
        for pod in new:
            self.hues[pod] = HUES[len(self.hues) % len(HUES)]
        if new and self._prefix:
            short = {pod: pod.removeprefix(f"{self._run}-") for pod in self.hues}
            names = apart([*dict.fromkeys(short.values())], _PREFIX_MOST)
            self._names = {pod: names[name] for pod, name in short.items()}
            self._prefix = max(self._prefix, *map(len, self._names.values()))

    @property
    def dropped(self) -> int:
        """Number of received lines that were dropped since, displayed or not."""
        return self.received - len(self.store)

    @property
    def is_redrawing(self) -> bool:
        """True while lines have come that are not drawn yet."""
        return self._timer is not None

    @property
    def hidden(self) -> int:
        """Number of stored lines that the patterns hide."""
        return self.store.hidden

    def narrow(self, *, include: str | None = None, exclude: str | None = None) -> None:
        """Display only lines with a pattern and without another one, including existing lines.

        A full log is filtered in slices; the old patterns apply until the last one. A pattern that takes too long
        on the existing lines changes nothing, and is reported by ``PatternsRemoved``.

        Args:
            include, exclude: None keeps the pattern, empty removes it.

        Raises:
            re.error: a pattern is not a regular expression; nothing has changed.
        """
        old = self.log_filter
        patterns = old.include if include is None else include, old.exclude if exclude is None else exclude
        self._wanted = LogFilter(*patterns, old.json_as)
        self._narrow_on(self._wanted)

    def _narrow_on(self, log_filter: LogFilter) -> None:
        """Filter lines for a moment, and go on after the keys that came meanwhile."""
        if log_filter is not self._wanted:
            return
        try:
            is_done = self.store.narrow(log_filter, SLICE_SECONDS)
        except UsageError as error:
            self.is_filtering = False
            self.post_message(PatternsRemoved(str(error)))
            self.post_message(self.Changed())
            return
        self.is_filtering = not is_done
        if is_done:
            self._refill(LogFilter(log_filter.include, log_filter.exclude, self.log_filter.json_as))
        else:
            self.continue_soon(partial(self._narrow_on, log_filter))
            self.post_message(self.Changed())

    def _refill(self, log_filter: LogFilter) -> None:
        """Fill the ring again through another filter; the line at the top of the view stays roughly in place."""
        self.log_filter = log_filter
        top = self.ring.at(self.top_row)
        top_time = self.ring[top[0]].time if top else 0.0
        self.ring.clear()
        self.ring.json_as = log_filter.json_as
        lines = self._take_workers(self.store.displayed())
        if self._are_workers_apart is not self._were_apart:
            self._were_apart = self._are_workers_apart
            self._table = RecordTable()
            self._learn(lines)
        self._head()
        self._show_foot()
        self.ring.extend(log_filter.apply(lines, self.ring.table))
        self.log_search.forget()
        self._arrange()
        if not self.is_following:
            self._go(self.ring.row_of(self.ring.first_since(top_time)))
        if self.search:
            self._search_on(self.log_search, is_new=False)
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
        self.ring.extend(self.store.extend([entry])[1])
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
        self._show_foot()
        self._arrange()
        if self.dropped:
            self.post_message(self.Changed())
