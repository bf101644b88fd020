"""Position of the toasts: under the status line or above the key bar, away from questions and input fields."""

from __future__ import annotations

from typing import Final

from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

ABOVE: Final = 1
"""Lines of the status bar, which toasts keep free; the key bar has as many."""
FRAME: Final = 2
"""Lines of a dialog above its title."""
LOW: Final = "toasts-low"
"""Class of a screen whose toasts are at the bottom."""


def make_room(screen: Screen[object]) -> None:
    """Move the toasts of a screen off its focused field and its dialog; without these they are at the top.

    At the top they hide least: new log lines, prompts and the key bar are at the bottom.
    """
    focused = screen.focused
    top = bottom = screen.size.height - ABOVE  # the key bar stays visible, however many toasts there are
    if isinstance(focused, Input) and focused.region.height:
        top, bottom = focused.region.y, focused.region.bottom
    # If a prompt pushes the key bar up, the bar is the upper one of the two.
    top = min(top, *(bar.region.y for bar in screen.query_children("KeyBar") if bar.region.height), top)
    room_above, room_below = top - ABOVE, screen.size.height - ABOVE - bottom
    is_low = room_below > room_above
    for dialog in screen.query_children(".dialog"):  # its question stays visible: the lines above it are blank
        is_low, room_above = False, dialog.region.y + FRAME - ABOVE
    screen.set_class(is_low, LOW)
    room = max(0, room_below if is_low else room_above)
    for rack in screen.query_children("ToastRack"):
        for holder in rack.children:
            # Textual's rack removes a toast that ended on another screen, or was cleared, without its holder, whose
            # blank lines would push later toasts out of sight.
            if holder.is_mounted and not holder.children:
                holder.remove()
        _limit(rack, room)
        if screen.query_children(".dialog"):
            _show_newest(rack, room)


def _limit(rack: Widget, height: int) -> None:
    # Assigning a style triggers a layout of the screen even if the value is the same.
    if rack.styles.max_height is None or rack.styles.max_height.value != height:
        rack.styles.max_height = height


def _show_newest(rack: Widget, height: int) -> None:
    """Hide the older toasts if only a few fit: the rack would hide the newer ones."""
    used = 0
    for toast in reversed([toast for toast in rack.query("Toast") if toast.display]):
        toast.display = not used or used + toast.region.height <= height
        used += toast.region.height
