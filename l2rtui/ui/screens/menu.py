"""What can be done, as a list with the command line of each; made from the table of keys."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.keys import Key, Place
from l2rtui.ui.link import Link
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Span, Tone
from l2rtui.ui.widgets.paint import text_of


class MenuScreen(Dialog[str | None]):
    """Answers with the action that was chosen.

    Args:
        twin: The command line that does what an action does, for the selection; empty where there is none.
    """

    def __init__(self, link: Link, twin: Callable[[str], str]) -> None:
        super().__init__("menu")
        self._link = link
        self._twin = twin
        self._keys: tuple[Key, ...] = tuple(key for key in link.keys.of(Place.CLUSTER) if key.label)

    def compose(self) -> ComposeResult:
        """One list."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield OptionList(id="choices", compact=True)

    def on_mount(self) -> None:
        """Write the keys down."""
        self.show(
            "title", [(Span("Menu", Tone.STRONG), Span("   enter does it   c copies   esc closes", Tone.DIM))]
        )
        choices = self.query_one("#choices", OptionList)
        for key in self._keys:
            reason = self._link.forbidden(key.action)
            twin = f"off: {reason}" if reason else self._twin(key.action)
            line = (
                Span(f"{key.face:<8}", Tone.DIM if reason else Tone.ACCENT),
                Span(f"{key.tooltip:<56}", Tone.DIM if reason else Tone.PLAIN),
                Span(sanitize(twin), Tone.DIM),
            )
            choices.add_option(Option(text_of(self.app, [line]), id=key.id, disabled=bool(reason)))
        choices.highlighted = 0
        choices.focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(next(key.action for key in self._keys if key.id == event.option.id))

    def action_accept(self) -> None:
        """As enter."""
        self.query_one("#choices", OptionList).action_select()

    def action_copy(self) -> None:
        """Copy the command line of the highlighted entry."""
        number = self.query_one("#choices", OptionList).highlighted
        twin = self._twin(self._keys[number].action) if number is not None else ""
        if twin:
            self.app.copy_to_clipboard(twin)
        self._link.background.say(f"copied: {twin}" if twin else "There is no command line for this.")
