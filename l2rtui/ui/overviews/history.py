"""History: past runs with their outcome and curves; one record in full, how two differ, and an exact relaunch."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from l2rtui.domain.curves.chart import grouped
from l2rtui.domain.history import ID_CHARS, HistoryEntry, RunOutcome
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.domain.workload import numbered
from l2rtui.errors import L2RError
from l2rtui.services.curves import MAX_RUNS
from l2rtui.services.history.endings import recorded_curve
from l2rtui.tables.history import RUNS
from l2rtui.ui.dialogs.dialog import DetailScreen
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.overviews.overview import Look, Overview, trend_cell
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.widgets.table_model import Row, columns_of, row_of

if TYPE_CHECKING:
    from l2rtui.services.history.store import HistoryStore

_FAULTS: Final = (RunOutcome.FAILED, RunOutcome.LOST)
_DIFF_STYLES: Final = {"+": TextStyle.OK, "-": TextStyle.BAD, "@": TextStyle.ACCENT}
_PAIR: Final = 2
_TRENDS: Final = 100
"""Newest runs whose trend is shown: each is read from the compressed end of its record."""
_LABEL: Final = re.compile(r"[\w-]+: +(?=\S)")
_T = TypeVar("_T")


class HistoryScreen(Overview):
    """Past runs, newest first; enter shows a record."""

    KEY_CONTEXT = KeyContext.HISTORY
    BINDINGS = bindings(KEY_CONTEXT)
    ROW_HINTS = ("enter show", "space mark", ". , sort")
    ROW_ACTIONS = frozenset(("diff", "repeat", "change"))
    _subject = "the history"

    def __init__(self, ctx: AppContext, look: Callable[[], Look], filter_text: str = "") -> None:
        super().__init__("History", ctx, columns_of(RUNS), filter_text)
        self._look = look
        self._state: object = None
        self._is_complete = False
        self._changed_run = ""

    async def _load(self) -> None:
        try:
            await self._show_changes()
            if not self._is_complete:
                # Only once: a user who opens the history wants ends that no app has recorded yet, and runs of
                # others.
                self._is_complete = True
                await _complete(self._ctx)
                await self._show_changes()
        except L2RError as error:
            if self.is_open:
                self._show_error(error)

    async def _show_changes(self) -> None:
        """Show the rows, unless the file is unchanged: ten thousand rows cost a quarter of a second."""
        state = await asyncio.to_thread(file_state)
        if state == self._state:
            return
        rows = await asyncio.to_thread(_rows)
        self._state = state
        if self.is_open:
            self._show_rows(rows, empty="No run has been recorded yet. L on the home screen launches one.")

    @property
    def _command_line(self) -> str:
        if len(self._table.marked) == _PAIR:
            return self._ctx.command_line(("diff", *(key[:ID_CHARS] for key in self._in_order(self._table.marked))))
        key = self._table.cursor_key
        return self._ctx.command_line(("history", *(("show", key[:ID_CHARS]) if key else ())))

    # --- curves ------------------------------------------------------------------------------------------------
    @property
    def _snapshot(self) -> ClusterSnapshot:
        return self._look().snapshot

    def _runs_of(self, keys: set[str]) -> list[RunView]:
        return [run for uid, run in self._snapshot.runs.items() if uid in keys]

    def _show_curves(self) -> None:
        """Show the live curves of existing runs, and the recorded curves of others."""
        chosen = self._chosen
        if not chosen or len(self._runs_of(chosen)) == len(chosen):
            super()._show_curves()
            return
        work = self._show_past(self._in_order(chosen)[-MAX_RUNS:])
        self._ctx.background.start(work, group="past curves", what="the curves", is_exclusive=True)

    # Exclusive: a slow read of an earlier row must not replace the curves of this one.
    async def _show_past(self, run_ids: Sequence[str]) -> None:
        curves = await _read(lambda store: [recorded_curve(store.get(run_id)) for run_id in run_ids])
        if self.is_open:
            runs = self._snapshot.runs
            curves = [
                replace(curve, curve=self._ctx.curves.of(uid)) if uid in runs else curve
                for uid, curve in zip(run_ids, curves, strict=True)
            ]
            self._show_charts(is_shown=True)
            self._charts.show(grouped(curves, by_experiment=self._charts.is_grouped))
            self._title_charts()

    def _in_order(self, keys: set[str]) -> list[str]:
        """Return marked runs, the older first: a difference reads from old to new."""
        rows = self._table.model.rows
        return sorted(keys & rows.keys(), key=lambda key: rows[key].sort[3])

    # --- one and two records -----------------------------------------------------------------------------------
    def _open_row(self, key: str) -> None:
        self._ctx.background.start(self._show(key), group="history", what="the record", is_exclusive=True)

    async def _show(self, run_id: str) -> None:
        from l2rtui.services.history.lookup import record_lines

        def describe(store: HistoryStore) -> tuple[str, list[str]]:
            record = store.get(run_id)
            return sanitize(f"{record.entry.run} ({run_id[:ID_CHARS]})"), list(record_lines(record))

        title, lines = await _read(describe)
        if self.is_current:
            self.app.push_screen(DetailScreen([_labelled(line) for line in lines], title))

    def action_diff(self) -> None:
        """Show the difference between the two marked runs, or between the marked one and the one under the
        cursor.
        """
        marked = set(self._table.marked)
        if len(marked) == 1 and self._table.cursor_key is not None:
            marked.add(self._table.cursor_key)
        if len(marked) != _PAIR:
            self._ctx.background.say("Mark two runs with space; the difference of them is shown.")
            return
        work = self._show_difference(*self._in_order(marked))
        self._ctx.background.start(work, group="history", what="the difference", is_exclusive=True)

    async def _show_difference(self, first: str, second: str) -> None:
        from l2rtui.domain.history import unified
        from l2rtui.services.history.lookup import compared

        def differ(store: HistoryStore) -> list[str]:
            records = store.get(first), store.get(second)
            titles = (f"{record.entry.run} ({record.entry.run_id[:ID_CHARS]})" for record in records)
            return list(unified(*compared(*records), *titles))

        lines = await _read(differ)
        if self.is_current:
            self.app.push_screen(DetailScreen([_coloured(line) for line in lines], "Difference"))

    def action_repeat(self) -> None:
        """Plan a launch exactly as the run was; it is refused if something of it is no longer available."""
        if key := self._table.cursor_key:
            self._ctx.background.start(self._repeat(key), group="plan", what="launching again", is_exclusive=True)

    def action_change(self) -> None:
        """Ask for settings, and plan a launch as the run was with these."""
        if key := self._table.cursor_key:
            self._changed_run, self._asks_filter = key, False
            self._ask("Which settings? gamma=0.9 train.num_envs=8   enter plan   esc back")

    def _answered(self, text: str) -> None:
        try:
            changes = tuple(shlex.split(text))
        except ValueError:
            self._ctx.background.say("A quote is not closed.", is_error=True)
            return
        work = self._repeat(self._changed_run, changes)
        self._ctx.background.start(work, group="plan", what="launching again", is_exclusive=True)

    async def _repeat(self, run_id: str, changes: tuple[str, ...] = ()) -> None:
        from l2rtui.services import launcher
        from l2rtui.services.history.again import exact_launch
        from l2rtui.ui.dialogs.review import show_plan

        backend = self._ctx.backend
        exact = await _read(lambda store: exact_launch(backend, store.get(run_id), changes=changes))
        words = ["launch", "--like", run_id[:ID_CHARS]]
        spec = exact.spec
        if changes:  # another run: both may be there
            runs = (await backend.snapshot()).runs.values()
            used = {text for run in runs for text in (run.name, run.experiment)}
            name = next(name for name in numbered(spec.name) if name not in used)
            words += [word for change in changes for word in ("--with", change)]
            if name != spec.name:
                spec, words = replace(spec, name=name), [*words, "--name", name]
        prepared = await launcher.prepare_runs(backend, [spec], notes=exact.notes)
        command = self._ctx.command_line(words)

        def reviewed(launched: tuple[str, ...] | None) -> None:
            if launched:
                self.dismiss(None)

        if self.is_current:
            show_plan(self, self._ctx, prepared, command, reviewed)


def _labelled(line: str) -> Line:
    """Return a line of a record; the rest of a long value is aligned below the value, not below the name."""
    label = _LABEL.match(line)
    return (Span(line),) if label is None else (Span(label[0], TextStyle.DIM), Span(line[label.end() :]))


def _coloured(line: str) -> Line:
    return (Span(sanitize(line), _DIFF_STYLES.get(line[:1], TextStyle.PLAIN)),)


def history_row(entry: HistoryEntry, returns: Sequence[float] = ()) -> Row:
    """Make the row of a run; ``returns`` is its recorded curve."""
    trend = trend_cell([returns], entry.final_return)
    return row_of(RUNS, entry.run_id, entry, is_fault=entry.state in _FAULTS, trend=trend)


# --- the file, in a thread -------------------------------------------------------------------------------------
async def _complete(ctx: AppContext) -> None:
    from l2rtui.services.history.completion import complete_ended
    from l2rtui.services.history.sharing import receive

    try:
        await receive(ctx.backend)
    finally:
        await complete_ended(ctx.backend)


async def _read(work: Callable[[HistoryStore], _T]) -> _T:
    from l2rtui.services.history.store import HistoryStore

    def reading() -> _T:
        with HistoryStore() as store:
            return work(store)

    return await asyncio.to_thread(reading)


def _rows() -> list[Row]:
    from l2rtui.services.history.store import HistoryStore

    with HistoryStore() as store:
        entries = store.entries()
        return [
            history_row(entry, store.returns(entry.run_id) if number < _TRENDS else ())
            for number, entry in enumerate(entries)
        ]


def file_state() -> object:
    """Return a value that changes with every write to the history."""
    from l2rtui.services.history.store import history_path

    path = history_path()
    files = (path, path.with_name(f"{path.name}-wal"))
    states = []
    for file in files:
        # SQLite removes its log when the last connection closes. Of any other error the store tells.
        with suppress(OSError):
            status = file.stat()
            states.append((status.st_mtime_ns, status.st_size))
    return states
