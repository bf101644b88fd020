"""Progress of destroying runs: the objects that still exist, and at the end the receipt of each run."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Static

from l2rtui.domain.receipt import Receipt
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import RunView
from l2rtui.errors import L2RError
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle


class ReceiptScreen(Dialog[None]):
    """Dialog that stays until it is closed. Closing it does not stop the work; the receipt is then a
    notification.
    """

    def __init__(self, ctx: AppContext, runs: Sequence[RunView]) -> None:
        super().__init__("receipt")
        self._ctx = ctx
        self._runs = tuple(runs)
        self._lines: dict[str, Line] = {
            run.uid: (Span("◌ ", TextStyle.WAIT), Span(f"stopping {sanitize(run.name)}")) for run in runs
        }
        self._ended: set[str] = set()

    def compose(self) -> ComposeResult:
        """Yield a title, a line for each run, and a button."""
        with Vertical(classes="dialog"):
            yield Static(id="title")
            yield Static(id="lines")
            with Horizontal(classes="buttons"):
                yield Button("Close", id="close", compact=True)

    def on_mount(self) -> None:
        """Destroy all runs at the same time."""
        self._show()
        self.query_one("#close").focus()
        for run in self._runs:
            self._ctx.background.start(self._destroy(run), group="destroy", what=f"destroying {run.name}")

    async def _destroy(self, run: RunView) -> None:
        from l2rtui.services import launcher

        grace = self._ctx.settings.grace_seconds
        with self._ctx.background.busy(f"destroying {run.name}"):
            try:
                async for item in launcher.destroy(self._ctx.backend, run, grace_seconds=grace):
                    if isinstance(item, Receipt):
                        self._end(run, item.sentence, is_bad=bool(item.left), results=item.results_location)
                    else:
                        left = "  ".join(f"{kind} {number}" for kind, number in item.left)
                        text = f"stopping {sanitize(run.name)}, left: {sanitize(left)}"
                        if item.refusal:
                            text += f"\n  refused, and tried again: {sanitize(item.refusal)}"
                        self._set(run, (Span("◌ ", TextStyle.WAIT), Span(text)))
            except L2RError as error:
                self._end(run, str(error), is_bad=True)

    def _end(self, run: RunView, sentence: str, *, is_bad: bool, results: str = "") -> None:
        glyph = Span("✖ ", TextStyle.BAD) if is_bad else Span("✔ ", TextStyle.OK)
        line = (Span(f"\n  results are kept in {sanitize(results)}", TextStyle.DIM),) if results else ()
        self._ended.add(run.uid)
        self._set(run, (glyph, Span(sanitize(sentence), TextStyle.STRONG), *line))
        if not self.is_open:  # the dialog was closed before the end
            self._ctx.background.say(sentence, is_error=is_bad)

    def _set(self, run: RunView, line: Line) -> None:
        self._lines[run.uid] = line
        if self.is_open:
            self._show()

    def _show(self) -> None:
        is_over = len(self._ended) == len(self._runs)
        self.show("title", [(Span("Receipt" if is_over else "Destroying", TextStyle.STRONG),)])
        self.show("lines", list(self._lines.values()))

    @on(Button.Pressed)
    def _pressed(self) -> None:
        self.action_close()

    def action_accept(self) -> None:
        """Close the dialog: there is nothing to accept."""
        self.action_close()
