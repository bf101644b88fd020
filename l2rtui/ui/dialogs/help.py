"""Help screen: all keys by context and the page of docs/ for each; a search by name, text and synonym."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, zip_longest
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.ui.dialogs.dialog import REST, DetailScreen, DialogBody
from l2rtui.ui.keys.palette import COMMANDS, is_meant
from l2rtui.ui.keys.table import BAR, Key, KeyContext, KeyTable
from l2rtui.ui.text import Line, Span, TextStyle, hanging, width_of

_FILTERS: Final = (
    ("word  !word", "Appears somewhere in the row, or nowhere"),
    ("status=Failed  node!=n1", "A column is this, or is not"),
    ("model~A100  pod!~eval", "A column contains this, or does not"),
    ("free>=2  age<2h  memory>64Gi", "A column's number, age or size"),
    ("gpu.free>=2  gpu.model=H100  gpu.memory>=40G", "Slots and nodes: all of it holds of one GPU"),
)
GREYED: Final = (KeyContext.CLUSTER, KeyContext.SIMULATOR, KeyContext.VOLUME, KeyContext.IMAGE, KeyContext.ARTIFACT)
"""Contexts in which a forbidden key shows the reason."""


COMMANDS_HEADING: Final = "Commands, after :"
FILTERS_HEADING: Final = "Filters"
PAGES: Final = {
    KeyContext.CLUSTER: "screen.md",
    KeyContext.GRID: "screen.md#the-slot-grid",
    KeyContext.TABLE: "screen.md",
    KeyContext.LOG: "screen.md#logs",
    KeyContext.CHARTS: "screen.md#charts",
    KeyContext.PLACEMENT: "guides/reserve-and-share.md",
    KeyContext.SIMULATOR: "guides/simulators.md",
    KeyContext.VOLUME: "guides/data.md",
    KeyContext.IMAGE: "guides/images.md",
    KeyContext.ARTIFACT: "guides/evaluate-film-export.md",
    KeyContext.EXPERIMENT: "guides/seeds-curves-report.md",
    KeyContext.OWNER: "guides/reserve-and-share.md",
    KeyContext.HISTORY: "guides/resume-and-reproduce.md",
    KeyContext.LAUNCH: "commands.md",
    KeyContext.DIALOG: "keys.md",
    KeyContext.TEXT: "keys.md",
    KeyContext.APP: "index.md",
    COMMANDS_HEADING: "keys.md#commands",
    FILTERS_HEADING: "commands.md#choose",
}
"""The page of docs/ that the help names under each heading."""


class HelpScreen(DetailScreen):
    """All keys with their actions; opens at a heading: a ``KeyContext`` or one of the headings above.

    Typed text leaves the keys and commands that it means, by the rules of the palette.
    """

    FIRST = "#search"
    BINDINGS: ClassVar[list[BindingType]] = [
        # The field has the focus, and no use for these.
        ("up", "scroll_text('scroll_up')"),
        ("down", "scroll_text('scroll_down')"),
        ("pageup", "scroll_text('scroll_page_up')"),
        ("pagedown", "scroll_text('scroll_page_down')"),
    ]

    def __init__(self, keys: KeyTable, may: Callable[[str], str] = lambda _: "", start: str = "") -> None:
        super().__init__(help_lines(keys, may), "Keys", name="help")
        self._keys, self._may, self._start = keys, may, start

    def compose(self) -> ComposeResult:
        """Title, field for the search, and text."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            field = Input(id="search", placeholder="type to search: restart, curve, port", select_on_focus=False)
            field.cursor_blink = False  # nothing else moves in a text that is read
            yield field
            with DialogBody(id="body", classes=REST):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Scroll to the heading."""
        super().on_mount()
        if self._start:
            self.call_after_refresh(self._scroll_to_start)

    def _scroll_to_start(self) -> None:
        headings = (row[0].text if row else "" for row in self._rows)
        y = next((y for y, text in enumerate(headings) if text == self._start), None)
        if y is not None:  # text may have been typed by now
            self.query_one("#body").scroll_to(y=y, animate=False, force=True)

    @property
    def _rows(self) -> list[Line]:
        """The lines; keys in two columns where both columns have room for all keys of their heading."""
        width = self.query_one("#lines").size.width or self.app.size.width
        column = width // 2
        rows: list[Line] = []
        for is_entry, lines in groupby(self.lines, key=_is_entry):
            entries = list(lines)
            if not is_entry or any(width_of(entry) > column - 2 for entry in entries):
                rows += [row for entry in entries for row in hanging(entry, width)]
                continue
            middle = -(-len(entries) // 2)
            for left, right in zip_longest(entries[:middle], entries[middle:], fillvalue=()):
                rows.append((*left, Span(" " * (column - width_of(left))), *right))
        return rows

    @on(Input.Changed)
    async def _searched(self, event: Input.Changed) -> None:
        if event.value == ":":  # as in the other texts, whose letters have no field
            await self.action_command_line()
            return
        self.lines = tuple(help_lines(self._keys, self._may, event.value))
        self._break_lines()
        self.query_one("#body").scroll_to(y=0, animate=False, force=True)

    def action_scroll_text(self, how: str) -> None:
        """Scroll the text by a line or a page."""
        getattr(self.query_one("#body"), how)(animate=False)


def _heading(text: str, *, is_first: bool = False) -> list[Line]:
    page = (Span(f"   docs/{PAGES[text]}", TextStyle.DIM),) if text in PAGES else ()
    return [*([] if is_first else [(Span(""),)]), (Span(text, TextStyle.HEADING), *page)]


def _is_entry(line: Line) -> bool:
    return line[0].text.startswith(" ")


def _order(key: Key) -> tuple[int, bool]:
    """Order of the keys under a heading: those of the key bar, those that look, those that change something."""
    return BAR.index(key.id) if key.id in BAR else len(BAR), key.changes


def help_lines(keys: KeyTable, may: Callable[[str], str], words: str = "") -> list[Line]:
    """Format the tables of keys and commands as lines.

    Args:
        may: Return why an action is unavailable, or "".
        words: Only keys and commands that these words mean; empty for all.
    """
    parts: list[tuple[str, list[Line]]] = []
    words = words.strip()
    for context in KeyContext:
        lines: list[Line] = []
        for key in sorted(keys.of(context), key=_order):
            if words and not is_meant(words, key.name, f"{key.face} {key.tooltip}"):
                continue
            reason = may(key.action) if key.context in GREYED else ""
            note = (Span(f"  off: {reason}", TextStyle.WARN),) if reason else ()
            text = Span(key.tooltip, TextStyle.DIM if reason else TextStyle.PLAIN)
            lines.append((Span(f"  {key.face:<12}", TextStyle.DIM if reason else TextStyle.STRONG), text, *note))
        parts.append((str(context), lines))
    commands: list[Line] = [
        (Span(f"  {f'{command.name} {command.takes}':<28}", TextStyle.STRONG), Span(command.tooltip))
        for command in COMMANDS
        if not words or is_meant(words, command.name, command.tooltip)
    ]
    filters: list[Line] = [
        (Span(f"  {form:<28}", TextStyle.STRONG), Span(meaning))
        for form, meaning in _FILTERS
        if not words or is_meant(words, form, meaning)
    ]
    parts += [(COMMANDS_HEADING, commands), (FILTERS_HEADING, filters)]
    rows: list[Line] = []
    for heading, lines in parts:
        if lines or not words:
            rows += [*_heading(heading, is_first=not rows), *lines]
    return rows or [(Span(f"No key or command says {words!r}: try another word for it.", TextStyle.DIM),)]
