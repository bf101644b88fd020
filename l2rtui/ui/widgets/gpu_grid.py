"""Slot grid: nodes down, devices and their slots across, a cursor on one slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from l2rtui.domain.node import SlotId
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.state.snapshot_index import changed_pods
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.theme import colour, cursor_style
from l2rtui.ui.widgets.grid.figures import NO_FIGURES, GridFigures
from l2rtui.ui.widgets.grid.lines import EMPTY_GRID, SlotGrid, is_waiting, lay_out
from l2rtui.ui.widgets.grid.shape import SlotCell, ZoomLevel
from l2rtui.ui.widgets.span_renderer import NO_STYLE, SpanWidget

_MARGIN = 2
_FRAME_LINES = 2
"""Lines of the grid other than nodes: header and legend."""


class GpuGrid(SpanWidget, ScrollView, can_focus=True):
    """Slots of all nodes; an update redraws only lines that look different.

    Args:
        is_exact: Each slot has a separate cell at every level, so that replicas can be placed on it.

    Attributes:
        ghosts: Spans drawn instead of some slots: staged replicas, a range.
        only: Names of the nodes to show; None for all.
        figures: Rates of runs, idle GPUs, and the age of these data.
        level: Zoom level; None is the most detailed one at which all nodes fit.
        cursor_slot: Slot under the cursor, which ``move_to`` sets.
    """

    DEFAULT_CSS = """
    GpuGrid { overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    # A stable gutter: a scroll bar that appears with more lines would cover their last column.
    BINDINGS = bindings(KeyContext.GRID)

    snapshot: reactive[ClusterSnapshot] = reactive(EMPTY_SNAPSHOT, repaint=False)
    ghosts: reactive[Mapping[SlotId, Span]] = reactive(dict, repaint=False)
    only: reactive[frozenset[str] | None] = reactive(None, repaint=False)
    figures: reactive[GridFigures] = reactive(NO_FIGURES, repaint=False)
    level: reactive[ZoomLevel | None] = reactive(None, repaint=False)

    @dataclass
    class SlotMoved(Message):
        """The cursor has moved to another slot; None if the grid is empty."""

        slot: SlotId | None
        by_user: bool

    @dataclass
    class SlotChosen(Message):
        """Enter was pressed on a slot."""

        slot: SlotId

    @dataclass
    class SlotGrabbed(Message):
        """The mouse was pressed on a ghost; until it is released, the cursor follows it."""

        slot: SlotId

    @dataclass
    class SlotReleased(Message):
        """The mouse that had grabbed a ghost was released on a slot; None outside the slots."""

        slot: SlotId | None

    @dataclass
    class Zoomed(Message):
        """Another level was chosen by a key."""

        level: ZoomLevel

    class HeightChanged(Message):
        """The height of the grid has changed, because of a new width or because it is visible again."""

    def __init__(self, *, is_exact: bool = False, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self._is_exact = is_exact
        self._grid: SlotGrid = EMPTY_GRID
        # Made for the next snapshot, with the width that it was made for.
        self._ahead: tuple[int, SlotGrid] = 0, EMPTY_GRID
        self._laid_width = self._promised = self._room = self._height = 0
        # Lines on the screen, by number, as last returned by render_line().
        self._drawn: dict[int, Line] = {}
        self.cursor_slot: SlotId | None = None
        # Column that steps up and down keep to; None until the first of them.
        self._column: int | None = None
        self._is_dragging = False

    @property
    def natural_height(self) -> int:
        """Number of lines that the whole grid takes: header, nodes, legend."""
        return self._height + _FRAME_LINES

    @property
    def _columns(self) -> int:
        """Columns without the scroll bar, whose gutter is reserved even while there is no bar."""
        return self.scrollable_content_region.width or self._promised

    @property
    def shown_level(self) -> ZoomLevel:
        """The current level."""
        return self._grid.shape.level

    @property
    def slots(self) -> Mapping[SlotId, SlotCell]:
        """Cells of all slots, in the order of the grid."""
        return self._grid.shape.slots

    def fit_to_room(self, lines: int, columns: int = 0) -> None:
        """Choose the level that shows all nodes in this many lines, including header and legend.

        Args:
            columns: Width that the grid gets with its first layout, to lay out the slots before it; 0 if unknown.
        """
        is_other = lines != self._room
        if columns and not self.scrollable_content_region:
            promised = max(0, columns - self.styles.scrollbar_size_vertical)
            is_other |= promised != self._promised
            self._promised = self._laid_width = promised
        self._room = lines
        if is_other and self.level is None:
            self._lay_out_anew()

    def between(self, first: SlotId, last: SlotId) -> tuple[SlotId, ...]:
        """The slots from one to another, both included, in the order of the grid."""
        order = list(self._grid.shape.slots)
        low, high = sorted((order.index(first), order.index(last)))
        return tuple(order[low : high + 1])

    def lay_out_ahead(self, snapshot: ClusterSnapshot) -> None:
        """Lay out the grid for the snapshot that is assigned next; safe in a thread, since nothing is drawn yet."""
        # A hidden grid, as on a small terminal where one list is visible, has no width yet.
        if width := self._laid_width:
            room = max(0, self._room - _FRAME_LINES)
            self._ahead = (
                width,
                lay_out(snapshot, width - _MARGIN, level=self.level, room=room, figures=self.figures),
            )

    def move_to(self, slot: SlotId, *, by_user: bool = False) -> None:
        """Put the cursor on a slot, if it exists."""
        if slot in self._grid.shape.slots:
            self._place(slot, by_user=by_user)

    # --- keys -----------------------------------------------------------------------------------------------
    def action_step(self, right: int, down: int) -> None:
        """Move the cursor by one cell or line."""
        if self.cursor_slot is None:
            return
        shape = self._grid.shape
        column = (self._column if self._column is not None else shape.slots[self.cursor_slot].x) if down else None
        slot = shape.neighbour(self.cursor_slot, right, down, column, skips_cpu=self._is_exact)
        self._place(slot, by_user=True)
        self._column = column

    def action_step_gpu(self, by: int) -> None:
        """Move the cursor to the first slot of the next GPU, or of the one before."""
        if self.cursor_slot is None:
            return
        firsts = [slot for slot in self._grid.shape.slots if slot.slot == 0]
        here = firsts.index(SlotId(self.cursor_slot.node, self.cursor_slot.gpu, 0))
        self._place(firsts[max(0, min(len(firsts) - 1, here + by))], by_user=True)

    def action_edge(self, side: int) -> None:
        """Move to the first or last slot."""
        if self._grid.shape.slots:
            self._place(list(self._grid.shape.slots)[0 if side < 0 else -1], by_user=True)

    def action_nearer(self, by: int) -> None:
        """Go to the next level, or with -1 to the previous one; at the last level, say so."""
        levels = [level for level in ZoomLevel if not self._is_exact or level is not ZoomLevel.CLUSTER]
        at = levels.index(self.shown_level) + by
        if 0 <= at < len(levels):
            self.level = levels[at]
            self.post_message(self.Zoomed(levels[at]))
        else:
            self.app.notify(f"There is no {'finer' if by > 0 else 'coarser'} level.", timeout=3)

    def action_choose(self) -> None:
        """Post SlotChosen for the slot under the cursor."""
        if self.cursor_slot is not None:
            self.post_message(self.SlotChosen(self.cursor_slot))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on the slot that was clicked, if there is one."""
        if (slot := self._slot_under(event)) is not None:
            self._place(slot, by_user=True)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Grab the ghost that was pressed."""
        slot = self._slot_under(event)
        if slot is not None and slot in self.ghosts and event.button == 1:
            self._is_dragging = True
            self.capture_mouse()  # otherwise a release over another widget would never arrive here
            self._place(slot, by_user=True)
            self.post_message(self.SlotGrabbed(slot))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Let the cursor follow a ghost that is dragged."""
        if self._is_dragging and (slot := self._slot_under(event)) is not None:
            self._place(slot, by_user=True)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Drop a ghost."""
        if self._is_dragging:
            self._is_dragging = False
            self.release_mouse()
            self.post_message(self.SlotReleased(self._slot_under(event)))

    def _slot_under(self, event: events.MouseEvent) -> SlotId | None:
        """Return the slot under the mouse; None outside the slots, and on header and legend."""
        place = event.get_content_offset(self)
        if place is None or place.y == 0 or place.y == self.size.height - 1:
            return None
        return self._grid.shape.at(place.x - _MARGIN, place.y - 1 + self.scroll_offset.y)

    # --- inside ---------------------------------------------------------------------------------------------
    def watch_snapshot(self, old: ClusterSnapshot, new: ClusterSnapshot) -> None:
        """Lay out again if a slot may have changed, and draw the lines that differ."""
        # Most changes of pods move no slot; the ledger is then the same object, and its slots are not compared.
        is_same = old.nodes == new.nodes and old.runs == new.runs
        is_other = old.ledger is not new.ledger and old.ledger.slots != new.ledger.slots
        if not is_same or self._grid is EMPTY_GRID or is_other:
            self._arrange()
        elif old.pods is not new.pods:
            self._grid = replace(self._grid, snapshot=new)
            # A pod that starts running moves no slot, but its letter changes to upper case.
            pods = changed_pods(old.pods, new.pods)
            if pods is None or any(is_waiting(before) is not is_waiting(now) for before, now in pods):
                self._draw_differences()

    def watch_ghosts(self) -> None:
        """Draw the lines that differ."""
        self._arrange()

    def watch_figures(self, figures: GridFigures) -> None:
        """Draw the lines that differ."""
        old, self._grid = self._grid, replace(self._grid, figures=figures)
        self._draw_differences()
        self._draw_edges(old)

    def watch_only(self) -> None:
        """Show only these nodes."""
        self._lay_out_anew()

    watch_level = watch_only

    def _lay_out_anew(self) -> None:
        self._grid, self._column = EMPTY_GRID, None
        self._arrange(is_other=True)

    def on_resize(self) -> None:
        """Lay out for the new size; the shape depends only on the width."""
        if self._columns != self._laid_width:
            self._laid_width, self._grid = self._columns, EMPTY_GRID
        before = self._height
        self._arrange(is_other=True)
        if self._height != before:
            self.post_message(self.HeightChanged())

    def _arrange(self, *, is_other: bool = False) -> None:
        width = self._columns - _MARGIN
        if width <= 0:
            # Hidden: a layout that is no longer updated would later be drawn with deleted nodes.
            self._grid = EMPTY_GRID
            self._drawn.clear()
            return
        old = self._grid
        (ahead_width, ahead), self._ahead = self._ahead, (0, EMPTY_GRID)
        # The layout made ahead has neither ghosts nor a filter, and only one width.
        is_whole = self.only is None and not self.ghosts and self._columns == ahead_width
        if ahead is not EMPTY_GRID and ahead.snapshot is self.snapshot and is_whole:
            self._grid = ahead
        else:
            self._grid = lay_out(
                self.snapshot,
                width,
                self.ghosts,
                self.only,
                old,
                level=self.level,
                room=max(0, (self._room or self.size.height) - _FRAME_LINES),
                is_exact=self._is_exact,
                figures=self.figures,
            )
        self._height = self._grid.height
        size = Size(self._columns, self._height + 2)
        if is_other or size != self.virtual_size:
            self._drawn.clear()
            self.virtual_size = size
            self.refresh()
        else:
            self._draw_differences()
            self._draw_edges(old)
        if self.cursor_slot not in self._grid.shape.slots:
            self._place(next(iter(self._grid.shape.slots), None), by_user=False)

    def _draw_edges(self, old: SlotGrid) -> None:
        if old.header != self._grid.header:  # the first figures of GPUs have arrived, or the last have ended
            self.refresh_line(self.scroll_offset.y)
        if old.legend != self._grid.legend:
            self.refresh_line(self.size.height - 1 + self.scroll_offset.y)

    def _draw_differences(self) -> None:
        # Lines that were never drawn need no comparison: a large cluster has thousands of them.
        for y in tuple(self._drawn):
            if y >= self._grid.height or self._drawn[y] != self._grid.line(y):
                self.refresh_line(y + 1)
                del self._drawn[y]

    def _place(self, slot: SlotId | None, *, by_user: bool) -> None:
        old, self.cursor_slot, self._column = self.cursor_slot, slot, None
        if slot is not None:
            y = self._grid.shape.slots[slot].y
            height = self.size.height - 2
            top = self.scroll_offset.y
            if height > 0 and not top <= y < top + height:
                self._drawn.clear()
                self.scroll_to(y=y if y < top else y - height + 1, animate=False, immediate=True, force=True)
            self.refresh_line(y + 1)
        if old is not None and old in self._grid.shape.slots:
            self.refresh_line(self._grid.shape.slots[old].y + 1)
        if old != slot:
            self.post_message(self.SlotMoved(slot, by_user))

    def on_focus(self) -> None:
        """Draw the cursor with or without focus."""
        self.refresh()

    on_blur = on_focus

    def render_line(self, y: int) -> Strip:
        """The header, a line of slots, or on the last line the legend."""
        if y == 0:
            return self._indented(self._grid.header)
        if y == self.size.height - 1:
            return self._indented(self._grid.legend)
        line = y - 1 + self.scroll_offset.y
        if line >= self._grid.height:
            is_hidden = y == 1 and self.only is not None and not self.only
            sentence = "No node matches the filter. esc shows all." if is_hidden else ""
            return self._indented((Span(sentence, TextStyle.DIM),))
        self._drawn[line] = self._grid.line(line)
        strip = self._indented(self._drawn[line], is_band=self._grid.is_band(line))
        if self.cursor_slot is None or self._grid.shape.slots[self.cursor_slot].y != line:
            return strip
        return self._with_cursor(strip, self._grid.shape.slots[self.cursor_slot].x + _MARGIN)

    def _indented(self, line: Line, *, is_band: bool = False) -> Strip:
        back = colour(self.app.theme_variables, "l2r-band") if is_band else NO_STYLE
        return self.strip((Span(" " * _MARGIN), *line), self.size.width, back)

    def _with_cursor(self, strip: Strip, x: int) -> Strip:
        """Highlight the cell under the cursor, or underline it without focus: visible without colour too.

        A resized screen is drawn once before its resize event, so the cell may be beyond the right edge.
        """
        end = x + self._grid.shape.cell_width
        if end > strip.cell_length:
            return strip
        before, cell, after = strip.divide([x, end, strip.cell_length])
        # Not reversed, but in separate colours: faults and staged replicas are already reversed.
        look = cursor_style(self.app.theme_variables) if self.has_focus else Style(underline=True, bold=True)
        segments = (Segment(segment.text, (segment.style or NO_STYLE) + look) for segment in cell)
        return Strip([*before, *segments, *after], strip.cell_length)
