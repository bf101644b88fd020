"""Questions before kill, scale and destroy, and the work that a yes starts.

Each question lists what is removed and what becomes free, and shows the equivalent command line. An action that
cannot be reverted starts some seconds after the yes, and can be cancelled until then (``ui.state.undo_window``).

Like the CLI, the app refuses to change other people's runs until ``:admin`` was typed; then their names must be
typed. In a protected context, the context's name must be typed before any change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Button, Static

from l2rtui.config import user_name
from l2rtui.domain.quantity import age, counted
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import L2RError, RefusedError
from l2rtui.services.ownership import is_mine, refuse_others
from l2rtui.services.terminal import Words
from l2rtui.ui.dialogs.confirm import ConfirmScreen, Question
from l2rtui.ui.dialogs.dialog import Dialog
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle, shorten, slot_ranges

LARGE_PODS: Final = 10
"""Number of pods above which a name must be typed."""
_MAX_LISTED: Final = 12


class Questions:
    """Questions about runs and pods on one screen."""

    def __init__(self, screen: Screen[Any], ctx: AppContext, newest: Callable[[], ClusterSnapshot]) -> None:
        self._screen = screen
        self._ctx = ctx
        self._newest = newest

    def ask_kill(self, pods: Sequence[PodView], target: str = "") -> None:
        """Ask before pods are killed, and kill them; ``target`` names all of them, e.g. a set."""
        if not may_touch(self._ctx, "kill", pods):
            return
        names = target or ", ".join(pod.name for pod in pods)
        number = counted(len(pods), "pod")
        question = kill_question(self._ctx, pods, self._newest(), target)

        async def kill() -> None:
            from l2rtui.services import launcher

            with self._ctx.background.busy(f"killing {number}"):
                await launcher.kill(self._ctx.backend, pods, self._ctx.settings.grace_seconds)
            self._ctx.background.say(f"{names} is being stopped; its set replaces it.")

        def begin() -> None:
            self._ctx.background.start(kill(), group="kill", what=f"killing {names}")

        ask(self._screen, self._ctx, question, f"killing {number}", begin)

    def ask_destroy(self, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> None:
        """Ask before runs are destroyed; a yes opens the receipt."""
        if not may_touch(self._ctx, "destroy", runs):
            return
        title = sanitize(runs[0].name) if len(runs) == 1 else counted(len(runs), "run")
        question = destroy_question(self._ctx, runs, snapshot)

        def begin() -> None:

            self._screen.app.push_screen(ReceiptScreen(self._ctx, runs))

        ask(self._screen, self._ctx, question, f"destroying {title}", begin)

    def ask_scale(self, runs: Sequence[RunView], set_name: str, replicas: int) -> None:
        """Ask before a set gets another number of replicas in each of these runs, and scale it."""
        if not may_touch(self._ctx, "scale", runs):
            return
        sets = [workers for run in runs if (workers := run.set_named(set_name))]
        if any(workers.role is Role.LEARNER and workers.replicas != replicas for workers in sets):
            self._ctx.background.say(
                f"{set_name} is the learner: it keeps its number of pods. ctrl+d on the run destroys it whole."
            )
            return
        before, after = sum(workers.replicas for workers in sets), replicas * len(runs)
        targets = [f"{run.name}/{set_name}" for run in runs]
        name = targets[0] if len(targets) == 1 else f"{set_name} of {counted(len(runs), 'run')}"
        question = scale_question(self._ctx, runs, set_name, replicas)

        async def scale() -> None:
            from l2rtui.services import launcher

            slots: list[str] = []
            with self._ctx.background.busy(f"scaling {name}"):
                for run in runs:
                    # Uses the backend of the run's context: new replicas are placed on the slots of that cluster.
                    member = self._ctx.member_of(run)
                    backend = member.backend if member is not None else self._ctx.backend
                    own = member.original(run) if member is not None else run
                    plan = await launcher.scale(backend, own.name, set_name, replicas)
                    slots += [str(slot) for pod in plan.added for slot in pod.seat.slots]
            on = f", new ones on {shorten(', '.join(slots), 60)}" if slots else ""
            self._ctx.background.say(f"{name} is being scaled to {replicas}{on}.")

        def begin() -> None:
            self._ctx.background.start(scale(), group="scale", what=f"scaling {name}")

        # Adding replicas destroys nothing, so it needs no undo window.
        ask(self._screen, self._ctx, question, f"scaling {name}", begin, is_urgent=after > before)


def _scale_lines(runs: Sequence[RunView], set_name: str, replicas: int, before: int) -> list[Line]:
    sentence = (
        "Replicas come back to their slots of the plan; more of them take free slots."
        if replicas * len(runs) > before
        else f"The set stays in the run; + starts a replica again. {counted(before, 'replica')} stop."
        if replicas == 0
        else "The replicas with the highest indices are stopped."
    )
    lines: list[Line] = [(Span(sentence, TextStyle.DIM),)]
    if len(runs) > 1:
        for run in runs:
            workers = run.set_named(set_name)
            lines.append((Span(f"  {sanitize(run.name)}  {workers.replicas if workers else 0} → {replicas}"),))
    return lines


# --- questions --------------------------------------------------------------------------------------------------
def kill_question(
    ctx: AppContext, pods: Sequence[PodView], snapshot: ClusterSnapshot, target: str = ""
) -> Question:
    """Return the question before pods are killed; ``target`` is the typed or selected target."""
    is_admin, number = is_acting_for(pods), counted(len(pods), "pod")

    def commands(of_place: Sequence[PodView]) -> Sequence[Words]:
        targets = pod_targets(ctx, snapshot, of_place, target)
        return [cli_equivalents.kill(targets, is_admin=is_acting_for(of_place))] if targets else []

    return Question(
        f"Kill {number}?" if len(pods) > 1 else f"Kill {sanitize(pods[0].name)}?",
        (
            where_line(ctx, pods),
            *owned_by(pods),
            (Span(f"SIGTERM, then SIGKILL {_grace(ctx)}. The set starts a replacement.", TextStyle.DIM),),
            *_pod_lines(pods),
        ),
        yes="Kill",
        typed=ctx.protected_for(pods) or ("kill" if len(pods) > LARGE_PODS or is_admin else ""),
        is_grave=len(pods) > 1 or is_admin,
        command=ctx.lines_for(pods, commands),
    )


def destroy_question(ctx: AppContext, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> Question:
    """Return the question before runs are destroyed."""
    title = sanitize(runs[0].name) if len(runs) == 1 else counted(len(runs), "run")
    return Question(
        f"Destroy {title}?",
        (
            where_line(ctx, runs),
            (Span("keeps    ", TextStyle.DIM), Span("checkpoints and metrics")),
            *silence_of(ctx, runs),
            *consequences(runs, snapshot),
        ),
        yes="Destroy",
        typed=typed_for(ctx, runs, snapshot, "destroy"),
        is_grave=True,
        command=ctx.lines_for(
            runs,
            lambda part: [cli_equivalents.destroy([run.name for run in part], is_admin=is_acting_for(part))],
        ),
    )


def scale_question(ctx: AppContext, runs: Sequence[RunView], set_name: str, replicas: int) -> Question:
    """Return the question before a set gets another number of replicas in each of these runs."""
    sets = [workers for run in runs if (workers := run.set_named(set_name))]
    before, after = sum(workers.replicas for workers in sets), replicas * len(runs)
    name = f"{runs[0].name}/{set_name}" if len(runs) == 1 else f"{set_name} of {counted(len(runs), 'run')}"
    typed = runs[0].name if is_acting_for(runs) else "scale" if before - after > LARGE_PODS else ""

    def commands(of_place: Sequence[RunView]) -> Sequence[Words]:
        is_admin = is_acting_for(of_place)
        names = (f"{run.name}/{set_name}" for run in of_place)
        return [cli_equivalents.scale(target, replicas, is_admin=is_admin) for target in names]

    return Question(
        f"Scale {sanitize(name)} from {before} to {after}?",
        (
            where_line(ctx, runs),
            *_scale_lines(runs, set_name, replicas, before),
            *silence_of(ctx, runs),
            *owned_by(runs),
        ),
        yes="Scale",
        typed=ctx.protected_for(runs) or typed,
        command=ctx.lines_for(runs, commands),
        is_grave=replicas == 0,
    )


def pod_targets(ctx: AppContext, snapshot: ClusterSnapshot, pods: Sequence[PodView], target: str = "") -> list[str]:
    """Return targets that select exactly these pods of one place; empty if some pod cannot be selected separately.

    A pod may have the same name as a run, which has precedence; then the pod is named as a pod, or by its place in
    its run.

    Args:
        target: Typed or selected target; used if it selects no other pods.
    """
    snapshot = ctx.seen_by_line(snapshot, pods[0])
    own = [ctx.as_seen(pod) for pod in pods]
    if target and {pod.uid for pod in snapshot.select(target)} == {pod.uid for pod in own}:
        return [target]
    targets = [_target_of(snapshot, pod) for pod in own]
    return targets if all(targets) else []


def _target_of(snapshot: ClusterSnapshot, pod: PodView) -> str:
    spellings = (pod.name, f"pod/{pod.name}", f"{pod.run}/{pod.set_name}/{pod.index}")
    return next((name for name in spellings if [other.uid for other in snapshot.select(name)] == [pod.uid]), "")


# --- for every question before a change ------------------------------------------------------------------------
def ask(
    screen: Screen[Any],
    ctx: AppContext,
    question: Question,
    what: str,
    begin: Callable[[], object],
    *,
    is_urgent: bool = False,
) -> None:
    """Ask; after a yes, start immediately if urgent, otherwise after the undo window, which shows ``what``."""

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            ctx.undo_window.start(what, 0.0 if is_urgent else ctx.cancel_seconds, begin)

    screen.app.push_screen(ConfirmScreen(question, ctx.keys), answered)


def may_touch(ctx: AppContext, verb: str, objects: Sequence[PodView | RunView]) -> bool:
    """Return True if the user owns the objects, or is an administrator; otherwise show the reason for refusal."""
    try:
        refuse_others(verb, objects, is_admin=ctx.is_admin, me=user_name())
    except RefusedError as error:
        hint = "Ask the owner, or type :admin if you may act for them."
        ctx.background.say(f"{error.message} {hint}", is_error=True)
        return False
    if reason := ctx.unchangeable(verb, objects):
        ctx.background.say(reason, is_error=True)
        return False
    return True


def _foreign_owners(objects: Sequence[PodView | RunView]) -> tuple[str, ...]:
    me = user_name()
    return tuple(sorted({view.owner or "nobody known" for view in objects if not is_mine(view, me)}))


def is_acting_for(objects: Sequence[PodView | RunView]) -> bool:
    """Return True if some object belongs to another user: the equivalent command then needs ``--admin``."""
    return bool(_foreign_owners(objects))


def where_line(ctx: AppContext, objects: Sequence[PodView | RunView]) -> Line:
    """Return a line with context, namespaces and user, or with the machine, on which the change acts."""
    where = ctx.acts_on({view.namespace for view in objects}, objects[0])
    return (Span("place    ", TextStyle.DIM), Span(sanitize(where), TextStyle.ACCENT))


def silence_of(ctx: AppContext, runs: Sequence[RunView]) -> tuple[Line, ...]:
    """Return a warning line for each run whose supervisor does not respond: requests to it would have no effect."""
    silent = ((run, ctx.clock() - run.silent_since) for run in runs if run.silent_since is not None)
    return tuple(
        (Span(f"▲ the supervisor of {sanitize(run.name)} has not answered for {age(seconds)}", TextStyle.WARN),)
        for run, seconds in silent
    )


def owned_by(objects: Sequence[PodView | RunView]) -> tuple[Line, ...]:
    """Return a warning line if some object belongs to another user."""
    owners = _foreign_owners(objects)
    return ((Span(f"▲ not yours: {sanitize(', '.join(owners))}", TextStyle.WARN),),) if owners else ()


def typed_for(ctx: AppContext, runs: Sequence[RunView], snapshot: ClusterSnapshot, verb: str) -> str:
    """Return the text to type before runs are removed: the run's name, the verb for several; empty for few pods."""
    # Typing is required where a mistake is expensive; for a few pods of the user one key is enough.
    pods = sum(len(snapshot.pods_of(run)) for run in runs)
    is_large = pods > LARGE_PODS or is_acting_for(runs)
    return ctx.protected_for(runs) or ((runs[0].name if len(runs) == 1 else verb) if is_large else "")


