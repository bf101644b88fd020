"""Help screen: all keys by context and the page of docs/ for each; a search by name, text and synonym."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from l2rtui.ui.dialogs.body import REST, DialogBody
from l2rtui.ui.dialogs.detail import DetailScreen
from l2rtui.ui.keys.palette import COMMANDS, is_meant
from l2rtui.ui.keys.table import KeyContext, KeyTable
from l2rtui.ui.text import Line, Span, TextStyle

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
            yield Input(
                id="search", placeholder="type to search: restart, curve, port, yaml", select_on_focus=False
            )
            with DialogBody(id="body", classes=REST):
                yield Static(id="lines")

    def on_mount(self) -> None:
        """Scroll to the heading."""
        super().on_mount()
        if self._start:
            self.call_after_refresh(self._scroll_to_start)

    def _scroll_to_start(self) -> None:
        rows = "".join(f"{''.join(span.text for span in row)}\n" for row in self._rows).split("\n")
        if self._start in rows:  # text may have been typed by now
            self.query_one("#body").scroll_to(y=rows.index(self._start), animate=False, force=True)

    @on(Input.Changed)
    def _searched(self, event: Input.Changed) -> None:
        self._lines = tuple(help_lines(self._keys, self._may, event.value))
        self._break_lines()
        self.query_one("#body").scroll_to(y=0, animate=False, force=True)

    def action_scroll_text(self, how: str) -> None:
        """Scroll the text by a line or a page."""
        getattr(self.query_one("#body"), how)(animate=False)


def _heading(text: str, *, is_first: bool = False) -> list[Line]:
    return [
        (Span(f"{'' if is_first else chr(10)}{text}", TextStyle.ACCENT),),
        *([(Span(f"  docs/{PAGES[text]}", TextStyle.DIM),)] if text in PAGES else ()),
    ]


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
        for key in keys.of(context):
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
