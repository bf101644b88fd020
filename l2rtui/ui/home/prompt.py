"""Prompt at the bottom of the home screen: filter, search, patterns, commands, file names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Static

from l2rtui.ui.widgets.prompt_input import PromptInput

MAX_REMEMBERED: Final = 50


class PromptMode(StrEnum):
    """Meaning of the text in the prompt; the value is the word before the field."""

    FILTER = "filter"
    SEARCH = "search"
    INCLUDE = "include"
    EXCLUDE = "exclude"
    COMMAND = "command"
    SIGNAL = "signal"
    FORWARD = "ports"
    SAVE = "save to"


_PLACEHOLDERS: Final = {
    PromptMode.FILTER: "words, !word, column=x  column~x  column>=2; ? explains",
    PromptMode.SEARCH: "text in the log; n and N go from hit to hit",
    PromptMode.INCLUDE: "show only lines that match this pattern",
    PromptMode.EXCLUDE: "hide lines that match this pattern",
    PromptMode.COMMAND: "tab completes, ? lists them",
    PromptMode.SIGNAL: "name or number, such as USR1; it goes to the pod's process",
    PromptMode.FORWARD: "LOCAL:REMOTE, such as 6006:6006",
    PromptMode.SAVE: "file for the lines that are shown",
}


_HISTORY: defaultdict[PromptMode, list[str]] = defaultdict(list)
"""Submitted lines by mode, oldest first; kept until the process ends."""


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed line, or None if there is nothing to add."""
        completion = self._complete(value)
        return completion if completion != value else None


class Prompt(PromptInput):
    """Input line with a history on up and down and completion on tab.

    Args:
        complete: Returns a command line with its completion.
        changed: Called with the mode and the text after each letter.
        submitted: Called with the mode and the stripped text after enter.

    Attributes:
        mode: Meaning of the text.
        sign: Label before the field; it stays visible when the placeholder disappears.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
        Binding("tab", "complete", show=False),
    ]

    def __init__(
        self,
        complete: Callable[[str], str],
        changed: Callable[[PromptMode, str], None],
        submitted: Callable[[PromptMode, str], Awaitable[None]],
    ) -> None:
        super().__init__("find", suggester=_Completion(self._completed))
        self.mode = PromptMode.FILTER
        self.sign = Static(id="sign", markup=False)
        self.sign.display = False
        self._complete = complete
        self._changed = changed
        self._submitted = submitted
        self._position = 0

    def ask(self, mode: PromptMode, value: str) -> None:
        """Open the prompt in a mode."""
        self.mode, self._position = mode, len(_HISTORY[mode])
        self.placeholder = _PLACEHOLDERS[mode]
        self.sign.update(mode)
        self._show(is_open=True)
        self.open(value)

    def close(self) -> None:
        """Hide the field and empty it."""
        super().close()
        self._show(is_open=False)

    def _show(self, *, is_open: bool) -> None:
        """Show the prompt instead of the key bar: keys of the bar do not act while text is typed."""
        self.sign.display = is_open
        self.screen.set_class(is_open, "asks")

    def watch_value(self, value: str) -> None:
        """Report each letter by a direct call, not a message: the next key may act on the filtered rows."""
        if self.display:
            self._changed(self.mode, value)

    async def action_submit(self) -> None:
        """Submit the line, awaited: the key after enter goes to the pane that then has the focus."""
        history = _HISTORY[self.mode]
        if self.value and self.value not in history[-1:]:  # as in a shell: no repeated lines
            history.append(self.value)
            del history[:-MAX_REMEMBERED]
        await self._submitted(self.mode, self.value.strip())

    def action_older(self) -> None:
        """Recall the previous line."""
        self._recall(-1)

    def action_newer(self) -> None:
        """Recall the next line."""
        self._recall(1)

    def action_complete(self) -> None:
        """Accept the completion."""
        self.value = self._completed(self.value)
        self.cursor_position = len(self.value)

    def _completed(self, text: str) -> str:
        return self._complete(text) if self.mode is PromptMode.COMMAND else text

    def _recall(self, by: int) -> None:
        history = _HISTORY[self.mode]
        self._position = max(0, min(len(history), self._position + by))
        self.value = history[self._position] if self._position < len(history) else ""
        self.cursor_position = len(self.value)
