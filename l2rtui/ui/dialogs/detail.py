"""Scrollable text on a separate screen: a description, a spec, the selection, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from l2rtui.ui.dialogs.body import REST, DialogBody
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.text import Line, Span, TextStyle, hanging


class DetailScreen(Dialog[None], inherit_bindings=False):
    """Lines about one object, as they were when the screen was opened."""

    FIRST: ClassVar = "#body"
    """Part with the focus: the scroll container, so that arrow keys scroll."""
    BINDINGS = bindings(KeyContext.TEXT)

    def __init__(self, lines: Sequence[Line], title: str = "Selection", *, name: str = "description") -> None:
        super().__init__(name)
        self._title = title
        self.lines = tuple(lines)

    def compose(self) -> ComposeResult:
        """Title and text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with DialogBody(id="body", classes=REST):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Show the lines."""
        self.show("title", [(Span(self._title, TextStyle.STRONG), Span("   esc closes", TextStyle.DIM))])
        self._break_lines()
        self.set_focus(self.query_one(self.FIRST))  # not focus(), which waits: letters may follow immediately

    def on_resize(self) -> None:
        """Wrap the lines again, once the widgets have their new widths."""
        self.call_after_refresh(self._break_lines)

    def _break_lines(self) -> None:
        # This may be called after the screen was closed and its widgets were removed.
        if self.query("#lines"):
            self.show("lines", self._rows)

    @property
    def _rows(self) -> list[Line]:
        """The lines wrapped to the current width."""
        width = self.query_one("#lines").size.width or self.app.size.width
        return [row for line in self.lines for row in hanging(line, width)]
