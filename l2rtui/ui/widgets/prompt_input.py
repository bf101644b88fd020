"""Input field that is visible only while a question is open."""

from __future__ import annotations

from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.input import Selection


class PromptInput(Input):
    """Input that receives the letter typed right after the key that opens it."""

    def __init__(self, id: str, placeholder: str = "", suggester: Suggester | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id, placeholder=placeholder, suggester=suggester, select_on_focus=False)
        self.display = False

    def open(self, value: str = "") -> None:
        """Show and focus the field immediately, with its text selected, so that the first letter replaces it."""
        # Selected here: Textual's select_on_focus acts on the focus event, which may arrive after some letters.
        self.value = value
        self.selection = Selection(0, len(value))
        self.display = True
        # screen.set_focus(), not self.focus(): the latter waits for the next refresh, and letters typed until then
        # would be keys of the screen below.
        self.screen.set_focus(self)

    def close(self) -> None:
        """Hide the field and empty it."""
        self.display = False
        self.value = ""
