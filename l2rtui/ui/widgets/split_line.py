"""Line with a text at each end; if both do not fit, the left one is cut."""

from __future__ import annotations

from itertools import accumulate, chain, takewhile

from textual.strip import Strip

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
