"""Line with a text at each end; where both do not fit, the left one is cut."""

from __future__ import annotations

from textual.strip import Strip

from l2rtui.ui.text import Line, Span, width_of
from l2rtui.ui.widgets.span_renderer import SpanWidget


class SplitLine(SpanWidget):
    """Line that is redrawn only when its text has changed."""

    DEFAULT_CSS = "SplitLine { height: 1; }"

    _ends: tuple[Line, Line] = (), ()

    def show(self, left: Line, right: Line) -> None:
        """Set both ends; of the left one the last spans are dropped first."""
        if (left, right) != self._ends:
            self._ends = left, right
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  (there is one line)
        """The line, its right end at the right edge."""
        width = self.size.width
        line, right = self._ends
        room = max(0, width - width_of(right))
        left = list(line)
        while left and width_of(left) > room:
            left.pop()
        return self.strip((*left, Span(" " * (room - width_of(left))), *right), width)
