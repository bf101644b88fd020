"""What all dialogs share: a frame in the middle of the screen, esc to close, and their keys from the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

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
