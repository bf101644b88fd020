"""Dialog over the home screen while another context is connected to."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.text import Span, TextStyle


class ConnectingScreen(Dialog[bool]):
    """Notice that answers True at the end of the attempt, and None when the user gives it up.

    It is modal for a reason: a question that is opened meanwhile would name one context and act on the other.
    """

    def __init__(self, where: str) -> None:
        super().__init__("connecting")
        self._where = where

    def compose(self) -> ComposeResult:
        """Yield the title and what esc does."""
        with Vertical(classes="dialog"):
            yield Static(id="title")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Show where it goes."""
        self.show("title", [(Span("◌ ", TextStyle.WAIT), Span(f"Connecting to {sanitize(self._where)}."))])
        self.show("hint", [(Span("The present view stays until it answers.   esc gives up", TextStyle.DIM),)])
