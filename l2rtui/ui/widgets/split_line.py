"""One line with something at each end; where both do not fit, the left end gives way."""

from __future__ import annotations

from textual.strip import Strip

from l2rtui.ui.text import Line, Span, width_of
from l2rtui.ui.widgets.paint import Painted


class Ends(Painted):
    """A line that is drawn again only when it reads differently."""

    DEFAULT_CSS = "Ends { height: 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self._shown: tuple[Line, Line] = (), ()

    def show(self, left: Line, right: Line) -> None:
        """Have these two ends; the last spans of the left one are the first to go."""
        if (left, right) != self._shown:
            self._shown = left, right
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  (there is one line)
        """The line, its right end at the right edge."""
        width = self.size.width
        shown, right = self._shown
        room = max(0, width - width_of(right))
        left = list(shown)
        while left and width_of(left) > room:
            left.pop()
        return self.strip((*left, Span(" " * (room - width_of(left))), *right), width)
