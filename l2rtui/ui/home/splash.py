"""Splash screen: the first frame with name, context and keys, painted before the home screen is imported.

Its lines are at the same positions as on the home screen, so that nothing jumps when it is replaced.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from l2rtui.ui.keys.table import KeyContext, KeyTable, in_bar
from l2rtui.ui.state.connection_status import ConnectionStatus, name_of, right_of
from l2rtui.ui.widgets.bars import Choice, KeyBar, SplitLine


class SplashScreen(Screen[None]):
    """First and last line of the home screen, shown for some tenths of a second."""

    def __init__(self, health: ConnectionStatus, keys: KeyTable) -> None:
        super().__init__()
        self._line, self._bar = SplitLine(), KeyBar()
        self._line.show(name_of(health), right_of((), health))
        self._bar.choices = tuple(Choice(key) for key in in_bar(keys.of(KeyContext.CLUSTER)))

    def compose(self) -> ComposeResult:
        """Yield the first line and the last."""
        yield self._line
        yield Container(id="body")
        yield self._bar
