"""Dialog over the home screen while another context is being opened."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.text import Span, TextStyle


class ConnectingScreen(Dialog[bool]):
    """Notice that returns True at the end of the attempt, and None when the user cancels it.

    It is modal because a question opened during the attempt would name one context and act on the other.
    """

    def __init__(self, where: str) -> None:
        super().__init__("connecting")
        self._where = where

    def compose(self) -> ComposeResult:
        """Yield the title and a line about esc."""
        with Vertical(classes="dialog"):
            yield Static(id="title")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Show the name of the context."""
        self.show("title", [(Span("◌ ", TextStyle.WAIT), Span(f"Connecting to {sanitize(self._where)}."))])
        self.show("hint", [(Span("The present view stays until it answers.   esc gives up", TextStyle.DIM),)])
