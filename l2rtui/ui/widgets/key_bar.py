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
    """A key of the bar, and whether it does something now."""

    key: Key
    is_possible: bool


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
        x = 1
        for choice in fitting(self.choices, self.size.width):
            width = _width(choice.key)
            if x <= event.x < x + width:
                self.post_message(self.Clicked(choice.key))
                return
            x += width

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
    room = width - 1 - sum(_width(choice.key) for choice in last)
    found: list[Choice] = []
    for choice in choices:
        if choice in last:
            continue
        room -= _width(choice.key) + (0 if choice.is_possible else 2)
        if room < 0:
            break
        found.append(choice)
    return found + last


def _width(key: Key) -> int:
    return len(key.face) + len(key.label) + 3
