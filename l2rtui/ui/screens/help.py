"""All keys by place, made from the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from l2rtui.ui.commands import COMMANDS
from l2rtui.ui.keys import KeyTable, Place
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone

_FILTERS: Final = (
    ("word  !word", "Appears somewhere in the row, or nowhere"),
    ("status=Failed  node!=n1", "A column is this, or is not"),
    ("model~A100  pod!~eval", "A column contains this, or does not"),
    ("free>=2  age<2h  memory>64Gi", "A column's number, age or size"),
)
GREYED: Final = (Place.CLUSTER, Place.SIMULATOR, Place.VOLUME, Place.IMAGE, Place.ARTIFACT)
"""Where a key that may not be used says why."""


class HelpScreen(Dialog[None]):
    """Every key and what it does."""

    def __init__(self, keys: KeyTable, may: Callable[[str], str] = lambda _: "") -> None:
        super().__init__("help")
        self._keys = keys
        self._may = may

    def compose(self) -> ComposeResult:
        """One scrolling text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with VerticalScroll(id="body"):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Write the table down."""
        self.show("title", [(Span("Keys", Tone.STRONG), Span("   esc closes", Tone.DIM))])
        self.show("lines", help_lines(self._keys, self._may))
        self.query_one("#body").focus()


def help_lines(keys: KeyTable, may: Callable[[str], str]) -> list[Line]:
    """The tables of keys and commands as lines.

    Args:
        may: Says of an action why it is off; such keys say it, too.
    """
    lines: list[Line] = []
    for place in Place:
        lines.append((Span(f"{'' if not lines else chr(10)}{place}", Tone.ACCENT),))
        for key in keys.of(place):
            reason = may(key.action) if key.place in GREYED else ""
            note = (Span(f"  off: {reason}", Tone.WARN),) if reason else ()
            text = Span(key.tooltip, Tone.DIM if reason else Tone.PLAIN)
            lines.append((Span(f"  {key.face:<12}", Tone.DIM if reason else Tone.STRONG), text, *note))
    lines.append((Span("\nCommands, after :", Tone.ACCENT),))
    for one in COMMANDS:
        words = f"{one.name} {one.takes}"
        lines.append((Span(f"  {words:<28}", Tone.STRONG), Span(one.tooltip)))
    lines.append((Span("\nFilters", Tone.ACCENT),))
    lines += [(Span(f"  {form:<28}", Tone.STRONG), Span(meaning)) for form, meaning in _FILTERS]
    return lines