def consequences(runs: Sequence[RunView], snapshot: ClusterSnapshot) -> tuple[Line, ...]:
    """Return lines about the pods removed with these runs and the slots that become free."""
    pods = [pod for run in runs for pod in snapshot.pods_of(run)]
    slots = sorted({slot for pod in pods for slot in pod.slots})
    verb = "goes" if len(pods) == 1 else "go"
    # If not all pods are listed, the lines of pods do not show all slots.
    which = f": {sanitize(slot_ranges(slots))}" if slots and len(pods) > _MAX_LISTED else ""
    return (
        (Span("frees    ", TextStyle.DIM), Span(f"{counted(len(slots), 'slot')}{which}")),
        *owned_by(runs),
        # Last, so that these lines are scrolled if the terminal is too small for all.
        (Span(f"{counted(len(runs), 'run')}, {counted(len(pods), 'pod')} {verb}:", TextStyle.DIM),),
        *_pod_lines(pods),
    )


def _grace(ctx: AppContext) -> str:
    seconds = ctx.settings.grace_seconds
    return "after the grace time of its set" if seconds is None else f"after {seconds:g} s"


def _pod_lines(pods: Sequence[PodView]) -> tuple[Line, ...]:
    """Return up to a dozen pods with their slots, and the number of the others."""
    lines: list[Line] = []
    names = [sanitize(pod.name) for pod in pods[:_MAX_LISTED]]
    width = max(map(len, names), default=0)
    for name, pod in zip(names, pods, strict=False):
        slots = " ".join(str(slot) for slot in pod.slots) or "no slot"
        lines.append((Span(f"  {name:<{width}}  "), Span(sanitize(slots), TextStyle.DIM)))
    if len(pods) > _MAX_LISTED:
        lines.append((Span(f"  and {len(pods) - _MAX_LISTED} more", TextStyle.DIM),))
    return tuple(lines)


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
