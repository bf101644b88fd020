"""A line to type into that is there while something is asked."""

from __future__ import annotations

from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.input import Selection


class Field(Input):
    """An input that takes the letter right after the key that opens it."""

    def __init__(self, id: str, placeholder: str = "", suggester: Suggester | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id, placeholder=placeholder, suggester=suggester, select_on_focus=False)
        self.display = False

    def open(self, value: str = "") -> None:
        """Be there, at once. What stands there already is selected: the first letter takes its place.

        Textual selects when it tells a widget of its focus, which may be after some letters.
        """
        self.value = value
        self.selection = Selection(0, len(value))
        self.display = True
        self.screen.set_focus(self)

    def close(self) -> None:
        """Be gone."""
        self.display = False
        self.value = ""
