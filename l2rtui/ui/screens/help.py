"""All keys by place, made from the table."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from l2rtui.ui.keys import Place, keys_of
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone


class HelpScreen(Dialog[None]):
    """Every key and what it does."""

    def __init__(self, *, is_readonly: bool) -> None:
        super().__init__(id="help")
        self._is_readonly = is_readonly

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with VerticalScroll(id="body"):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Write the table down."""
        self.show("title", [(Span("Keys", Tone.STRONG), Span("   esc closes", Tone.DIM))])
        self.show("lines", help_lines(is_readonly=self._is_readonly))
        self.query_one("#body").focus()


def help_lines(*, is_readonly: bool) -> list[Line]:
    """The table as lines; keys that change something say when they are off."""
    lines: list[Line] = []
    for place in Place:
        lines.append((Span(f"{'' if not lines else chr(10)}{place}", Tone.ACCENT),))
        for key in keys_of(place):
            is_off = key.changes and is_readonly
            note = (Span("  off: --readonly", Tone.WARN),) if is_off else ()
            text = Span(key.tooltip, Tone.DIM if is_off else Tone.PLAIN)
            lines.append((Span(f"  {key.face:<12}", Tone.DIM if is_off else Tone.STRONG), text, *note))
    return lines
