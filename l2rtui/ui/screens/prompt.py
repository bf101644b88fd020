"""The one line at the bottom that is typed into: filter, search, patterns, commands, file names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.suggester import Suggester

from l2rtui.ui.screens.purpose import Purpose
from l2rtui.ui.widgets.field import Field

MOST_REMEMBERED: Final = 50
_TYPED: defaultdict[Purpose, list[str]] = defaultdict(list)


class _Completion(Suggester):
    def __init__(self, complete: Callable[[str], str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """The whole line as it may go on."""
        found = self._complete(value)
        return found if found != value else None


class Prompt(Field):
    """One line; up and down go through what was typed before, tab takes the completion."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
        Binding("tab", "complete", show=False),
    ]

    def __init__(
        self,
        complete: Callable[[str], str],
        changed: Callable[[Purpose, str], None],
        taken: Callable[[Purpose, str], Awaitable[None]],
    ) -> None:
        super().__init__("find", suggester=_Completion(self._completed))
        self.purpose = Purpose.FILTER
        self._complete = complete
        self._changed = changed
        self._taken = taken
        self._at = 0

    def ask(self, purpose: Purpose, value: str) -> None:
        """Be there for this."""
        self.purpose, self._at = purpose, len(_TYPED[purpose])
        self.placeholder = purpose
        self.open(value)

    def watch_value(self, value: str) -> None:
        """Tell each letter as it comes, so that the next key already finds what it did."""
        if self.display:
            self._changed(self.purpose, value)

    async def action_submit(self) -> None:
        """Hand on what was typed, now: the key after enter is for what has the focus then."""
        typed = _TYPED[self.purpose]
        if self.value and self.value not in typed[-1:]:
            typed.append(self.value)  # for up and down
            del typed[:-MOST_REMEMBERED]
        await self._taken(self.purpose, self.value.strip())

    def action_older(self) -> None:
        """What was typed before."""
        self._recall(-1)

    def action_newer(self) -> None:
        """What was typed after."""
        self._recall(1)

    def action_complete(self) -> None:
        """Take the completion."""
        self.value = self._completed(self.value)
        self.cursor_position = len(self.value)

    def _completed(self, text: str) -> str:
        return self._complete(text) if self.purpose is Purpose.COMMAND else text

    def _recall(self, by: int) -> None:
        typed = _TYPED[self.purpose]
        self._at = max(0, min(len(typed), self._at + by))
        self.value = typed[self._at] if self._at < len(typed) else ""
        self.cursor_position = len(self.value)
