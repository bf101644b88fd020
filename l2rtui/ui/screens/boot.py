"""The first frame: name, context and keys, painted before anything of the cluster screen has been imported.

What it shows stands where the cluster screen has it, so that screen takes its place without a jump.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.screen import Screen

from l2rtui.ui.health import Health, name_of, right_of
from l2rtui.ui.keys import KeyTable, Place
from l2rtui.ui.widgets.ends import Ends
from l2rtui.ui.widgets.key_bar import Choice, KeyBar


class BootScreen(Screen[None]):
    """Stands there for some tenths of a second."""

    def __init__(self, health: Health, keys: KeyTable) -> None:
        super().__init__()
        self._line, self._bar = Ends(), KeyBar()
        self._line.show(name_of(health), right_of((), health))
        self._bar.choices = tuple(Choice(key) for key in keys.of(Place.CLUSTER) if key.label)

    def compose(self) -> ComposeResult:
        """The first line and the last."""
        yield self._line
        yield Container(id="body")
        yield self._bar
