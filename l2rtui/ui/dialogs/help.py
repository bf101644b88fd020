"""Help screen: all keys by context, generated from the key table, and the page of docs/ for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from l2rtui.ui.dialogs.detail import DetailScreen
from l2rtui.ui.keys.palette import COMMANDS
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
    KeyContext.DIALOG: "keys.md",
    KeyContext.APP: "index.md",
    COMMANDS_HEADING: "keys.md#commands",
    FILTERS_HEADING: "commands.md#choose",
}
"""The page of docs/ that the help names under each heading."""


class HelpScreen(DetailScreen):
    """All keys with their actions; opens at a heading: a ``KeyContext`` or one of the headings above."""

    def __init__(self, keys: KeyTable, may: Callable[[str], str] = lambda _: "", start: str = "") -> None:
        super().__init__(help_lines(keys, may), "Keys", name="help")
        self._start = start

    def on_mount(self) -> None:
        """Scroll to the heading."""
        super().on_mount()
        if self._start:
            self.call_after_refresh(self._scroll_to_start)

    def _scroll_to_start(self) -> None:
        rows = "".join(f"{''.join(span.text for span in row)}\n" for row in self._rows).split("\n")
        self.query_one("#body").scroll_to(y=rows.index(self._start), animate=False, force=True)


def _heading(text: str, *, is_first: bool = False) -> list[Line]:
    return [
        (Span(f"{'' if is_first else chr(10)}{text}", TextStyle.ACCENT),),
        *([(Span(f"  docs/{PAGES[text]}", TextStyle.DIM),)] if text in PAGES else ()),
    ]


def help_lines(keys: KeyTable, may: Callable[[str], str]) -> list[Line]:
    """Format the tables of keys and commands as lines; ``may`` returns why an action is unavailable, or ""."""
    lines: list[Line] = []
    for context in KeyContext:
        lines += _heading(context, is_first=not lines)
        for key in keys.of(context):
            reason = may(key.action) if key.context in GREYED else ""
            note = (Span(f"  off: {reason}", TextStyle.WARN),) if reason else ()
            text = Span(key.tooltip, TextStyle.DIM if reason else TextStyle.PLAIN)
            lines.append((Span(f"  {key.face:<12}", TextStyle.DIM if reason else TextStyle.STRONG), text, *note))
    lines += _heading(COMMANDS_HEADING)
    for command in COMMANDS:
        usage = f"{command.name} {command.takes}"
        lines.append((Span(f"  {usage:<28}", TextStyle.STRONG), Span(command.tooltip)))
    lines += _heading(FILTERS_HEADING)
    lines += [(Span(f"  {form:<28}", TextStyle.STRONG), Span(meaning)) for form, meaning in _FILTERS]
    return lines
