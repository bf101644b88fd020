"""One to four logs side by side. The first follows the selection; the others stay on the log they were opened
with.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.containers import Container

from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.ui.home.log_stream import LogSelection, LogStream
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.log_ring import JsonMode

MAX_PANES: Final = 4
NARROWEST: Final = 56
LOWEST: Final = 6
"""Columns and lines below which a log is hard to read."""
SINCE: Final = (
    (None, ""),
    (60.0, "last 1m"),
    (300.0, "last 5m"),
    (900.0, "last 15m"),
    (1800.0, "last 30m"),
    (3600.0, "last 1h"),
    (86_400.0, "last 1d"),
)
"""Time spans in key order: seconds, and the text in the title."""


class LogController:
    """One log pane, the stream that fills it, and the options of that stream.

    Attributes:
        since: Index into ``SINCE``.
        is_previous: Show the log of the previous process.
    """

    def __init__(self, ctx: AppContext, number: int) -> None:
        self.pane = LogPane(id="log" if number == 0 else f"log-{number}")
        self.stream = LogStream(ctx, self.pane)
        self.since = 0
        self.is_previous = False

    @property
    def selection(self) -> LogSelection:
        """Pods whose log is shown."""
        return self.stream.selection

    def show(self, selection: LogSelection) -> None:
        """Show the log of these pods with the current options."""
        if selection.key != self.selection.key:  # "previous process" was chosen for the pods of the other log
            self.is_previous = False
        seconds, _ = SINCE[self.since]
        self.stream.show(replace(selection, is_previous=self.is_previous, since_seconds=seconds))

    def add_pods(self, pods: tuple[PodView, ...]) -> None:
        """Follow pods started after this log was opened, too."""
        self.stream.show(replace(self.selection, pods=pods))

    def reload(self) -> None:
        """Read the log again after an option has changed."""
        if self.selection.pods:
            self.show(self.selection)

    @property
    def _progress(self) -> str:
        """Part of the title that says whether more lines are expected."""
        if self.selection.is_previous:
            return "previous"
        if not self.pane.is_following:
            return "▲ stopped, f follows"
        return "following" if self.stream.is_open else "ended"

    def facts(self) -> list[str]:
        """Return the parts of the title; some are empty."""
        pane, selection, log_filter = self.pane, self.selection, self.pane.log_filter
        if not selection.key:
            return []
        _, since = SINCE[self.since]
        return [
            sanitize(selection.title),
            counted(len(selection.pods), "pod") if selection.is_merged else "",
            self._progress,
            "wrapping …" if pane.is_arranging else "wrapped" if pane.is_wrapping else "",
            "filtering …" if pane.is_filtering else "",
            since,
            pane.search_fact,
            f"&{sanitize(log_filter.include)}" if log_filter.include else "",
            f"!{sanitize(log_filter.exclude)}" if log_filter.exclude else "",
            f"json {log_filter.json_as}" if log_filter.json_as is not JsonMode.TABLE else "",
            f"{pane.hidden:,} hidden" if log_filter.include or log_filter.exclude else "",
            f"{pane.dropped:,} oldest dropped" if pane.dropped else "",
            *pane.constants,
        ]


class LogPanes(Container):
    """Logs from left to right, or in two rows if that leaves more space for text.

    Attributes:
        controllers: One for each pane; the first always exists and follows the selection.
    """

    def __init__(self, ctx: AppContext) -> None:
        super().__init__(id="logs")
        self.styles.grid_size_columns = 1
        self._ctx = ctx
        self.controllers: list[LogController] = [LogController(ctx, 0)]
        self._active = self.controllers[0]
        self._num_created = 1  # numbers are not reused: a pane that is being removed still has its id

    def compose(self) -> ComposeResult:
        """Yield the panes."""
        for log in self.controllers:
            yield log.pane

    def on_resize(self) -> None:
        """Arrange the panes for the new size."""
        self.fit()

    def fit(self) -> None:
        """Arrange the panes in columns wide enough to read, as long as their rows are high enough."""
        number = sum(bool(log.pane.display) for log in self.controllers)
        rows_wanted = -(-number // max(1, self.size.width // NARROWEST))
        rows = max(1, min(rows_wanted, self.size.height // LOWEST))
        self.styles.grid_size_columns = -(-number // rows)

    @property
    def active(self) -> LogController:
        """The log that has the focus, or had it last."""
        self._active = self._focused or self._active
        return self._active

    @property
    def _focused(self) -> LogController | None:
        # Read from the screen: the pane's Focus event arrives after keys that were pressed since.
        focused = self.screen.focused if self.is_attached else None
        return next((log for log in self.controllers if log.pane is focused), None)

    def follow(self, selection: LogSelection) -> None:
        """Show the log of a new selection in the first pane.

        A free slot, or a run without pods, has no log: the shown one stays.
        """
        if selection.pods:
            self.controllers[0].show(selection)

    def split(self) -> LogController | None:
        """Open another pane with the log of the focused one, or of the first; return None if four are open."""
        if len(self.controllers) >= MAX_PANES:
            return None
        source = self._focused or self.controllers[0]
        log = LogController(self._ctx, self._num_created)
        self._num_created += 1
        self.controllers.append(log)
        self.mount(log.pane)
        self.fit()
        log.since, log.is_previous = source.since, source.is_previous
        if source.selection.pods:
            log.stream.show(source.selection)
        self._active = log
        return log

    def show_alone(self, log: LogController | None) -> None:
        """Show one log and hide the others; None shows all."""
        for other in self.controllers:
            other.pane.display = log is None or other is log
        self.fit()

    def close(self, log: LogController) -> bool:
        """Close a log; return False for the last one, which stays."""
        if len(self.controllers) == 1:
            return False
        log.stream.stop()  # first: a stream must not write into a pane that is being removed
        self.controllers.remove(log)
        log.pane.remove()
        self.fit()
        self._active = self.controllers[0]
        return True
