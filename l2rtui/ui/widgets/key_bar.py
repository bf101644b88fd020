"""Key bar, the last line: keys of the current context from the key table. Unavailable ones are grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.ui.keys.table import Key
from l2rtui.ui.text import Span, TextStyle
from l2rtui.ui.widgets.span_renderer import SpanWidget


class Choice(NamedTuple):
    """Key of the bar, and the reason why it is unavailable; empty if it is available."""

    key: Key
    reason: str = ""


class KeyBar(SpanWidget):
    """One line of keys; those that do not fit are on the help screen."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    choices: reactive[tuple[Choice, ...]] = reactive(())

    class Clicked(Message):
        """A key was clicked."""

        def __init__(self, key: Key) -> None:
            super().__init__()
            self.key = key

    def on_click(self, event: events.Click) -> None:
        """Post Clicked for the key under the mouse."""
        if (choice := self._at(event.x)) is not None:
            self.post_message(self.Clicked(choice.key))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show a tooltip: what the key under the mouse does, or why it is unavailable."""
        choice = self._at(event.x)
        tooltip = "" if choice is None else f"Off: {choice.reason}." if choice.reason else f"{choice.key.tooltip}."
        # Setting a tooltip updates the screen immediately, so only changes are set.
        if tooltip != (self.tooltip or ""):
            self.tooltip = tooltip or None

    def _at(self, column: int) -> Choice | None:
        x = 1
        for choice in fitting(self.choices, self.size.width):
            width = _width(choice)
            if x <= column < x + width:
                return choice
            x += width
        return None

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  (there is one line)
        """Keys and labels, as many as fit."""
        spans = [Span(" ")]
        for choice in fitting(self.choices, self.size.width):
            key_tone = TextStyle.DIM if choice.reason else TextStyle.ACCENT
            label = f"({choice.key.label})" if choice.reason else choice.key.label
            spans += [Span(choice.key.face, key_tone), Span(f" {label}  ", TextStyle.DIM)]
        return self.strip(spans, self.size.width)


def fitting(choices: Sequence[Choice], width: int) -> list[Choice]:
    """Return the keys that fit; ``?``, which lists all keys, always does."""
    last = [choice for choice in choices if choice.key.action == "help"]
    room = width - 1 - sum(map(_width, last))
    fitted: list[Choice] = []
    for choice in choices:
        if choice in last:
            continue
        room -= _width(choice)
        # The rest is left out even if a shorter key would fit: the table is ordered by importance.
        if room < 0:
            break
        fitted.append(choice)
    return fitted + last


def _width(choice: Choice) -> int:
    return len(choice.key.face) + len(choice.key.label) + 3 + (2 if choice.reason else 0)
