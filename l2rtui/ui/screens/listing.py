"""What dialogs with rows share: keys of their own, the command that does the same, and one field to type into."""

from __future__ import annotations

from typing import ClassVar

from textual import events

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.keys import Place
from l2rtui.ui.link import Link
from l2rtui.ui.screens.dialog import Answer, Dialog
from l2rtui.ui.text import Span, Tone
from l2rtui.ui.widgets.field import Field
from l2rtui.ui.widgets.virtual_table import VirtualTable


class Listing(Dialog[Answer]):
    """Rows, a ``#command`` and a ``#hint`` under them, and a field that is there while something is asked.

    Args:
        table: What has the focus while nothing is typed.
    """

    PLACE: ClassVar[Place]
    """Whose keys it has."""
    FACES: ClassVar[tuple[str, ...]] = ()
    """Keys of its rows that are worth a word, before its own."""

    def __init__(self, name: str, link: Link, table: VirtualTable, field: Field) -> None:
        super().__init__(name)
        self._link = link
        self._table = table
        self._field = field

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  (Textual's)
        """Forbid what ``--readonly`` or missing rights forbid."""
        return None if self._link.forbidden(action) else True

    def on_key(self, event: events.Key) -> None:
        """Say why a forbidden key does nothing."""
        key = self._link.keys.pressed(event.key, self.PLACE)
        if key is not None and not self._field.display and (reason := self._link.forbidden(key.action)):
            self._link.background.say(f"{key.face} ({key.label}) is off: {reason}.")

    @property
    def _twin(self) -> str:
        """The command line that does the same; empty where there is none."""
        return ""

    def action_copy(self) -> None:
        """Copy the command line, if there is one."""
        if not self._twin:
            return
        self.app.copy_to_clipboard(self._twin)
        self._link.background.say(f"copied: {self._twin}")

    @property
    def _asking(self) -> str:
        """What the field is there for; empty while nothing is asked, or where the field says it itself."""
        return ""

    def _tell(self) -> None:
        """Show what goes with the row under the cursor: its command, and what is asked for or else the keys."""
        self.show("command", [(Span("same as  ", Tone.DIM), Span(sanitize(self._twin)))])
        faces = [f"{key.face} {key.label}" for key in self._link.keys.of(self.PLACE)]
        keys = Span("   ".join([*self.FACES, *faces, "c copy", "esc close"]), Tone.DIM)
        self.show("hint", [(Span(self._asking) if self._asking else keys,)])

    def _open_field(self, value: str = "") -> None:
        self._field.open(value)
        self._tell()

    def _close_field(self) -> None:
        self._field.close()
        self.set_focus(self._table)
        self._tell()

    def action_close(self) -> None:
        """The field first, then the dialog."""
        if self._field.display:
            self._close_field()
        else:
            self.dismiss(None)
