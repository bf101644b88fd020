"""Review of a plan with its preflight findings; after enter, the result of each step of the launch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static
from textual.worker import Worker

from l2rtui.domain.preflight import Finding, Severity, refusals
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.services import launcher
from l2rtui.services.queue.submission import Submissions, divide, may_wait, submit
from l2rtui.ui.dialogs.body import REST, TakesRest
from l2rtui.ui.dialogs.confirm import ConfirmScreen, Question, lines_of
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import QUEUED, Line, Span, TextStyle, hanging, plural, shorten
from l2rtui.ui.widgets.plan_view import PlanView
from l2rtui.ui.widgets.virtual_table import VirtualTable

MAX_SUBJECT = 28
MAX_NAMES = 4
_WEIGHTS = {
    Severity.OK: ("✔", TextStyle.OK),
    Severity.WARNING: ("▲", TextStyle.WARN),
    Severity.REFUSAL: ("✖", TextStyle.BAD),
}


class _Steps(TakesRest, PlanView):
    """Steps in the height that findings, command and keys leave."""


class ReviewScreen(Dialog[tuple[str, ...] | None]):
    """Dialog that returns the names of the launched and queued runs, or None if nothing was launched."""

    def __init__(self, ctx: AppContext, prepared: launcher.CheckedPlan, command: str) -> None:
        super().__init__("review")
        self._ctx = ctx
        self._prepared = prepared
        self._command = command
        self._worker: Worker[None] | None = None
        self._is_warned = False
        self._beyond: str | None = None
        self._submissions: Submissions | None = None

    def compose(self) -> ComposeResult:
        """Yield title, findings, steps, the command line, and a hint about the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            with VerticalScroll(id="findings", can_focus=False):
                yield Static(id="lines")
            yield Static(id="beyond")
            steps = _Steps(self._prepared.plan.steps(), id="steps")
            steps.add_class(REST)
            yield steps
            yield Static(id="command")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Fill in the plan."""
        plan = self._prepared.plan
        pods = [pod for run in plan.runs for pod in run.pods]
        slots = sum(len(pod.seat.slots) for pod in pods)
        names = ", ".join(sanitize(run.spec.name) for run in plan.runs[:MAX_NAMES])
        if len(plan.runs) > MAX_NAMES:
            names += f" and {len(plan.runs) - MAX_NAMES} more"
        counts = f"   {plural(len(plan.runs), 'run')}, {plural(len(pods), 'pod')}, {plural(slots, 'slot')}"
        self.show("title", [(Span(f"Launch {names}", TextStyle.STRONG), Span(counts, TextStyle.DIM))])
        self._break_lines()
        self.show_command(self._command)
        if may_wait(self._ctx.backend, self._prepared):
            self._hint("looking at the queue", TextStyle.WAIT)
            self._ctx.background.start(self._divide(), group="queue", what="the queue")
        elif refusals(self._prepared.findings):
            self._hint("Preflight refuses this plan.  esc back", TextStyle.BAD)
        else:
            self._hint(f"enter launch {self._ctx.acts_on()}   esc back", TextStyle.ACCENT)
        self.query_one("#steps").focus()
        self.watch(self.query_one("#findings"), "scroll_y", self._say_beyond, init=False)

    def on_key(self, event: events.Key) -> None:
        """Accept from the findings too, since they are not a table."""
        if event.key == "enter" and self.focused is self.query_one("#findings"):
            self.action_accept()

    def on_descendant_focus(self) -> None:
        """Say how to reach the part without the focus."""
        self._say_beyond()

    def _fit(self) -> None:
        super()._fit()
        self._say_beyond()

    def _say_beyond(self) -> None:
        """Say how many lines of the findings are hidden; findings with hidden lines can be focused."""
        if not self.query("#findings"):
            return
        findings = self.query_one("#findings", VerticalScroll)
        above = round(findings.scroll_y)
        below = findings.max_scroll_y - above
        findings.can_focus = bool(above or below)
        lines = [f"{sign} {number} more" for sign, number in (("↓", below), ("↑", above)) if number > 0]
        key = "tab back to the steps" if findings.has_focus else "tab scrolls them"
        text = f"{', '.join(lines)}   {key}" if lines else ""
        if text != self._beyond:  # showing it adjusts the height of the parts
            self._beyond = text
            self.query_one("#beyond").display = bool(text)
            self.show("beyond", [(Span(text, TextStyle.DIM),)])

    def on_resize(self) -> None:
        """Wrap the lines again, once the widgets have their new widths."""
        self.call_after_refresh(self._break_lines)

    def _break_lines(self) -> None:
        width = self.query_one("#lines").size.width or self.app.size.width
        lines = (finding_line(finding) for finding in self._prepared.findings)
        self.show("lines", [row for line in lines for row in hanging(line, width)])

    async def _divide(self) -> None:
        """Offer to queue whole runs that do not fit."""
        try:
            self._submissions = await divide(self._ctx.backend, self._prepared)
        except L2RError as error:
            self._hint(f"{error}  esc back", TextStyle.BAD)
            return
        self._command = f"{self._command} --queue"
        if self.is_attached:
            self.show_command(self._command)
        self._hint(f"enter {self._submissions.sentence}   esc back", TextStyle.ACCENT)

    @property
    def _is_refused(self) -> bool:
        return bool(refusals(self._prepared.findings)) and self._submissions is None

    @on(VirtualTable.Chosen)
    def _entered(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        """Launch, once, unless preflight refuses; in a protected context its name must be typed first."""
        if self._worker is not None or self._is_refused:
            return
        names = ", ".join(run.spec.name for run in self._prepared.plan.runs)
        if not self._ctx.protected:
            self._begin(names)
            return
        where = f"Launches {sanitize(self._ctx.acts_on())}."
        lines = lines_of([f"{sanitize(self._ctx.protected)} is protected.", where], TextStyle.WARN)
        question = Question(
            f"Launch {sanitize(names)}?", lines, yes="Launch", typed=self._ctx.protected, command=self._command
        )
        self.app.push_screen(ConfirmScreen(question), lambda is_yes: self._begin(names) if is_yes else None)

    def _begin(self, names: str) -> None:
        if self._worker is None:  # enter may be pressed twice before the first confirmation
            self._worker = self._ctx.background.start(self._launch(names), group="launch", what=f"launch {names}")

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self._command)
        self._ctx.background.say("copied the command line")

    def action_close(self) -> None:
        """Go back; during a launch, the first press warns and the second undoes the launch."""
        if self._worker is None or self._worker.is_finished:
            self.dismiss(None)
        elif not self._is_warned:
            self._is_warned = True
            self._hint("The launch goes on. esc again stops it and takes back what was started.", TextStyle.WARN)
        else:
            self._worker.cancel()  # services.launcher undoes a cancelled launch before it raises
            self._hint("Stopping, and taking back what was started.", TextStyle.WARN)

    async def _launch(self, names: str) -> None:
        view = self.query_one("#steps", PlanView)
        self._hint("launching", TextStyle.WAIT)
        submissions = self._submissions
        prepared = self._prepared if submissions is None else submissions.start
        with self._ctx.background.busy(f"launching {names}"):
            try:
                if prepared is not None:
                    async for done in launcher.launch(self._ctx.backend, prepared):
                        view.report(done.step, done.error)
                if submissions is not None:  # last: a launch that fails is undone, and then nothing is queued
                    await submit(self._ctx.backend, submissions)
            except L2RError as error:
                self._hint(f"{error}  esc back", TextStyle.BAD)
                return
            except asyncio.CancelledError:
                self._hint("Stopped; what was started was taken back.  esc back", TextStyle.WARN)
                raise
        waiting = {ticket.uid for ticket in submissions.waiting} if submissions is not None else set()
        runs = self._prepared.plan.runs
        self.dismiss(tuple(f"{run.spec.name}{QUEUED if run.uid in waiting else ''}" for run in runs))

    def _hint(self, text: str, tone: TextStyle) -> None:
        if self.is_attached:
            self.show("hint", [(Span(sanitize(text), tone),)])


def show_plan(
    caller: Screen[Any],
    ctx: AppContext,
    prepared: launcher.CheckedPlan,
    command: str,
    reviewed: Callable[[tuple[str, ...] | None], None] | None = None,
) -> None:
    """Open the review over the screen that asked for the plan, unless that screen was closed.

    ``reviewed`` gets the result of the review; without it a launch closes the caller with that result.
    """

    def close_caller(launched: tuple[str, ...] | None) -> None:
        if launched:
            caller.dismiss(launched)

    # Planning takes a while. A review over another screen would surprise the user, and enter in it would launch.
    if caller in caller.app.screen_stack:
        caller.app.push_screen(ReviewScreen(ctx, prepared, command), reviewed or close_caller)


def finding_line(finding: Finding) -> Line:
    """Return the line of a finding: glyph, subject, sentence and next step."""
    glyph, tone = _WEIGHTS[finding.severity]
    stop = "" if finding.sentence.endswith((".", "?", "!")) else "."
    hint = (Span(f"{stop} {sanitize(finding.hint)}", TextStyle.DIM),) if finding.hint else ()
    word = "" if finding.severity is Severity.OK else f"{finding.severity}: "
    subject = Span(f"{shorten(sanitize(finding.subject), MAX_SUBJECT)}  ", TextStyle.DIM)
    text = Span(f"{word}{sanitize(finding.sentence)}", tone if word else TextStyle.PLAIN)
    return (Span(f"{glyph} ", tone), subject, text, *hint)
