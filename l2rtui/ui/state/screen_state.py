"""Look of the screen between two starts: sizes of panes and the level of the grid, in ``screen.json``.

Never in the way: a file that is missing, unreadable or garbage is as good as none, and one that cannot be written
is not written. Several apps may run at once; the last change of any of them stays.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from l2rtui.config import state_dir
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

MAX_BYTES: Final = 4096
"""A file that is larger is not ours."""
LEAST_SHARE: Final = 0.02
MOST_SHARE: Final = 0.95

Share = Annotated[float, msgspec.Meta(ge=LEAST_SHARE, le=MOST_SHARE)]


class ScreenState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sizes and level that somebody has set with keys or the mouse.

    Attributes:
        heights: Share of the screen's height by name of a pane; panes without one take what suits them.
        slots_width: Share of the screen's width that the grid has beside the details; None for the usual.
        level: Zoom level of the grid; empty for the one that fits.
    """

    heights: Annotated[dict[str, Share], msgspec.Meta(max_length=16)] = {}
    slots_width: Share | None = None
    level: str = ""


def read_screen_state() -> ScreenState:
    """Return the state of the last start; that of a first one where there is none, or none that can be read."""
    try:
        with (state_dir() / "screen.json").open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return bounded_json.decode(data, ScreenState) if len(data) <= MAX_BYTES else ScreenState()
    except (OSError, ValueError):
        return ScreenState()


def write_screen_state(state: ScreenState) -> None:
    """Save the state, for the user alone; without a word where that is impossible."""
    try:
        write_private(state_dir() / "screen.json", msgspec.json.encode(state).decode())
    except OSError:
        return
