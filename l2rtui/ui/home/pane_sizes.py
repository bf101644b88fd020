"""Sizes of the home screen's panes: automatic sizes by content, and sizes set by the user.

A pane takes the lines that it can fill, so that a long list gets the lines that an empty log would waste. Keys and
the mouse set sizes as shares of the screen. ``screen.json`` keeps them and the level of the grid for the next
start; a file that is missing, unreadable or invalid gives the defaults, and a failed write is skipped. With
several apps running, the last change wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Struct
from textual.timer import Timer
from textual.widget import Widget

from l2rtui.config import state_dir
from l2rtui.ui.home.layout import PaneLayout
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.shape import ZoomLevel
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.virtual_table import VirtualTable
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

FRAME: Final = 2
BARS: Final = 2
"""Lines of the screen above and below the panes."""
LOG_LEAST: Final = 5
LIST_LEAST: Final = 5
RUNS_LEAST: Final = 9
RUNS_SHARE: Final = 5
"""A fifth of the screen is for the runs before the grid draws tiles: six runs, of which one may have stalled."""
GRID_LEAST: Final = 8
CHARTS_LEAST: Final = 11
"""Lines in which a curve is readable: a legend, a title, six lines of a plot, the labels of positions."""
CHARTS_WEIGHT: Final = 12
GRID_WIDTH: Final = 0.62
"""Share of the width for the grid next to the details: eight tiles of seven columns fit on a screen of 120."""
ANY: Final = 10_000
"""Natural height of content without an end."""
SHRINK_SECONDS: Final = 5.0
"""Delay before a pane gives up unused lines: the cursor passes over runs with few pods, or without a log."""
SAVE_SECONDS: Final = 1.0


class _Edge(Struct, frozen=True):
    """Edge that is dragged with the mouse: between two panes above each other, or between the grid and the details.

    Attributes:
        above, below: The panes; both empty for the edge of the grid.
        offset: Cells between the pointer and the edge. total: lines or columns that are divided.
    """

    above: str
    below: str
    offset: int
    total: int


class PaneSizes:
    """Heights and widths of the panes; the actions that change them, and their saved state.

    Attributes:
        natural: Lines that each pane can fill, and the time since when: one that needs less gives lines up later.
    """

    def __init__(self, panes: PaneLayout, ctx: AppContext) -> None:
        self._panes = panes
        self._clock = ctx.clock
        self.state = read_screen_state()
        self.natural: dict[str, tuple[int, float]] = {Pane.LOG: (ANY, ctx.clock())}
        self._applied: tuple[str, str, str] = "", "", ""
        self._edge: _Edge | None = None
        self._timer: Timer | None = None
        panes.fit = self.fit
        panes.slots.set_reactive(GpuGrid.level, self._level)

    # --- sizes -------------------------------------------------------------------------------------------------
    def fit(self) -> None:
        """Give every visible pane its size; nothing is laid out if no size has changed."""
        panes, screen = self._panes, self._panes.screen
        total = max(1, panes.room.height - BARS)
        if panes.zoomed is not None:
            panes.slots.fit_to_room(total - self._frame - 1)
            self._apply("", "", "1fr")
        elif screen.has_class("large"):
            self._fit_large(total)
        else:
            self._fit_small(total - 1)  # a line about the selection

    @property
    def _is_low(self) -> bool:
        return self._panes.screen.has_class("low")

    @property
    def _frame(self) -> int:
        return FRAME - self._is_low

    def _fit_large(self, total: int) -> None:
        share = self.state.heights.get(Pane.SLOTS)
        # Tiles, as long as the others keep their minimum; charts need more than a list.
        others = self._runs_least(total) + self._lower_need(None).least + LOG_LEAST
        room = round(share * total) if share else min(total // 2, total - others)
        width = self._grid_width()
        self._panes.slots.fit_to_room(room - FRAME, width - FRAME)
        natural = self._panes.slots.natural_height + FRAME
        # Tiles that fit may take half of the screen; a grid that scrolls leaves more lines to the lists.
        least = max(GRID_LEAST, min(natural, room if natural <= room else total * 2 // 5))
        rows = heights(total, self._large_needs(least, self._runs_least(total)))
        self._apply(" ".join(map(str, rows)), f"{width} 1fr", "100%")

    def _runs_least(self, total: int) -> int:
        return max(LIST_LEAST, min(self._natural_of(Pane.RUNS), RUNS_LEAST, -(-total // RUNS_SHARE)))

    def _large_needs(self, grid: int, runs: int) -> tuple[Need, ...]:
        share = self.state.heights.get
        return (
            Need(grid, grid, 1, share(Pane.SLOTS)),
            Need(runs, self._natural_of(Pane.RUNS), 4, share(Pane.RUNS)),
            self._lower_need(share("lower")),
            Need(LOG_LEAST, self._natural_of(Pane.LOG), 5),
        )

    def _lower_need(self, share: float | None) -> Need:
        natural = self._natural_of("lower", self._panes.lower)
        if self._panes.lower is Pane.CHARTS:
            return Need(CHARTS_LEAST, natural, CHARTS_WEIGHT, share)
        return Need(LIST_LEAST, natural, 4, share)

    def _fit_small(self, total: int) -> None:
        self._panes.slots.fit_to_room(total - LOG_LEAST - self._frame)
        rows = heights(total, self._small_needs())
        self._apply("", "", str(rows[1]))

    def _small_needs(self) -> tuple[Need, ...]:
        natural = self._natural_of("list", self._panes.last_list)
        is_chart = self._panes.last_list is Pane.CHARTS
        return (
            Need(LIST_LEAST, natural, 3 if is_chart else 1, self.state.heights.get("list")),
            Need(LOG_LEAST - 3 * self._is_low, self._natural_of(Pane.LOG), 1),
        )

    def _natural_of(self, place: str, pane: Pane | None = None) -> int:
        """Return the lines that the content of a place fills; a lower number counts only after a delay."""
        widget = self._panes.widget(pane or Pane(place))
        # A place with several views has a height for each.
        key = f"{place} {pane or ''}"
        if isinstance(widget, VirtualTable):
            head = 1 if widget.model.pinned is None else 2
            natural = max(LIST_LEAST, widget.natural_rows + head + self._frame)
        elif isinstance(widget, LogPane):
            has_lines = any(len(log.pane.ring) for log in self._panes.logs.controllers)
            natural, key = ANY if has_lines else LOG_LEAST, place
        else:
            return self._panes.slots.natural_height + self._frame if pane is Pane.SLOTS else ANY
        now = self._clock()
        before, since = self.natural.get(key, (natural, now))
        # abs(): if the clock was set back, the lines must still be given up at some time.
        if natural >= before or abs(now - since) >= SHRINK_SECONDS:
            self.natural[key] = natural, now
            return natural
        return before

    def _grid_width(self) -> int:
        share = self.state.slots_width or GRID_WIDTH
        width = self._panes.room.width
        return max(20, min(width - 20, round(share * width)))

    def _apply(self, rows: str, columns: str, log: str) -> None:
        # Assigning a style triggers a layout of the whole screen, even if the value is the same.
        if (rows, columns, log) == self._applied:
            return
        self._applied = rows, columns, log
        body = self._panes.body.styles
        if rows:
            body.grid_rows, body.grid_columns = rows, columns
        self._panes.logs.styles.height = log

    # --- keys --------------------------------------------------------------------------------------------------
    def action_taller(self, by: int) -> None:
        """Move the lower edge of the focused pane by some lines; for the log, the upper edge."""
        stack = self._stack()
        focused = self._panes.focused_pane or self._panes.last_list
        place = next((name for name, widget in stack if widget is self._widget_of(focused)), "")
        names = [name for name, _ in stack]
        if place not in names or len(names) < 2:
            return
        number = names.index(place)
        at, by = (number, by) if number + 1 < len(names) else (number - 1, -by)
        self._move(names[at], names[at + 1], stack[at][1].outer_size.height + by)

    def action_wider(self, by: int) -> None:
        """Make the grid wider by some columns, or narrower."""
        if self._panes.screen.has_class("large") and self._panes.zoomed is None:
            self._set_width(self._grid_width() + by)

    def action_usual_sizes(self) -> None:
        """Reset all sizes set by the user, and the level of the grid."""
        self._panes.slots.level = None
        self._change(heights={}, slots_width=None, level="")

    # --- mouse -------------------------------------------------------------------------------------------------
    def press(self, x: int, y: int) -> bool:
        """Start dragging the edge at a position of the screen; return False if there is none."""
        self._edge = self._edge_at(x, y)
        return self._edge is not None

    def drag(self, x: int, y: int) -> None:
        """Move the dragged edge to a position of the screen."""
        edge = self._edge
        if edge is None:
            return
        if not edge.above:
            self._set_width(x - edge.offset)
            return
        top = dict(self._stack())[edge.above].region.y
        self._move(edge.above, edge.below, y - edge.offset - top)

    def release(self) -> None:
        """Stop dragging the edge."""
        self._edge = None

    def _edge_at(self, x: int, y: int) -> _Edge | None:
        panes = self._panes
        stack, screen = self._stack(), panes.screen
        slots = panes.slots.region
        is_beside = slots.y <= y < slots.bottom and x in (slots.right - 1, slots.right)
        if is_beside and screen.has_class("large") and panes.zoomed is None:
            return _Edge("", "", x - slots.right, panes.room.width)
        for (above, widget), (below, _) in pairwise(stack):
            # The lower line of one frame and the upper line of the next are the same edge.
            if y in (widget.region.bottom - 1, widget.region.bottom):
                return _Edge(above, below, y - widget.region.bottom, panes.room.height - BARS)
        return None

    # --- inside ------------------------------------------------------------------------------------------------
    def _stack(self) -> list[tuple[str, Widget]]:
        """Return the visible places above each other, from top to bottom."""
        panes = self._panes
        lower, logs = self._widget_of(panes.lower), panes.logs
        if panes.zoomed is not None:
            return []
        if panes.screen.has_class("large"):
            return [(Pane.SLOTS, panes.slots), (Pane.RUNS, panes.runs), ("lower", lower), (Pane.LOG, logs)]
        return [("list", self._widget_of(panes.last_list)), (Pane.LOG, logs)]

    def _widget_of(self, pane: Pane) -> Widget:
        return self._panes.logs if pane is Pane.LOG else self._panes.widget(pane)

    def _move(self, above: str, below: str, height: int) -> None:
        """Set the height of the upper of two panes and give the lower one the rest; the log has no share."""
        sizes = {name: widget.outer_size.height for name, widget in self._stack()}
        total = sum(sizes.values())
        both = sizes[above] + sizes[below]
        if both < 2 * SMALLEST:
            return
        height = max(SMALLEST, min(both - SMALLEST, height))
        lines = {above: height} if below == Pane.LOG else {above: height, below: both - height}
        shares = {name: min(MOST_SHARE, max(LEAST_SHARE, height / total)) for name, height in lines.items()}
        self._change(heights={**self.state.heights, **shares})

    def _set_width(self, columns: int) -> None:
        share = columns / max(1, self._panes.room.width)
        self._change(slots_width=min(MOST_SHARE, max(LEAST_SHARE, share)))

    # --- lasting state -----------------------------------------------------------------------------------------
    @property
    def _level(self) -> ZoomLevel | None:
        """Level of the grid chosen by the user; None for automatic."""
        return next((level for level in ZoomLevel if level == self.state.level), None)

    def choose_level(self, level: ZoomLevel) -> None:
        """Save a level of the grid."""
        self._change(level=str(level))

    def _change(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        self.fit()
        if self._timer is None:  # a repeated key or a moving mouse is written once
            self._timer = self._panes.screen.set_timer(SAVE_SECONDS, self.save)

    def save(self) -> None:
        """Write changes made since the last write."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
            write_screen_state(self.state)


