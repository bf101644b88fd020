"""Review of a plan: its runs and their slots, and what is not in order; after enter, the result of each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static
from textual.worker import Worker

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.plan import PlanStep
from l2rtui.domain.preflight import Finding, Severity, refusals
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.sweeps import values_text
from l2rtui.errors import L2RError
from l2rtui.services import launcher
from l2rtui.services.queue.submission import Submissions, divide, may_wait, submit
from l2rtui.tables.column import TableColumn
from l2rtui.ui.dialogs.confirm import ConfirmScreen, Question, lines_of
from l2rtui.ui.dialogs.dialog import REST, Dialog, TakesRest
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import QUEUED, Line, Span, TextStyle, hanging, key_hints, shorten, slot_ranges
from l2rtui.ui.widgets.gpu_grid import GpuGrid
from l2rtui.ui.widgets.grid.shape import ZoomLevel
from l2rtui.ui.widgets.table_model import Row, make_row
from l2rtui.ui.widgets.virtual_table import VirtualTable

COLUMNS: Final = (
    TableColumn("outcome", "step", most=9),
    TableColumn("kind", "kind", most=10, rank=3),
    TableColumn("name", "name", most=40),
    TableColumn("detail", "what", most=400),
)


class PlanView(VirtualTable):
    """One row per step, in order of execution."""

    def __init__(self, steps: Sequence[PlanStep], *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="The plan is empty.", id=id)
        self._steps = {self._key(step): (number, step) for number, step in enumerate(steps)}
        self.model.update([_row(key, number, step, None) for key, (number, step) in self._steps.items()])

    def report(self, step: PlanStep, error: str) -> None:
        """Show the result of a step; an empty error means success."""
        key = self._key(step)
        # A backend may report steps that the plan does not list.
        if key in self._steps:
            self.update_rows([_row(key, *self._steps[key], error)])
            self.move_to(key)

    @staticmethod
    def _key(step: PlanStep) -> str:
        return f"{step.verb} {step.kind} {step.name}"


def _row(key: str, number: int, step: PlanStep, error: str | None) -> Row:
    if error is None:
        outcome, detail = Span(f"· {step.verb}", TextStyle.DIM), Span(sanitize(step.detail), TextStyle.DIM)
    elif error:
        outcome, detail = Span("✖ failed", TextStyle.BAD), Span(sanitize(error), TextStyle.BAD)
    else:
        outcome, detail = Span("✔ done", TextStyle.OK), Span(sanitize(step.detail), TextStyle.DIM)
    cells = (outcome, Span(step.kind, TextStyle.DIM), Span(sanitize(step.name)), detail)
    return Row(key, cells, (number, step.kind, step.name, detail.text), is_fault=bool(error))


MAX_SUBJECT = 40
_MARKS = "123456789abcdefghijklmnopqrstuvwxyz"
_HIGH = 34
"""Lines of the terminal from which the map of slots is shown."""
MAX_NAMES = 3
_WEIGHTS = {
    Severity.OK: ("✔", TextStyle.OK),
    Severity.WARNING: ("▲", TextStyle.WARN),
    Severity.REFUSAL: ("✖", TextStyle.BAD),
}


class _Steps(TakesRest, PlanView):
    """Steps in the height that findings, command and keys leave."""


class _Runs(TakesRest, VirtualTable):
    """Runs of the plan with the slots of their pods, in the height that the other parts leave."""

    COLUMNS = (
        TableColumn("mark", "", most=1),
        TableColumn("run", "run", most=40),
        TableColumn("trial", "values", most=60, rank=1),
        TableColumn("state", "", most=10),
        TableColumn("pods", "pods", most=7, right=True),
        TableColumn("slots", "slots", most=400, rank=2),
    )
    EMPTY = "The plan has no runs."


class ReviewScreen(Dialog[tuple[str, ...] | None]):
    """Dialog that returns the names of the launched and queued runs, or None if nothing was launched."""

    def __init__(self, ctx: AppContext, prepared: launcher.CheckedPlan, command: str) -> None:
        super().__init__("review")
        self._ctx = ctx
        self.prepared = prepared
        self.command = command
        self._worker: Worker[None] | None = None
        self._is_warned = False
        self._beyond: str | None = None
        self._submissions: Submissions | None = None
        self._num_slots = 0
        self._num_free: int | None = None

    def compose(self) -> ComposeResult:
        """Yield title, findings, steps, the command line, and a hint about the keys."""
        with Vertical(classes="dialog wide"):
            yield Static(id="title")
            yield Static(id="capacity")
            yield GpuGrid(is_exact=True, id="map")
            runs = _Runs(id="planned")
            runs.add_class(REST)
            yield runs
            with VerticalScroll(id="findings", can_focus=False):
                yield Static(id="lines")
            yield Static(id="beyond")
            steps = _Steps(self.prepared.plan.steps(), id="steps")
            steps.add_class(REST)
            yield steps
            yield Static(id="command")
            yield Static(id="hint")

    def on_mount(self) -> None:
        """Fill in the plan."""
        plan = self.prepared.plan
        sets = [part for run in plan.runs for part in run.spec.sets]
        pods = sum(part.num_pods for part in sets)
        self._num_slots = sum(part.slots * part.num_pods for part in sets)
        experiments = list(dict.fromkeys(run.spec.experiment for run in plan.runs))
        named = experiments if len(plan.runs) > 1 else [plan.runs[0].spec.name]  # the list below has all runs
        names = ", ".join(map(sanitize, named[:MAX_NAMES]))
        names += f" and {len(named) - MAX_NAMES} more" if len(named) > MAX_NAMES else ""
        counts = f"   {counted(len(plan.runs), 'run')}, {counted(pods, 'pod')}, {counted(self._num_slots, 'slot')}"
        self.show("title", [(Span(f"Launch {names}", TextStyle.STRONG), Span(counts, TextStyle.DIM))])
        self._break_lines()
        self._show_runs()
        self._ctx.background.start(self._show_room(), group="room", what="free slots")
        if self._ctx.backend.name == "kubernetes":
            self._ctx.background.start(self._look_for_images(), group="images", what="images")
        self.show_command(self.command)
        if may_wait(self._ctx.backend, self.prepared):
            self._hint("Loading the queue…", TextStyle.WAIT)
            self._ctx.background.start(self._divide(), group="queue", what="the queue")
        elif refusals(self.prepared.findings):
            self._hint("Preflight refuses this plan.  esc back", TextStyle.BAD)
        else:
            self._offer(f"launch {self._ctx.acts_on()}")
        self.query_one("#steps").display = False
        self.query_one("#map").display = False
        self.query_one("#planned").focus()
        self.watch(self.query_one("#findings"), "scroll_y", self._say_beyond, init=False)

    # --- the plan ----------------------------------------------------------------------------------------------
    def _show_runs(self) -> None:
        """List the runs with the slots of their pods."""
        submissions = self._submissions
        waiting = {ticket.uid for ticket in submissions.waiting} if submissions is not None else set()
        rows = []
        for number, run in enumerate(self.prepared.plan.runs):
            pods = sum(part.num_pods for part in run.spec.sets)
            is_whole = len(run.pods) >= pods
            word = "waits" if run.uid in waiting else "" if is_whole else "no room"
            slots = slot_ranges(slot for pod in run.pods for slot in pod.seat.slots)
            trial = "" if run.spec.trial is None else values_text(run.spec.trial)
            rows.append(
                make_row(
                    run.uid,
                    (_mark_of(number), number),
                    (Span(sanitize(run.spec.name), TextStyle.STRONG), run.spec.name),
                    (Span(sanitize(trial)), trial),
                    (Span(word, TextStyle.WAIT if run.uid in waiting else TextStyle.WARN), word),
                    (Span(str(pods) if is_whole else f"{len(run.pods)}/{pods}"), pods),
                    (Span(slots if run.uid not in waiting else ""), slots),
                )
            )
        table = self.query_one(_Runs)
        table.set_rows(rows)
        model = table.model
        model.muted = frozenset(
            column.key
            for number, column in enumerate(model.columns)
            if column.key in ("trial", "state") and not any(row.cells[number].text for row in rows)
        )

    async def _show_room(self) -> None:
        """Say in one line whether there is room, and show the slots on a map where the screen is high enough."""
        snapshot = await self._ctx.backend.snapshot()
        if not self.is_open:
            return
        self._num_free = snapshot.ledger.count(SlotState.FREE)
        self._show_capacity()
        grid = self.query_one(GpuGrid)
        marks = {
            slot: _mark_of(number)
            for number, run in enumerate(self.prepared.plan.runs)
            for pod in run.pods
            for slot in pod.seat.slots
        }
        grid.display = bool(marks) and self.app.size.height >= _HIGH
        if grid.display:
            grid.level = ZoomLevel.NODE
            grid.only = frozenset(slot.node for slot in marks)
            grid.snapshot, grid.ghosts = snapshot, marks
            self.call_after_refresh(self._fit_map)

    async def _look_for_images(self) -> None:
        """Add a warning of each image that its registry does not have; the launch does not wait for the answer."""
        from l2rtui.services import images  # with the HTTP client, which most reviews do not need

        findings = await images.absent(images.names_in(self.prepared.plan))
        if findings and self.is_open:
            self.prepared = replace(self.prepared, findings=(*self.prepared.findings, *findings))
            self._break_lines()

    def _fit_map(self) -> None:
        grid = self.query_one(GpuGrid)
        grid.styles.height = min(grid.natural_height, self.app.size.height // 4)

    def _show_capacity(self) -> None:
        """Write how many slots are asked for and free, and how many runs start."""
        plan, submissions = self.prepared.plan, self._submissions
        if not self._num_slots or self._num_free is None:
            return
        facts = f"{counted(self._num_slots, 'slot')} asked, {self._num_free} free"
        starting = sum(len(run.pods) >= sum(part.num_pods for part in run.spec.sets) for run in plan.runs)
        is_short, rest = bool(plan.conflicts), len(plan.runs) - starting
        if submissions is not None:
            facts += f": {submissions.sentence}"
        elif is_short:
            facts += (
                f": {starting} of {counted(len(plan.runs), 'run')} fit, {rest} {'does' if rest == 1 else 'do'} not"
            )
        style = TextStyle.WAIT if submissions is not None else TextStyle.BAD if is_short else TextStyle.OK
        glyph = "◌" if submissions is not None else "✖" if is_short else "✔"
        self.show("capacity", [(Span(f"{glyph} ", style), Span(facts))])

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
        lines = folded_findings(self.prepared.findings, has_room=self._submissions is not None)
        self.show("lines", [row for line in lines for row in hanging(line, width)])

    async def _divide(self) -> None:
        """Offer to queue whole runs that do not fit."""
        try:
            self._submissions = await divide(self._ctx.backend, self.prepared)
        except L2RError as error:
            self._hint(f"{error}  esc back", TextStyle.BAD)
            return
        self.command = f"{self.command} --queue"
        if self.is_open:
            self.show_command(self.command)
            self._break_lines()
            self._show_runs()
            self._show_capacity()
        self._offer(self._submissions.sentence)

    @property
    def _is_refused(self) -> bool:
        return bool(refusals(self.prepared.findings)) and self._submissions is None

    @on(VirtualTable.Chosen)
    def _entered(self, event: VirtualTable.Chosen) -> None:
        event.stop()
        self.action_accept()

    def action_accept(self) -> None:
        """Launch, once, unless preflight refuses; in a protected context its name must be typed first."""
        if self._worker is not None or self._is_refused:
            return
        names = ", ".join(run.spec.name for run in self.prepared.plan.runs)
        if not self._ctx.protected:
            self._begin(names)
            return
        where = f"Launches {sanitize(self._ctx.acts_on())}."
        lines = lines_of([f"{sanitize(self._ctx.protected)} is protected.", where], TextStyle.WARN)
        question = Question(
            f"Launch {sanitize(names)}?", lines, yes="Launch", typed=self._ctx.protected, command=self.command
        )
        confirm = ConfirmScreen(question, self._ctx.keys)
        self.app.push_screen(confirm, lambda is_yes: self._begin(names) if is_yes else None)

    def _begin(self, names: str) -> None:
        if self._worker is None:  # enter may be pressed twice before the first confirmation
            self._worker = self._ctx.background.start(self._launch(names), group="launch", what=f"launch {names}")

    def action_copy(self) -> None:
        """Copy the command line."""
        self.app.copy_to_clipboard(self.command)
        self._ctx.background.say("copied the command line")

    def action_close(self) -> None:
        """Go back; during a launch, the first press warns and the second undoes the launch."""
        if self._worker is None or self._worker.is_finished:
            self.dismiss(None)
        elif not self._is_warned:
            self._is_warned = True
            self._hint("The launch continues. esc again stops it and rolls back the started runs.", TextStyle.WARN)
        else:
            self._worker.cancel()  # services.launcher undoes a cancelled launch before it raises
            self._hint("Stopping, and rolling back the started runs.", TextStyle.WARN)

    async def _launch(self, names: str) -> None:
        view = self.query_one("#steps", PlanView)
        for part, is_shown in (("#map", False), ("#planned", False), ("#steps", True)):
            self.query_one(part).display = is_shown
        view.focus()
        self._hint("launching", TextStyle.WAIT)
        submissions = self._submissions
        prepared = self.prepared if submissions is None else submissions.start
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
                self._hint("Stopped; the started runs were rolled back.  esc back", TextStyle.WARN)
                raise
        waiting = {ticket.uid for ticket in submissions.waiting} if submissions is not None else set()
        runs = self.prepared.plan.runs
        self.dismiss(tuple(f"{run.spec.name}{QUEUED if run.uid in waiting else ''}" for run in runs))

    def _offer(self, action: str) -> None:
        """Show the keys: what enter does, and the way back."""
        if self.is_open:
            hints = [f"enter {sanitize(action)}", "esc back"]
            self.show("hint", key_hints(hints, self.app.size.width, has_button=True))

    def _hint(self, text: str, tone: TextStyle) -> None:
        if self.is_open:
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


def folded_findings(findings: Sequence[Finding], *, has_room: bool = False) -> list[Line]:
    """Return the lines of what is not in order, equal sentences together, and one line for all that is.

    Args:
        has_room: What does not fit now waits, and is no fault.
    """
    passed = [finding for finding in findings if finding.severity is Severity.OK]
    if has_room:
        findings = [finding for finding in findings if finding.severity is not Severity.REFUSAL]
    groups: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        if finding.severity is not Severity.OK:
            groups.setdefault((finding.severity, finding.sentence, finding.hint), []).append(finding)
    lines = []
    for first, *others in groups.values():
        subject = f"{first.subject} and {len(others)} more" if others else first.subject
        lines.append(finding_line(replace(first, subject=subject)))
    if passed:
        lines.append((Span("✔ ", TextStyle.OK), Span(f"{counted(len(passed), 'check')} passed", TextStyle.DIM)))
    return lines


def _mark_of(number: int) -> Span:
    """Return the glyph of a run of the plan on the map of slots."""
    return Span(_MARKS[number] if number < len(_MARKS) else "+", TextStyle.STAGED)


def finding_line(finding: Finding) -> Line:
    """Return the line of a finding: glyph, subject, sentence and next step."""
    glyph, tone = _WEIGHTS[finding.severity]
    stop = "" if finding.sentence.endswith((".", "?", "!")) else "."
    hint = (Span(f"{stop} {sanitize(finding.hint)}", TextStyle.DIM),) if finding.hint else ()
    word = "" if finding.severity is Severity.OK else f"{finding.severity}: "
    name, *others = finding.subject.split(", ")
    is_long = bool(others) and len(finding.subject) > MAX_SUBJECT
    about = f"{name} and {len(others)} more" if is_long else finding.subject
    subject = Span(f"{shorten(sanitize(about), MAX_SUBJECT)}  ", TextStyle.DIM)
    text = Span(f"{word}{sanitize(finding.sentence)}", tone if word else TextStyle.PLAIN)
    return (Span(f"{glyph} ", tone), subject, text, *hint)
