"""Following of a listing: a table that is repainted in place on a terminal, one line for each change in a pipe.

The first listing is printed in full, as changes of the kind ``added``. Removed objects are printed once more, as
``gone``. A lost watch is reported once, and opened again (``services.monitor``).
"""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Protocol

from msgspec.structs import replace

from l2rtui.cli.output import Output, StderrReporter
from l2rtui.cli.session import Session
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.errors import BackendError
from l2rtui.services.monitor import Monitor
from l2rtui.tables.column import Column, Document, View

_PERIOD_SECONDS = 0.25
"""Pause between two looks at a cluster that changes all the time."""
_TICK_SECONDS = 1.0
"""Time after which ages are repainted."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EVENT = Column("EVENT", "event")

Documents = Callable[[ClusterSnapshot], Awaitable[Sequence[Document]]]


class ListingWriter(Protocol):
    """Writer of a followed listing."""

    def show(self, documents: Sequence[Document], trouble: str) -> None:
        """Write the differences from the last call.

        Args:
            trouble: Reason why the documents may be old; empty if they are current.
        """


def writer_of(session: Session, view: View, key: str, volatile: frozenset[str] = frozenset()) -> ListingWriter:
    """Return a table that repaints if stdout is a terminal, otherwise a writer of lines."""
    out = session.out
    if out.is_screen and out.form in ("table", "wide"):
        return RepaintedTable(out, view)
    return ChangeLines(out, session.talk, view, key, volatile)


async def follow(session: Session, writer: ListingWriter, documents: Documents) -> int:
    """Show documents whenever the cluster changes, until the command is stopped.

    Raises:
        BackendError: the cluster cannot be read at all.
    """
    monitor = Monitor(session.backend, period_seconds=_PERIOD_SECONDS)
    watch = asyncio.ensure_future(monitor.run())
    try:
        while True:
            await _changed(monitor, watch)
            if monitor.heard_at is not None:
                writer.show(await documents(monitor.snapshot), _trouble(monitor))
            elif monitor.error:  # later failures are retried: a first failure is for the caller
                raise BackendError(monitor.error)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _changed(monitor: Monitor, watch: asyncio.Future[None]) -> None:
    """Wait until an object has changed, or ages have."""
    if watch.done():
        watch.result()  # a bug in the monitor must not look like a quiet cluster
    with suppress(TimeoutError):
        async with asyncio.timeout(_TICK_SECONDS), aclosing(monitor.updates()) as updates:
            await anext(updates)
            # Not the pause after each update, which closing the generator skips: this one limits the rate.
            await asyncio.sleep(_PERIOD_SECONDS)


def _trouble(monitor: Monitor) -> str:
    if monitor.error:
        return f"the watch is lost, the list is out of date: {monitor.error}"
    since = monitor.snapshot.silent_since
    if since is not None:
        return f"no answer since {time.strftime('%H:%M:%S', time.localtime(since))}: the list is as old"
    return "; ".join(monitor.snapshot.problems)


class ChangeLines:
    """One line for each new, changed or removed object."""

    def __init__(
        self, out: Output, talk: StderrReporter, view: View, key: str, volatile: frozenset[str] = frozenset()
    ) -> None:
        self._out = out
        self._talk = talk
        self._cells = view
        self._view = replace(view, columns=(_EVENT, *view.columns))
        self._key = key
        self._volatile = volatile
        self._last: dict[str, tuple[object, Document]] | None = None
        self._documents: Sequence[Document] | None = None
        self._trouble = ""

    def show(self, documents: Sequence[Document], trouble: str) -> None:
        """Write a line for each difference."""
        if documents is self._documents and trouble == self._trouble:
            return
        self._documents = documents
        if trouble != self._trouble:
            self._talk.say(f"warning: {trouble}" if trouble else "The list is up to date again.")
            self._trouble = trouble
        now = {str(document[self._key]): (self._signature(document), document) for document in documents}
        if self._last is None:
            self._out.start_stream(self._view, [{**document, "event": "added"} for document in documents])
            last: dict[str, tuple[object, Document]] = {}
        else:
            last = self._last
        for key, (signature, document) in now.items():
            before = last.get(key)
            if before is None or before[0] != signature:
                self._write(document, "added" if before is None else "changed")
        for key, (_, document) in last.items():
            if key not in now:
                self._write(document, "gone")
        self._last = now

    def _write(self, document: Document, event: str) -> None:
        self._out.stream_one(self._view, {**document, "event": event})

    def _signature(self, document: Document) -> object:
        """Return the values whose change produces a line: fields, or for a table the displayed cells."""
        if self._out.form in ("table", "wide"):
            return self._out.stable_cells(self._cells, document)
        return {name: value for name, value in document.items() if name not in self._volatile}


class RepaintedTable:
    """Table on a terminal that is repainted in place; rows that do not fit are counted below it."""

    def __init__(self, out: Output, view: View) -> None:
        self._out = out
        self._view = view
        self._painted: list[str] = []

    def show(self, documents: Sequence[Document], trouble: str) -> None:
        """Repaint the table if anything differs."""
        columns, rows = shutil.get_terminal_size()
        # At the last column the cursor stays on its character, and clearing the rest of the line would remove it.
        columns = max(1, columns - 1)
        room = max(1, rows - 3)  # room for the header, the notes, and the line of the cursor
        lines = self._out.table_lines(self._view, documents[:room], columns)
        notes = [f"▲ {sanitize(trouble)}"] if trouble else []
        notes += [f"… {len(documents) - room} more: a taller terminal shows them"] if len(documents) > room else []
        if notes:
            lines.append(" · ".join(notes)[:columns])
        if lines == self._painted:
            return
        # A narrower terminal has wrapped the painted lines: the cursor must move up over all of their rows.
        height = sum(max(1, math.ceil(len(_COLOUR.sub("", line)) / (columns + 1))) for line in self._painted)
        climb = f"\x1b[{height}A" if height else ""
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        # Without automatic wrap a double-width character at the edge cannot change the number of rows.
        self._out.stream.write(f"\x1b[?7l{climb}\r{body}\x1b[J\x1b[?7h")
        self._out.stream.flush()
        self._painted = lines