class Need(Struct, frozen=True):
    """Required height of one pane in lines, including its frame.

    Attributes:
        least: Minimum. natural: height above which lines would stay empty.
        weight: Relative part of the lines that several panes could use.
        share: Part of all lines set by the user, 0 to 1; None for automatic height.
    """

    least: int
    natural: int
    weight: int = 1
    share: float | None = None


def heights(total: int, needs: Sequence[Need]) -> list[int]:
    """Divide lines among panes; their sum is ``total``, unless ``total`` is less than one line each.

    Panes with a share get it, as long as the others keep their minimum. The rest is given line by line to the pane
    with the fewest lines for its weight that could use more; if none could, to the last pane without a share.
    """
    result = _least(total, needs)
    for number, need in enumerate(needs):
        if need.share is not None:
            spare = max(0, total - sum(result))
            result[number] += min(spare, max(0, round(need.share * total) - result[number]))
    free = [number for number, need in enumerate(needs) if need.share is None] or [len(needs) - 1]
    for _ in range(total - sum(result)):
        hungry = [number for number in free if result[number] < needs[number].natural] or free[-1:]
        result[min(hungry, key=lambda number: result[number] / needs[number].weight)] += 1
    return result


def _least(total: int, needs: Sequence[Need]) -> list[int]:
    """Return the minimum of each pane, shrunk in proportion if even these do not fit."""
    least = [need.least if need.share is None else min(need.least, SMALLEST) for need in needs]
    while sum(least) > total and max(least) > 1:
        least[least.index(max(least))] -= 1
    return least


