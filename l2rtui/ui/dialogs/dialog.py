"""Base of all dialogs: a frame in the middle of the screen, esc to close, keys from the table; and one that shows
text.

Keys may come faster than screens: a dialog may be opened again while it is still being removed, and answered before
it is mounted. Both cases are handled here.

One part of a dialog takes the remaining height and scrolls; the frame shows how many lines are below. A style
sheet can limit the height of a dialog, but then cuts its content without a sign. It cannot give the remaining
height to one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical, VerticalScroll
from textual.geometry import Region
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.text import Line, Span, TextStyle, hanging
from l2rtui.ui.theme import plain
from l2rtui.ui.toasts import make_room
from l2rtui.ui.widgets.span_renderer import is_plain, to_text

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


Answer = TypeVar("Answer")
_MAX_LAYOUTS: Final = 8
if TYPE_CHECKING:
    _AnyScreen = Screen[Any]
else:
    # Textual takes CSS from the first base that is a widget.
    _AnyScreen = object


class SettledScreen(_AnyScreen):
    """Mixin for a screen that the terminal shows once its parts have their sizes.

    A list or a text is first laid out with all its lines, over the fields and hints below it. It gets the remaining
    height only then, and no frame shows that.
    """

    is_laid_out = False

    @property
    def is_open(self) -> bool:
        """False once it closes: its widgets are removed before the screen is, and what arrives then finds none."""
        return self.is_attached and self in self.app.screen_stack

    def settle(self, left: int = _MAX_LAYOUTS, before: tuple[Region, ...] = ()) -> None:
        """Appear as soon as a refresh moves nothing, or no more refreshes are left."""
        regions = tuple(widget.region for widget in self.walk_children(Widget) if widget.display)
        if left and (not before or regions != before or self._layout_required):
            self.call_after_refresh(self.settle, left - 1, regions)
            return
        self.is_laid_out = True
        self.refresh()


class Dialog(SettledScreen, ModalScreen[Answer]):
    """Modal screen; nothing below it gets a key."""

    BINDINGS = bindings(KeyContext.DIALOG)
    AUTO_FOCUS = None

    def __init__(self, name: str) -> None:
        """Set the style sheet's name as a class, not an id, since two dialogs of a kind may exist for a moment."""
        super().__init__(classes=name)

    @on(events.Mount)
    def _keep_clear_of_toasts(self) -> None:
        """Keep the toasts off the text: later toasts too, and after the text has grown."""
        self.screen_layout_refresh_signal.subscribe(self, make_room, immediate=True)
        self.call_after_refresh(self.settle)

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        """Answer and close, once; an answer given before the dialog is mounted is applied after mounting."""
        if not self.is_mounted:
            self.call_later(self._answer, result)
        # A second answer, from a key pressed twice, arrives after the dialog was removed and is dropped.
        elif self in self.app.screen_stack:
            return super().dismiss(result)
        return AwaitComplete()

    def _answer(self, result: Answer | None) -> None:
        self.dismiss(result)  # not awaited: a screen cannot wait for its own removal

    def show(self, id: str, lines: Sequence[Line]) -> None:  # noqa: A002  (Textual's name)
        """Display lines in the Static with this id; does nothing while the dialog closes, as its widgets are
        removed first.
        """
        if not self.is_current and not self.query(f"#{id}"):
            return
        self.query_one(f"#{id}", Static).update(to_text(self.app, lines))
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Limit the scrolling part again: another text may now have more or fewer lines."""
        for part in self.query(f".{REST}"):
            take_rest(part)

    def show_command(self, command: str, note: str = "") -> None:
        """Display an equivalent command line in the Static ``command``."""
        same = Span("same as  ", TextStyle.DIM), Span(sanitize(command)), Span(note, TextStyle.DIM)
        self.show("command", [same])

    def action_accept(self) -> None:
        """Accept; does nothing in a dialog without a question."""

    def action_copy(self) -> None:
        """Copy the command line; does nothing in a dialog without one."""

    async def action_command_line(self) -> None:
        """Close, and open the prompt of the screen below, if it has one."""
        below = self.app.screen_stack[-2]
        if hasattr(below, "action_command_line"):
            self.dismiss(None)
            await self.app.run_action("command_line", below)

    def action_close(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


class DetailScreen(Dialog[None], inherit_bindings=False):
    """Lines about one object, as they were when the screen was opened."""

    FIRST: ClassVar = "#body"
    """Part with the focus: the scroll container, so that arrow keys scroll."""
    BINDINGS = bindings(KeyContext.TEXT)

    def __init__(self, lines: Sequence[Line], title: str = "Selection", *, name: str = "description") -> None:
        super().__init__(name)
        self._title = title
        self.lines = tuple(lines)

    def compose(self) -> ComposeResult:
        """Title and text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with DialogBody(id="body", classes=REST):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Show the lines."""
        self.show("title", [(Span(self._title, TextStyle.STRONG), Span("   esc closes", TextStyle.DIM))])
        self._break_lines()
        self.set_focus(self.query_one(self.FIRST))  # not focus(), which waits: letters may follow immediately

    def on_resize(self) -> None:
        """Wrap the lines again, once the widgets have their new widths."""
        self.call_after_refresh(self._break_lines)

    def _break_lines(self) -> None:
        # This may be called after the screen was closed and its widgets were removed.
        if self.query("#lines"):
            self.show("lines", self._rows)

    @property
    def _rows(self) -> list[Line]:
        """The lines wrapped to the current width."""
        width = self.query_one("#lines").size.width or self.app.size.width
        return [row for line in self.lines for row in hanging(line, width)]
