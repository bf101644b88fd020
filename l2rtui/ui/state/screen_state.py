"""Screen state kept between two starts: sizes of panes and the level of the grid, in ``screen.json``.

Errors are ignored: a file that is missing, unreadable or invalid gives the defaults, and a failed write is skipped.
With several apps running, the last change wins.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from l2rtui.config import state_dir
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

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
