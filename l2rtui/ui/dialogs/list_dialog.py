"""Base of the dialogs with rows: layout, loading, dialog keys, the equivalent command, one input field."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input, Static

from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.tables.column import TableColumn
from l2rtui.ui.dialogs.dialog import Answer, Dialog
from l2rtui.ui.keys.table import KeyContext
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle, key_hints
from l2rtui.ui.widgets.prompt_input import PromptInput
from l2rtui.ui.widgets.table_model import Row
from l2rtui.ui.widgets.virtual_table import VirtualTable


class ListDialog(Dialog[Answer]):
    """Rows under a title; below the rows texts, a ``#command``, an input field while it is open, and a ``#hint``.

    A subclass gives the title, the subject and the command line, and loads the rows.

    Args:
        name: Class in the style sheet, and the group of its background work.
    """

    KEY_CONTEXT: ClassVar[KeyContext]
    """Context of the dialog's keys in the key table."""
    ROW_HINTS: ClassVar[tuple[str, ...]] = ()
    """Keys of the rows that the hint names before the keys of the dialog."""
    ROW_ACTIONS: ClassVar[frozenset[str]] = frozenset()
    """Actions of the dialog that need a row under the cursor."""
    PANELS: ClassVar[tuple[str, ...]] = ("progress",)
    """Ids of the texts between the rows and the command line."""
    FRAME: ClassVar[str] = "dialog wide"
    """Classes of the frame around the content."""

    def __init__(
        self,
        name: str,
        ctx: AppContext,
        columns: Sequence[TableColumn],
        field: PromptInput,
        *,
        table_id: str = "table",
    ) -> None:
        super().__init__(name)
        self._ctx = ctx
        self._group = name
        self._field = field
        # Question below the open input field; empty while it is closed, or if its placeholder asks.
        self._prompt = ""
        # Table that has the focus while nothing is typed; a subclass may change it.
        self._table = VirtualTable(columns, empty="Loading…", clock=ctx.clock, id=table_id)

    def compose(self) -> ComposeResult:
        """Title, rows, panels, command line, input field, hint."""
        with Vertical(classes=self.FRAME):
            yield Static(id="title")
            yield from self._tables()
            for panel in self.PANELS:
                text = Static(id=panel)
                text.display = False
                yield text
            yield Static(id="command")
            yield self._field
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Load once all widgets exist."""
        # Not overridden: Textual calls on_mount of every class in the MRO.
        self._table.focus()
        self._begin()
        self._update_texts()

    def _begin(self) -> None:
        """Load the first rows."""
        self.action_again()

    def _tables(self) -> Iterable[Widget]:
        return (self._table,)

    @property
    def _title(self) -> Line:
        raise NotImplementedError

    @property
    def _subject(self) -> str:
        """Start of the sentence about a failure to load: ``the images``."""
        raise NotImplementedError

    async def _load(self) -> None:
        """Fetch the rows and show them."""
        raise NotImplementedError

    @property
    def _command_line(self) -> str:
        """The equivalent command; empty without one."""
        return ""

    def action_again(self) -> None:
        """Load the rows again."""
        self._ctx.background.start(self._load(), group=self._group, what=self._subject, is_exclusive=True)

    def _show_rows(self, rows: Sequence[Row], *, empty: str) -> None:
        self._table.empty_text = empty
        self._table.set_rows(rows)

    def _show_error(self, error: L2RError) -> None:
        """Show the error in place of rows; rows of an earlier answer stay, and a toast has a new error."""
        before = self._table.empty_text
        self._table.empty_text = sanitize(f"{error.message} {error.hint}".strip())
        if self._table.model.rows and self._table.empty_text != before:
            self._ctx.background.say(str(error), is_error=True, title=self._subject)

    @on(VirtualTable.CursorMoved)
    @on(VirtualTable.Rearranged)
    @on(Input.Changed)
    def _selection_changed(self) -> None:
        self._update_texts()

    def _update_texts(self) -> None:
        """Show what depends on the row under the cursor: title, command, and either the question or the keys."""
        self.show("title", [self._title])
        self.show_command(self._command_line)
        keys_here = self._ctx.keys.of(self.KEY_CONTEXT)
        hints = [f"{key.face} {key.label}" for key in keys_here if self._is_offered(key.action)]
        hints[:0] = self.ROW_HINTS if self._table.cursor_key is not None else ()
        # Before the first layout there is no width: use the terminal's until on_resize.
        width = self.query_one("#hint").size.width or self.app.size.width
        keys = key_hints([*hints, "c copy", "esc close"], width)
        self.show("hint", [(Span(self._prompt),)] if self._prompt else keys)

    def _is_offered(self, action: str) -> bool:
        """Return True if a key of the dialog can act now; the hint names only such keys."""
        return self._table.cursor_key is not None or action not in self.ROW_ACTIONS

    def show(self, id: str, lines: Sequence[Line]) -> None:  # noqa: A002  (Textual's name)
        """Display lines in the Static with this id; an empty panel takes no space."""
        super().show(id, lines)
        if id in self.PANELS:
            for panel in self.query(f"#{id}"):
                panel.display = bool(lines)

    def on_resize(self) -> None:
        """Wrap the line of keys again, once the widgets have their new widths."""
        self.call_after_refresh(self._update_texts)

    def _show_progress(self, text: str, *, is_step: bool = True) -> None:  # noqa: ARG002  (a screen shows each)
        # Transfers outlive the dialog, and report to it only while it is attached.
        if self.is_open:
            self.show("progress", [(Span(sanitize(text), TextStyle.ACCENT),)] if text else [])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002  (Textual's)
        """Disable actions that ``--readonly`` or missing permissions forbid."""
        return None if self._ctx.forbidden(action) else True

    def on_key(self, event: events.Key) -> None:
        """Show why a disabled key does nothing."""
        key = self._ctx.keys.pressed(event.key, self.KEY_CONTEXT)
        if key is not None and not self._field.display and (reason := self._ctx.forbidden(key.action)):
            self._ctx.background.say(f"{key.face} ({key.label}) is off: {reason}.")

    def action_copy(self) -> None:
        """Copy the command line, if there is one."""
        if self._command_line:
            self._ctx.background.copy(self._command_line)

    def _ask(self, prompt: str = "", value: str = "") -> None:
        """Open the input field."""
        self._prompt = prompt
        self._field.open(value)
        self._update_texts()

    def _close_field(self) -> None:
        self._prompt = ""
        self._field.close()
        self.set_focus(self._table)
        self._update_texts()

    def action_close(self) -> None:
        """Close the input field if it is open, otherwise the dialog."""
        if self._field.display:
            self._close_field()
        else:
            self.dismiss(None)
