"""Shared parts of the home screen that its actions work on."""

from __future__ import annotations

from textual.screen import Screen

from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.ui.home.content import PaneContent
from l2rtui.ui.home.layout import PaneLayout
from l2rtui.ui.home.navigation import Navigation
from l2rtui.ui.home.pane_sizes import PaneSizes
from l2rtui.ui.home.selection import Selection
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
