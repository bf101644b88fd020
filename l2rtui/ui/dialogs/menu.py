"""Lists to choose from: a name, and the actions on the selected object with their equivalent command lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.dialog import REST, Dialog, DialogChoices
from l2rtui.ui.keys.table import Key, KeyContext
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.widgets.span_renderer import to_text

PRESENT: Final = "●"


class ChoiceScreen(Dialog[str | None]):
    """List that returns the chosen name; current names are marked, and the cursor starts at the first of them.

    Args:
        notes: Texts shown after names.
    """

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        present: Sequence[str] = (),
        notes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__("menu")
        self._title = title
        self._names = tuple(names)
        self._present = frozenset(present)
        self._notes = notes

    def compose(self) -> ComposeResult:
        """Title and list."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield DialogChoices(id="choices", classes=REST, compact=True)

    def on_mount(self) -> None:
        """Fill the list."""
        hint = Span("   enter chooses   esc closes", TextStyle.DIM)
        self.show("title", [(Span(self._title, TextStyle.STRONG), hint)])
        choices = self.query_one("#choices", OptionList)
        width = max(map(len, self._names), default=0) if self._notes else 0
        for name in self._names:
            mark = Span(f"{PRESENT if name in self._present else ' '} ")
            note = Span(f"   {sanitize(self._notes.get(name, ''))}".rstrip(), TextStyle.DIM)
            choices.add_option(Option(to_text(self.app, [(mark, Span(f"{sanitize(name):<{width}}"), note)])))
        choices.highlighted = next((number for number, name in enumerate(self._names) if name in self._present), 0)
        choices.focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[event.option_index])

    def action_accept(self) -> None:
        """Choose the highlighted name, as enter does."""
        self.query_one("#choices", OptionList).action_select()


_OF_RUN: Final = ("log.show", "pane.charts", "view.detail", "view.spec", "view.artifacts")
_OF_POD: Final = ("log.show", "log.previous", "view.detail", "pod.shell", "pod.attach", "pod.signal", "pod.forward")
ACTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "run": (*_OF_RUN, "run.edit", "run.relaunch", "pod.kill", "run.destroy", "view.copy"),
        "set": ("log.show", "view.detail", "set.grow", "set.shrink", "pod.kill", "run.destroy", "view.copy"),
        "learners": ("log.show", "view.detail", "pod.kill", "view.copy"),
        "pod": (*_OF_POD, "pod.kill", "view.copy"),
        "worker": (*_OF_POD, "pod.simulators", "set.grow", "set.shrink", "pod.kill", "view.copy"),
        "node": ("view.detail", "run.place", "run.launch"),
        "": ("run.launch", "run.place", "view.history", "view.experiments", "view.artifacts", "app.help"),
    }
)
"""Ids of the actions by kind of object, those that only look first; ctrl+p has all others."""
_WIDE: Final = 100
"""Terminal width from which notes are shown on the same line as entries."""
_BESIDE: Final = 80
"""Columns of a row other than its command line: key, text and frame."""


class MenuScreen(Dialog[str | None]):
    """Menu that returns the chosen action.

    Args:
        command_line: Returns the equivalent command of an action, or "".
        kind: Kind of the object, of ``ACTIONS``. name: its name, for the title.
    """

    def __init__(self, ctx: AppContext, command_line: Callable[[str], str], kind: str, name: str) -> None:
        super().__init__("menu")
        self._title = sanitize(name) or "Menu"
        self._ctx = ctx
        self._command_line = command_line
        table = {key.id: key for key in ctx.keys.of(KeyContext.CLUSTER)}
        self._keys: tuple[Key, ...] = tuple(table[name] for name in ACTIONS[kind])

    def compose(self) -> ComposeResult:
        """Title and list."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield DialogChoices(id="choices", classes=REST, compact=True)

    def on_mount(self) -> None:
        """Fill the list."""
        hint = Span("   enter does it   c copies   ctrl+p all   esc closes", TextStyle.DIM)
        self.show("title", [(Span(self._title, TextStyle.STRONG), hint)])
        choices = self.query_one("#choices", OptionList)
        has_notes = self.app.size.width >= _WIDE
        for key in self._keys:
            reason = self._ctx.forbidden(key.action)
            note = f"off: {reason}" if reason else self._command_line(key.action)
            text = key.tooltip
            if not has_notes:
                # A command cut to three letters is useless, but the reason for a disabled key must be readable.
                text, note = f"{key.name} is {note}" if reason else text, ""
            line = (
                Span(f"{key.face:<8}", TextStyle.DIM if reason else TextStyle.ACCENT),
                Span(f"{sanitize(text):<58}", TextStyle.DIM if reason else TextStyle.PLAIN),
            )
            # A long note goes on a separate line: a cut one would not name the object.
            lines: list[Line] = [(*line, Span(sanitize(note), TextStyle.DIM))]
            if len(note) > self.app.size.width - _BESIDE:
                lines = [line, (Span(f"{'':<8}{sanitize(note)}", TextStyle.DIM),)]
            choices.add_option(Option(to_text(self.app, lines), id=key.id, disabled=bool(reason)))
        choices.highlighted = 0
        choices.focus()

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(next(key.action for key in self._keys if key.id == event.option.id))

    def action_accept(self) -> None:
        """Choose the highlighted entry, as enter does."""
        self.query_one("#choices", OptionList).action_select()

    def action_copy(self) -> None:
        """Copy the command line of the highlighted entry."""
        number = self.query_one("#choices", OptionList).highlighted
        command = self._command_line(self._keys[number].action) if number is not None else ""
        if command:
            self._ctx.background.copy(command)
        else:
            self._ctx.background.say("There is no command line for this.")