SMALLEST = 4
"""Height of a pane that the user has shrunk: its frame, a header and a row."""


MAX_BYTES: Final = 4096
"""A larger file was not written by the app."""
LEAST_SHARE: Final = 0.02
MOST_SHARE: Final = 0.95

Share = Annotated[float, msgspec.Meta(ge=LEAST_SHARE, le=MOST_SHARE)]


class ScreenState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes and level that the user has set with keys or the mouse.

    Attributes:
        heights: Share of the screen's height by name of a pane; panes without one are sized automatically.
        slots_width: Share of the screen's width for the grid next to the details; None for the default.
        level: Zoom level of the grid; empty for automatic.
    """

    heights: Annotated[dict[str, Share], msgspec.Meta(max_length=16)] = {}
    slots_width: Share | None = None
    level: str = ""


def read_screen_state() -> ScreenState:
    """Return the state of the last start, or the defaults if there is no readable file."""
    try:
        with (state_dir() / "screen.json").open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return bounded_json.decode(data, ScreenState) if len(data) <= MAX_BYTES else ScreenState()
    except (OSError, ValueError):
        return ScreenState()


def write_screen_state(state: ScreenState) -> None:
    """Save the state, readable only by the user; errors are ignored."""
    try:
        write_private(state_dir() / "screen.json", msgspec.json.encode(state).decode())
    except OSError:
        return
