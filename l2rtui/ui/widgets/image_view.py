"""Camera image in the terminal: two pixels per character cell, or shades of ASCII without colours."""

from __future__ import annotations

from itertools import groupby

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.domain.simulator import CellRows
from l2rtui.ui.widgets.span_renderer import SpanWidget, is_plain

UPPER = "▀"


class CameraImageView(SpanWidget):
    """Cells of an image, centred; the owner scales them to ``size``."""

    rows: reactive[CellRows] = reactive(())

    def render_line(self, y: int) -> Strip:
        """One line of cells, centred."""
        width = self.size.width
        if y >= len(self.rows):
            return self.strip((), width)
        cells = self.rows[y]
        margin = Segment(" " * max(0, (width - len(cells)) // 2), self.rich_style)
        if is_plain(self.app) or self.app.no_color:
            return Strip([margin, Segment("".join(cell.shade for cell in cells), self.rich_style)])
        # Equal adjacent cells share one segment: each segment costs the terminal an escape sequence.
        groups = groupby(cells, key=lambda cell: (cell.upper, cell.lower))
        pieces = [
            Segment(UPPER * len(list(same)), Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
            for (upper, lower), same in groups
        ]
        return Strip([margin, *pieces]).adjust_cell_length(width, self.rich_style)
