"""Part of a dialog that takes the remaining height and scrolls; the frame shows how many lines are below.

A style sheet can limit the height of a dialog, but then cuts its content without a sign. It cannot give the
remaining height to one part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import OptionList

from l2rtui.ui.theme import plain
from l2rtui.ui.widgets.span_renderer import is_plain

if TYPE_CHECKING:
    _Part = Widget
else:
    # Textual takes CSS from the first base that is a widget, so that base must be the widget that draws.
    _Part = object

DIALOG_SHARE: Final = 0.92
"""Share of the terminal's height that a dialog may take: ``max-height`` of ``.dialog``."""
REST: Final = "rest"
"""CSS class of the part of a dialog that takes the remaining height."""
_LEAST: Final = 3


class TakesRest(_Part):
    """Mixin for a widget with the class ``REST``; it limits its height so that all other parts stay visible."""

    def on_resize(self) -> None:
        """Limit the height to the remaining lines, and update the count in the frame."""
        take_rest(self)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Update the count in the frame."""
        super().watch_scroll_y(old_value, new_value)
        _say_more(self)


class DialogBody(TakesRest, VerticalScroll):
    """Scrolling part of a dialog."""


class DialogChoices(TakesRest, OptionList):
    """Entries to choose from in a dialog, one line each."""


def take_rest(widget: Widget) -> None:
    """Limit a part of a dialog to the height that the other parts leave, and show how many lines are below."""
    dialog = widget.parent
    if not isinstance(dialog, Widget):
        return
    regions = [child.virtual_region_with_margin for child in dialog.displayed_children]
    used = max(region.bottom for region in regions) - min(region.y for region in regions)
    others = used - widget.virtual_region.height
    height = max(_LEAST, int(widget.app.size.height * DIALOG_SHARE) - dialog.gutter.height - others)
    # Assigning a style triggers a layout even if the value is the same.
    if widget.styles.max_height is None or widget.styles.max_height.value != height:
        widget.styles.max_height = height
    _say_more(widget)


def _say_more(widget: Widget) -> None:
    """Show in a dialog's frame how many lines of its scrolling part are below."""
    below = widget.virtual_size.height - widget.size.height - round(widget.scroll_y)
    sign = f"↓ {below} more" if below > 0 else ""
    if isinstance(widget.parent, Widget):
        widget.parent.border_subtitle = plain(sign) if is_plain(widget.app) else sign
