"""Choice of a name from a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.body import REST, DialogChoices
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.span_renderer import to_text

PRESENT: Final = "●"


class ChoiceScreen(Dialog[str | None]):
    """List that returns the chosen name; current names are marked, and the cursor starts at the first of them.

    Args:
        notes: Texts shown after names.
    """

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        present: Sequence[str] = (),
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__("menu")
        self._title = title
        self._names = tuple(names)
        self._present = frozenset(present)
        self._notes = notes

    def compose(self) -> ComposeResult:
        """Title and list."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield DialogChoices(id="choices", classes=REST, compact=True)

    def on_mount(self) -> None:
        """Fill the list."""
        hint = Span("   enter chooses   esc closes", TextStyle.DIM)
        self.show("title", [(Span(self._title, TextStyle.STRONG), hint)])
        choices = self.query_one("#choices", OptionList)
        width = max(map(len, self._names), default=0) if self._notes else 0
        for name in self._names:
            mark = Span(f"{PRESENT if name in self._present else ' '} ")
            note = Span(f"   {sanitize(self._notes.get(name, ''))}".rstrip(), TextStyle.DIM)
            choices.add_option(Option(to_text(self.app, [(mark, Span(f"{sanitize(name):<{width}}"), note)])))
        choices.highlighted = next((number for number, name in enumerate(self._names) if name in self._present), 0)
        choices.focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[event.option_index])

    def action_accept(self) -> None:
        """Choose the highlighted name, as enter does."""
        self.query_one("#choices", OptionList).action_select()
