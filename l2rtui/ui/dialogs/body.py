"""Part of a dialog that takes what the other parts leave and scrolls; the frame says how much lies below.

A style sheet can bound the dialog, and with that cut what is in it without a sign; it cannot give a part the rest.
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
    # Textual takes CSS from the first base that is a widget: that must be the one that draws.
    _Part = object

DIALOG_SHARE: Final = 0.92
"""Part of the terminal's height that a dialog may take: ``max-height`` of ``.dialog``."""
REST: Final = "rest"
"""Class of the part of a dialog that takes the rest."""
_LEAST: Final = 3


class TakesRest(_Part):
    """Base before that of a widget with the class ``REST``, beside which all other parts stay in sight."""

    def on_resize(self) -> None:
        """Bound the height by what the others leave, and renew the sign."""
        take_rest(self)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Renew the sign."""
        super().watch_scroll_y(old_value, new_value)
        _say_more(self)


class DialogBody(TakesRest, VerticalScroll):
    """Scrolling part of a dialog."""


class DialogChoices(TakesRest, OptionList):
    """Entries of a dialog to choose from, a line each."""


def take_rest(widget: Widget) -> None:
    """Bound the height of a part of a dialog by what the other parts leave, and say how much lies below."""
    dialog = widget.parent
    if not isinstance(dialog, Widget):
        return
    regions = [child.virtual_region_with_margin for child in dialog.displayed_children]
    used = max(region.bottom for region in regions) - min(region.y for region in regions)
    others = used - widget.virtual_region.height
    height = max(_LEAST, int(widget.app.size.height * DIALOG_SHARE) - dialog.gutter.height - others)
    # Assigning a style lays out the screen, also when it is the same.
    if widget.styles.max_height is None or widget.styles.max_height.value != height:
        widget.styles.max_height = height
    _say_more(widget)


def _say_more(widget: Widget) -> None:
    """Say in the frame of a dialog how many lines of its scrolling part lie below."""
    below = widget.virtual_size.height - widget.size.height - round(widget.scroll_y)
    sign = f"↓ {below} more" if below > 0 else ""
    if isinstance(widget.parent, Widget):
        widget.parent.border_subtitle = plain(sign) if is_plain(widget.app) else sign
