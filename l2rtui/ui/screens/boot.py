"""The first frame: name, context and keys, painted before anything of the cluster screen has been imported.

What it shows stands where the cluster screen has it, so that screen takes its place without a jump. Keys that are
pressed meanwhile are kept for it.
"""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from l2rtui.ui.health import Health, name_of, right_of
from l2rtui.ui.keys import KeyTable, Place
from l2rtui.ui.widgets.ends import Ends
from l2rtui.ui.widgets.key_bar import Choice, KeyBar


class BootScreen(Screen[None]):
    """Stands there for some tenths of a second.

    Attributes:
        typed: Keys that were pressed, oldest first.
    """

    def __init__(self, health: Health, keys: KeyTable) -> None:
        super().__init__()
        self.typed: list[tuple[str, str | None]] = []
        self._line, self._bar = Ends(), KeyBar()
        self._line.show(name_of(health), right_of((), health))
        self._bar.choices = tuple(Choice(key) for key in keys.of(Place.CLUSTER) if key.label)

    def compose(self) -> ComposeResult:
        """The first line and the last."""
        yield self._line
        yield Container(id="body")
        yield self._bar

    def check_consume_key(self, key: str, character: str | None) -> bool:  # noqa: ARG002  (Textual's)
        """Every key is kept: none does anything yet."""
        return True

    def on_key(self, event: events.Key) -> None:
        """Keep it."""
        self.typed.append((event.key, event.character))
        event.stop()
