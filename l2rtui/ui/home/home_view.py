"""Shared parts of the home screen that its actions work on."""

from __future__ import annotations

from typing import Final

from textual.screen import Screen

from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.ui.home.content import PaneContent
from l2rtui.ui.home.layout import LISTS, PaneLayout
from l2rtui.ui.home.log_panes import LogController
from l2rtui.ui.home.pane_sizes import PaneSizes
from l2rtui.ui.home.selection import Pane, Selection
from l2rtui.ui.state.app_context import AppContext


class HomeView:
    """The panes, their content, and the navigation between them.

    The screen owns one of these and one object for each group of actions; the actions get it instead of the screen.
    """

    def __init__(self, screen: Screen[None], ctx: AppContext) -> None:
        self.screen = screen
        self.ctx = ctx
        self.panes = PaneLayout(screen, ctx)
        self.sizes = PaneSizes(self.panes, ctx)
        self.content = PaneContent(self.panes, ctx)
        self.navigation = Navigation(self.panes, self.content, ctx)

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The newest snapshot."""
        return self.content.snapshot

    @property
    def selection(self) -> Selection:
        """Positions of the cursors at this moment."""
        return self.panes.selection

    @property
    def selected_run(self) -> RunView | None:
        """The selected run, or the run of the selected pod or slot."""
        return self.selection.run(self.snapshot)

    @property
    def selected_pod(self) -> PodView | None:
        """The selected pod, or the one on the selected slot."""
        return self.selection.pod(self.snapshot)

    def say(self, sentence: str, *, is_error: bool = False) -> None:
        """Show a sentence for a few seconds."""
        self.ctx.background.say(sentence, is_error=is_error)


MAX_HISTORY: Final = 50


class Navigation:
    """Actions that show a pane and give it the focus."""

    def __init__(self, panes: PaneLayout, content: PaneContent, ctx: AppContext) -> None:
        self._panes = panes
        self._content = content
        self._ctx = ctx
        self._history: tuple[Pane, ...] = (Pane.RUNS,)
        self._position = 0

    def go_to(self, pane: Pane) -> None:
        """Show a pane if it is hidden, and focus it."""
        if pane in LISTS:
            self._panes.show_list(pane)
        if self._panes.zoomed is not None:
            self.zoom(pane)
        # Before the focus: the next key may act on the row under the cursor, so the rows must be current.
        self._content.show_view(pane)
        self._panes.focus(pane)

    def open(self, pane: Pane) -> None:
        """Focus a pane and load its content if that is loaded on demand."""
        self.go_to(pane)
        self._content.load(pane)

    def zoom(self, pane: Pane | None) -> None:
        """Fill the screen with a pane, or show all panes again with None; an attached log is closed."""
        if pane is not Pane.LOG:
            self._panes.detach()
        self._panes.show_zoomed(pane)
        self._content.titles.show()

    def attach(self, log: LogController) -> None:
        """Fill the screen with one log until esc closes it and its pane."""
        self._panes.attach(log)
        self.zoom(Pane.LOG)
        self._panes.focus_log(log)

    def split_log(self) -> LogController | None:
        """Open another log pane; if four are open, say so and return None."""
        log = self._panes.logs.split()
        if log is None:
            self._ctx.background.say("Four panes are open; x in a pane closes it.")
        return log

    def action_pane(self, pane: str) -> None:
        """Focus a pane, and add it to the history."""
        target = Pane(pane)
        if target is not self._history[self._position]:
            self._history = (*self._history[: self._position + 1], target)[-MAX_HISTORY:]
            self._position = len(self._history) - 1
        self.open(target)

    def action_history(self, by: int) -> None:
        """Go to the previous or next view in the history."""
        if 0 <= self._position + by < len(self._history):
            self._position += by
            self.open(self._history[self._position])
        else:
            self._ctx.background.say("There is no other view in that direction.")

    def action_toggle_view(self) -> None:
        """Switch to the last view, and back."""
        if self._position:
            self.action_pane(self._history[self._position - 1])
        else:
            self._ctx.background.say("There is no view before this one.")

    def action_next_pane(self, by: int) -> None:
        """Focus the next visible pane, or with -1 the previous one; each log pane counts."""
        panes = self._panes
        visible = [Pane.SLOTS, Pane.RUNS, panes.lower, Pane.LOG]
        current = panes.focused_pane or panes.selection.pane
        logs = [log.pane for log in panes.logs.controllers]
        log_number = logs.index(panes.log_pane)
        if current is Pane.LOG and 0 <= log_number + by < len(logs):
            panes.screen.set_focus(logs[log_number + by])
            return
        position = visible.index(current) if current in visible else 1
        self.action_pane(visible[(position + by) % len(visible)])

    def action_zoom(self) -> None:
        """Fill the screen with the focused pane, or show all panes again."""
        current = self._panes.focused_pane or self._panes.selection.pane
        self.zoom(None if self._panes.zoomed is not None else current)
