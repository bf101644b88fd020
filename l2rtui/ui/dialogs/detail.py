"""Everything that is known of one thing, on a screen of its own: a description, a spec, the selection."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone


class DetailScreen(Dialog[None]):
    """Lines about one thing, as they were when it was opened."""

    def __init__(self, lines: Sequence[Line], title: str = "Selection") -> None:
        super().__init__("description")
        self._title = title
        self._lines = tuple(lines)

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with VerticalScroll(id="body"):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Write the lines down."""
        self.show("title", [(Span(self._title, Tone.STRONG), Span("   esc closes", Tone.DIM))])
        self.show("lines", self._lines)
        self.query_one("#body").focus()
