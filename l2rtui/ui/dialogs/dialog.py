"""Base of all dialogs: a frame in the middle of the screen, esc to close, keys from the table.

Keys may come faster than screens: a dialog may be opened again while it is still being removed, and answered before
it is mounted. Both cases are handled here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from textual import events, on
from textual.await_complete import AwaitComplete
from textual.geometry import Region
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.dialogs.body import REST, take_rest
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.text import Line, Span, TextStyle
from l2rtui.ui.toasts import make_room
from l2rtui.ui.widgets.span_renderer import to_text

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
