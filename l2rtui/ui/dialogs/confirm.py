"""A question before something changes: what goes, what that frees; for the large ones a typed name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        title: Verb and object. lines: what goes and what it frees.
        yes: Label of the button that does it.
        typed: What must be typed first; empty asks for no more than a key.
        is_grave: It cannot be taken back: the focus is on Cancel, so that enter alone does nothing.
        command: The command line that does the same; c copies it.
    """

    title: str
    lines: tuple[Line, ...]
    yes: str
    typed: str = ""
    is_grave: bool = False
    command: str = ""


class ConfirmScreen(Dialog[bool]):
    """Ask; the answer is True only after a clear yes."""

    def __init__(self, question: Question) -> None:
        super().__init__("confirm")
        self._question = question

    def compose(self) -> ComposeResult:
        """Title, lines, perhaps a field, two buttons."""
        question = self._question
        with Vertical(classes="dialog grave" if question.is_grave else "dialog"):
            yield Static(id="title")
            with VerticalScroll(id="body", can_focus=False):
                yield Static(id="lines")
            if question.command:
                yield Static(id="command")
            if question.typed:
                yield Static(id="prompt")
                yield Input(id="typed", placeholder=question.typed)
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="no", compact=True)
                yield Button(question.yes, id="yes", compact=True)

    def on_mount(self) -> None:
        """Fill in text and set the focus on the safe side."""
        question = self._question
        self.show("title", [(Span(question.title, Tone.STRONG),)])
        self.show("lines", question.lines)
        if question.command:
            same = (Span("same as  ", Tone.DIM), Span(sanitize(question.command)), Span("   c copies it", Tone.DIM))
            self.show("command", [same])
        if question.typed:
            self.show("prompt", [(Span("type ", Tone.DIM), Span(question.typed), Span(" to confirm", Tone.DIM))])
            self.query_one("#yes", Button).disabled = True
            self.query_one("#typed").focus()
        else:
            self.query_one("#no" if question.is_grave else "#yes").focus()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self.query_one("#yes", Button).disabled = event.value.strip() != self._question.typed

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
        self.app.copy_to_clipboard(self._question.command)
        self.app.notify("copied the command line", timeout=3)

    def action_accept(self) -> None:
        """Yes, unless a name is still to be typed."""
        if not self.query_one("#yes", Button).disabled:
            self.dismiss(True)

    def action_close(self) -> None:
        """No."""
        self.dismiss(False)


def lines_of(texts: Sequence[str], tone: Tone = Tone.PLAIN) -> tuple[Line, ...]:
    """Plain lines."""
    return tuple((Span(text, tone),) for text in texts)
