"""The plan before it runs, with what preflight says of it; after enter, what becomes of each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static
from textual.worker import Worker

from l2rtui.domain.preflight import Finding, Weight, refusals
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import launcher
from l2rtui.ui.link import Link
from l2rtui.ui.screens.confirm import ConfirmScreen, Question, lines_of
from l2rtui.ui.screens.dialog import Dialog
from l2rtui.ui.text import Line, Span, Tone, plural, shorten
from l2rtui.ui.widgets.plan_view import PlanView
from l2rtui.ui.widgets.virtual_table import VirtualTable

MOST_SUBJECT = 28
_WEIGHTS = {
    Weight.OK: ("✔", Tone.OK),
    Weight.WARNING: ("▲", Tone.WARN),
    Weight.REFUSAL: ("✖", Tone.BAD),
}


class ReviewScreen(Dialog[tuple[str, ...] | None]):
    """Answers with the names of the launched runs, or None when nothing was launched.

    Args:
        command: The command line that does the same.
    """

    def __init__(self, link: Link, prepared: launcher.Prepared, command: str) -> None:
        super().__init__("review")
        self._link = link
        self._prepared = prepared
        self._command = command
        self._worker: Worker[None] | None = None
        self._is_warned = False

    def compose(self) -> ComposeResult:
        """Title, findings, steps, the command, what enter does."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with VerticalScroll(id="findings", can_focus=False):
                yield Static(id="lines")
            yield PlanView(self._prepared.plan.steps(), id="steps")
            yield Static(id="command")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Write the plan down."""
        plan = self._prepared.plan
        pods = [pod for run in plan.runs for pod in run.pods]
        slots = sum(len(pod.seat.slots) for pod in pods)
        names = ", ".join(sanitize(run.spec.name) for run in plan.runs)
        counts = f"   {plural(len(plan.runs), 'run')}, {plural(len(pods), 'pod')}, {plural(slots, 'slot')}"
        self.show("title", [(Span(f"Launch {names}", Tone.STRONG), Span(counts, Tone.DIM))])
        self.show("lines", [finding_line(finding) for finding in self._prepared.findings])
        self.show("command", [(Span("same as  ", Tone.DIM), Span(sanitize(self._command)))])
        if refusals(self._prepared.findings):
            self._hint("Preflight refuses this plan.  esc back to the form", Tone.BAD)
        else:
            self._hint("enter launch   esc back to the form", Tone.ACCENT)
        self.query_one("#steps").focus()

    @on(VirtualTable.Chosen)
    def _entered(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        """Launch, once, unless preflight refuses; in a protected context its name is typed first."""
        if self._worker is not None or refusals(self._prepared.findings):
            return
        names = ", ".join(run.spec.name for run in self._prepared.plan.runs)
        if not self._link.protected:
            self._begin(names)
            return
        lines = lines_of([f"{sanitize(self._link.protected)} is protected."], Tone.WARN)
        question = Question(
            f"Launch {sanitize(names)}?", lines, yes="Launch", typed=self._link.protected, command=self._command
        )
        self.app.push_screen(ConfirmScreen(question), lambda is_yes: self._begin(names) if is_yes else None)

    def _begin(self, names: str) -> None:
        if self._worker is None:
            self._worker = self._link.background.start(self._launch(names), group="launch", what=f"launch {names}")

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self._command)
        self._link.background.say("copied the command line")

    def action_close(self) -> None:
        """Go back; while a launch goes on, a second time takes back what was started."""
        if self._worker is None or self._worker.is_finished:
            self.dismiss(None)
        elif not self._is_warned:
            self._is_warned = True
            self._hint("The launch goes on. esc again stops it and takes back what was started.", Tone.WARN)
        else:
            self._worker.cancel()
            self._hint("Stopping, and taking back what was started.", Tone.WARN)

    async def _launch(self, names: str) -> None:
        view = self.query_one("#steps", PlanView)
        self._hint("launching", Tone.WAIT)
        with self._link.background.busy(f"launching {names}"):
            try:
                async for done in launcher.launch(self._link.backend, self._prepared):
                    view.report(done.step, done.error)
            except L2RError as error:
                self._hint(f"{error}  esc back to the form", Tone.BAD)
                return
            except asyncio.CancelledError:
                self._hint("Stopped; what was started was taken back.  esc back to the form", Tone.WARN)
                raise
        self.dismiss(tuple(run.spec.name for run in self._prepared.plan.runs))

    def _hint(self, text: str, tone: Tone) -> None:
        if self.is_attached:
            self.show("hint", [(Span(sanitize(text), tone),)])


def show_plan(
    asking: Screen[Any],
    link: Link,
    prepared: launcher.Prepared,
    command: str,
    reviewed: Callable[[tuple[str, ...] | None], None],
) -> None:
    """Open the plan over the screen that asked for it.

    Unless that has been closed meanwhile: nobody waits for the plan then, and enter in it would launch.
    """
    if asking in asking.app.screen_stack:
        asking.app.push_screen(ReviewScreen(link, prepared, command), reviewed)


def finding_line(finding: Finding) -> Line:
    """Glyph, subject, sentence and next step of one finding."""
    glyph, tone = _WEIGHTS[finding.weight]
    stop = "" if finding.sentence.endswith((".", "?", "!")) else "."
    hint = (Span(f"{stop} {sanitize(finding.hint)}", Tone.DIM),) if finding.hint else ()
    word = "" if finding.weight is Weight.OK else f"{finding.weight}: "
    subject = Span(f"{shorten(sanitize(finding.subject), MOST_SUBJECT)}  ", Tone.DIM)
    text = Span(f"{word}{sanitize(finding.sentence)}", tone if word else Tone.PLAIN)
    return (Span(f"{glyph} ", tone), subject, text, *hint)
