"""What all dialogs share: a frame in the middle of the screen, esc to close, and their keys from the table.

Keys may come faster than screens: a dialog may be asked for again while it is still being taken away, and answered
before it has been put together. Neither breaks anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.text import Line
from l2rtui.ui.widgets.paint import text_of

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A modal screen; nothing under it gets a key."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.DIALOG)]
    AUTO_FOCUS = None

    def __init__(self, name: str) -> None:
        """Have a name for the style sheet: a class and no id, since for a moment there may be two of a kind."""
        super().__init__(classes=name)

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        """Answer and go, once; what was answered too early is answered as soon as everything is there."""
        if not self.is_mounted:
            self.call_later(self._answer, result)
        elif self in self.app.screen_stack:
            return super().dismiss(result)
        return AwaitComplete()

    def _answer(self, result: Answer | None) -> None:
        self.dismiss(result)  # not handed on: a screen cannot wait for its own end

    def show(self, id: str, lines: Sequence[Line]) -> None:  # noqa: A002  (Textual's name)
        """Put lines into the Static with this id."""
        self.query_one(f"#{id}", Static).update(text_of(self.app, lines))

    def action_accept(self) -> None:
        """Yes; a dialog without a question has none."""

    def action_copy(self) -> None:
        """Copy the command line; a dialog without one has nothing to copy."""

    def action_close(self) -> None:
        """No, or enough seen."""
        self.dismiss(None)
