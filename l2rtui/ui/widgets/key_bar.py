"""The last line: the keys of this place, made from the table. What is not possible now is grey and says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.ui.keys import Key
from l2rtui.ui.text import Span, Tone
from l2rtui.ui.widgets.paint import Painted


class Choice(NamedTuple):
    """A key of the bar, and why it does nothing now; empty where it does something."""

    key: Key
    reason: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether it does something now."""
        return not self.reason


class KeyBar(Painted):
    """One line of keys; those that do not fit are on the help screen."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    choices: reactive[tuple[Choice, ...]] = reactive(())

    class Clicked(Message):
        """A key was clicked."""

        def __init__(self, key: Key) -> None:
            super().__init__()
            self.key = key

    def on_click(self, event: events.Click) -> None:
        """Say which key was clicked."""
        if (choice := self._at(event.x)) is not None:
            self.post_message(self.Clicked(choice.key))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Tell what the key under the mouse does, or why it does nothing."""
        choice = self._at(event.x)
        told = "" if choice is None else f"Off: {choice.reason}." if choice.reason else f"{choice.key.tooltip}."
        if told != (self.tooltip or ""):
            self.tooltip = told or None

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
            key_tone = Tone.ACCENT if choice.is_possible else Tone.DIM
            label = choice.key.label if choice.is_possible else f"({choice.key.label})"
            spans += [Span(choice.key.face, key_tone), Span(f" {label}  ", Tone.DIM)]
        return self.strip(spans, self.size.width)


def fitting(choices: Sequence[Choice], width: int) -> list[Choice]:
    """The keys that fit; ``?``, which shows all of them, always does."""
    last = [choice for choice in choices if choice.key.action == "help"]
    room = width - 1 - sum(map(_width, last))
    found: list[Choice] = []
    for choice in choices:
        if choice in last:
            continue
        room -= _width(choice)
        if room < 0:
            break
        found.append(choice)
    return found + last


def _width(choice: Choice) -> int:
    return len(choice.key.face) + len(choice.key.label) + 3 + (2 if choice.reason else 0)
