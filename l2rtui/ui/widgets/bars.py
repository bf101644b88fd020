"""Bars of one line: a text at each end, and the keys of the current context from the key table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, takewhile
from typing import NamedTuple

from textual import events
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.ui.keys.table import Key
from l2rtui.ui.text import Line, Span, TextStyle, width_of
from l2rtui.ui.widgets.span_renderer import SpanWidget


class SplitLine(SpanWidget):
    """Line that is redrawn only when its text has changed.

    The left end is a list of groups, such as a label and its number, which are kept or dropped together.
    """

    DEFAULT_CSS = "SplitLine { height: 1; }"

    _ends: tuple[tuple[Line, ...], Line] = (), ()

    def show(self, left: tuple[Line, ...], right: Line) -> None:
        """Set both ends; the last groups of the left end are dropped first."""
        if (left, right) != self._ends:
            self._ends = left, right
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  (there is one line)
        """The line, its right end at the right edge."""
        width = self.size.width
        groups, right = self._ends
        room = max(0, width - width_of(right))
        ends = accumulate(map(width_of, groups))
        fitting = list(takewhile(lambda pair: pair[1] <= room, zip(groups, ends, strict=True)))
        left = tuple(chain.from_iterable(group for group, _ in fitting))
        if len(fitting) < len(groups) and width_of(left) + 2 <= room:
            left = (*left, Span(" …", TextStyle.DIM))
        return self.strip((*left, Span(" " * (room - width_of(left))), *right), width)


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
