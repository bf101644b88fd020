"""Confirmation of a change: lists what is removed and what becomes free; a serious change needs a typed name."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, Static

from l2rtui.ui.dialogs.dialog import REST, Dialog, DialogBody
from l2rtui.ui.keys.table import KeyTable
from l2rtui.ui.text import Line, Span, TextStyle, hanging


class Question(Struct, frozen=True):
    """Question of a confirmation.

    Attributes:
        title: Verb and object. lines: removed objects, and slots that become free.
        yes: Label of the button that confirms.
        typed: Text to type first, the context's name in a protected context; empty for a single key.
        is_grave: It cannot be undone: the focus is on Cancel, so that enter does nothing.
        command: Equivalent command line; c copies it.
    """

    title: str
    lines: tuple[Line, ...]
    yes: str
    typed: str = ""
    is_grave: bool = False
    command: str = ""


class ConfirmScreen(Dialog[bool]):
    """Confirmation dialog; the answer is True only after an explicit yes.

    Each button names its key: enter presses the safe one.
    """

    def __init__(self, question: Question, keys: KeyTable) -> None:
        super().__init__("confirm")
        self.question = question
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Title, lines, perhaps an input field, two buttons."""
        question = self.question
        with Vertical(classes="dialog grave" if question.is_grave else "dialog"):
            yield Static(id="title")
            # Cannot be focused: tab moves only between the field and the buttons; arrows still scroll (on_key).
            with DialogBody(id="body", classes=REST, can_focus=False):
                yield Static(id="lines")
            if question.command:
                yield Static(id="command")
            if question.typed:
                yield Static(id="prompt")
                yield Input(id="typed", placeholder=question.typed)
            with Horizontal(classes="buttons"):
                # The first key alone: beside a field, letters are typed.
                cancel = self._keys.face("dialog.close").split()[0]
                accept = "enter" if question.typed else self._keys.face("dialog.accept")
                yield Button(f"Cancel  {cancel}", id="no", compact=True)
                yield Button(f"{question.yes}  {accept}", id="yes", compact=True)

    def on_mount(self) -> None:
        """Fill in the texts and focus the safe choice."""
        question = self.question
        self.show("title", [(Span(question.title, TextStyle.STRONG),)])
        self._break_lines()
        if question.command:
            self.show_command(question.command, "   c copies it")
        if question.typed:
            prompt = Span("type ", TextStyle.DIM), Span(question.typed), Span(" to confirm", TextStyle.DIM)
            self.show("prompt", [prompt])
            self.query_one("#yes", Button).disabled = True
            self.query_one("#typed").focus()
        else:
            self.query_one("#no" if question.is_grave else "#yes").focus()

    def on_resize(self) -> None:
        """Wrap the lines again, once the widgets have their new widths."""
        self.call_after_refresh(self._break_lines)

    def _break_lines(self) -> None:
        width = self.query_one("#lines").size.width or self.app.size.width
        self.show("lines", [row for line in self.question.lines for row in hanging(line, width)])

    def on_key(self, event: events.Key) -> None:
        """Scroll lines that do not fit."""
        body = self.query_one(DialogBody)
        page = max(1, body.size.height - 1)
        lines = {"up": -1, "down": 1, "pageup": -page, "pagedown": page}.get(event.key)
        if lines is not None:
            body.scroll_relative(y=lines, animate=False)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.query_one("#yes", Button).disabled = event.value.strip() != self.question.typed

    @on(Input.Submitted)
    def _entered(self) -> None:
        self.action_accept()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "yes":
            self.action_accept()
        else:
            self.action_close()

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self.question.command)
        self.app.notify("copied the command line", timeout=3)

    def action_accept(self) -> None:
        """Confirm, unless a name must still be typed."""
        # Checked for keys and a submitted field too: disabling the button stops only mouse clicks.
        if not self.query_one("#yes", Button).disabled:
            self.dismiss(True)

    def action_close(self) -> None:
        """Answer no."""
        self.dismiss(False)


def lines_of(texts: Sequence[str], style: TextStyle = TextStyle.PLAIN) -> tuple[Line, ...]:
    """Convert texts to lines of one style."""
    return tuple((Span(text, style),) for text in texts)
