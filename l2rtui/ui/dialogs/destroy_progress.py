"""Destroying runs: how many objects are left while it goes on, and at the end the receipt of each run."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Static

from l2rtui.backends.base import Receipt
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import L2RError
from l2rtui.ui.link import Link
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone


class ReceiptScreen(Dialog[None]):
    """Shown until it is dismissed. Closed early, it lets the work go on and the receipt comes as a notification."""

    def __init__(self, link: Link, runs: Sequence[RunView]) -> None:
        super().__init__("receipt")
        self._link = link
        self._runs = tuple(runs)
        self._lines: dict[str, Line] = {
            run.uid: (Span("◌ ", Tone.WAIT), Span(f"{sanitize(run.name)} is being destroyed")) for run in runs
        }
        self._ended: set[str] = set()

    def compose(self) -> ComposeResult:
        """Title, a line for each run, a button."""
        with Vertical(classes="dialog"):
            yield Static(id="title")
            yield Static(id="lines")
            with Horizontal(classes="buttons"):
                yield Button("Close", id="close", compact=True)

    def on_mount(self) -> None:
        """Begin; the runs go at the same time."""
        self._show()
        self.query_one("#close").focus()
        for run in self._runs:
            self._link.background.start(self._destroy(run), group="destroy", what=f"destroying {run.name}")

    async def _destroy(self, run: RunView) -> None:
        from l2rtui.services import launcher

        grace = self._link.settings.grace_seconds
        with self._link.background.busy(f"destroying {run.name}"):
            try:
                async for item in launcher.destroy(self._link.backend, run, grace_seconds=grace):
                    if isinstance(item, Receipt):
                        self._end(run, item.sentence, is_bad=bool(item.left), kept=item.kept)
                    else:
                        left = "  ".join(f"{kind} {number}" for kind, number in item.left)
                        text = f"{sanitize(run.name)} is being destroyed, left: {sanitize(left)}"
                        self._set(run, (Span("◌ ", Tone.WAIT), Span(text)))
            except L2RError as error:
                self._end(run, str(error), is_bad=True)

    def _end(self, run: RunView, sentence: str, *, is_bad: bool, kept: str = "") -> None:
        glyph = Span("✖ ", Tone.BAD) if is_bad else Span("✔ ", Tone.OK)
        results = (Span(f"\n  results are kept in {sanitize(kept)}", Tone.DIM),) if kept else ()
        self._ended.add(run.uid)
        self._set(run, (glyph, Span(sanitize(sentence), Tone.STRONG), *results))
        if not self.is_attached:
            self._link.background.say(sentence, is_error=is_bad)

    def _set(self, run: RunView, line: Line) -> None:
        self._lines[run.uid] = line
        if self.is_attached:
            self._show()

    def _show(self) -> None:
        is_over = len(self._ended) == len(self._runs)
        self.show("title", [(Span("Receipt" if is_over else "Destroying", Tone.STRONG),)])
        self.show("lines", list(self._lines.values()))

    @on(Button.Pressed)
    def _pressed(self) -> None:
        self.action_close()

    def action_accept(self) -> None:
        """Seen."""
        self.action_close()
