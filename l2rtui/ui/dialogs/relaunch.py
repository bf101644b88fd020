"""Relaunch: destroy a run and launch it again on the same slots, or launch the saved spec of a destroyed run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from textual.screen import Screen

from l2rtui.domain.placement import Pin
from l2rtui.domain.quantity import age, counted
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import LeftBehindError
from l2rtui.ui.dialogs.confirm import Question
from l2rtui.ui.dialogs.menu import ChoiceScreen
from l2rtui.ui.dialogs.questions import ask, consequences, is_acting_for, may_touch, typed_for, where_line
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.state.app_context import AppContext
from l2rtui.ui.text import Line, Span, TextStyle

if TYPE_CHECKING:
    from l2rtui.services.destroyed_specs import DestroyedRun
    from l2rtui.services.terminal import Words


def ask_relaunch(
    screen: Screen[None],
    ctx: AppContext,
    runs: Sequence[RunView],
    snapshot: ClusterSnapshot,
    *,
    changed: Mapping[str, RunSpec] | None = None,
    lines: Sequence[Line] = (),
) -> None:
    """Ask before runs are destroyed and launched again, each on its old slots.

    Args:
        changed: New specs by name of the run; the other runs keep theirs.
        lines: Description of the change for the user.
    """
    if not may_touch(ctx, "relaunch", runs):
        return
    question = relaunch_question(ctx, runs, snapshot, changed=changed, lines=lines)

    def begin() -> None:
        for run in runs:
            spec = (changed or {}).get(run.name)
            work = _relaunch(ctx, run, snapshot.pods_of(run.name), spec)
            ctx.background.start(work, group="launch", what=f"relaunching {run.name}")

    ask(screen, ctx, question, f"relaunching {_title(runs)}", begin)


def _title(runs: Sequence[RunView]) -> str:
    return sanitize(runs[0].name) if len(runs) == 1 else counted(len(runs), "run")


def relaunch_question(
    ctx: AppContext,
    runs: Sequence[RunView],
    snapshot: ClusterSnapshot,
    *,
    changed: Mapping[str, RunSpec] | None = None,
    lines: Sequence[Line] = (),
) -> Question:
    """Return the question before a relaunch; a changed spec is in no file that a command line could name."""
    then = "the changed spec is launched" if changed else "the same spec is launched again on the same slots"
    return Question(
        f"Relaunch {_title(runs)}?",
        (
            where_line(ctx, runs),
            (Span("then     ", TextStyle.DIM), Span(then)),
            *lines,
            *consequences(runs, snapshot),
        ),
        yes="Relaunch",
        typed=typed_for(ctx, runs, snapshot, "relaunch"),
        is_grave=True,
        command="" if changed else ctx.lines_for(runs, lambda part: commands_for(ctx, part, snapshot)),
    )


def commands_for(ctx: AppContext, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> tuple[Words, ...]:
    """Return the commands of a relaunch on the slots that the runs have now."""
    places = {run.name: _places(ctx, run, snapshot) for run in runs}
    return cli_equivalents.relaunch(places, is_admin=is_acting_for(runs))


def _places(ctx: AppContext, run: RunView, snapshot: ClusterSnapshot) -> str:
    """Return the slots of a run's pods for ``--on``; empty if some pod has lost its slots, as in ``pins_of``."""
    pods = map(ctx.as_seen, snapshot.pods_of(run))
    slots_of = {(pod.set_name, pod.index): pod.slots for pod in pods}
    places: list[str] = []
    for part in run.sets:
        seats = [slots_of.get((part.name, index), ()) for index in range(part.replicas)]
        if part.takes_slots and not all(seats):
            return ""
        places += [str(slot) for slots in seats for slot in slots]
    return ",".join(places)


async def _relaunch(ctx: AppContext, run: RunView, pods: Sequence[PodView], changed: RunSpec | None) -> None:
    from l2rtui.services import launcher
    from l2rtui.services.spec.spec_file import LaunchRequest

    with ctx.background.busy(f"relaunching {run.name}"):
        before = await ctx.backend.spec(run.name)
        spec = changed or before
        # The spec was read earlier: a destroyed run no longer has one.
        async for item in launcher.destroy(ctx.backend, run, grace_seconds=ctx.settings.grace_seconds):
            if isinstance(item, Receipt) and item.left:
                raise LeftBehindError(f"{item.sentence}.", "It was not launched again.")
        pins = pins_of(spec, pods)
        prepared = await launcher.prepare(ctx.backend, LaunchRequest(spec, pins=pins))
        async for _ in launcher.launch(ctx.backend, prepared):
            pass
    ctx.background.say(f"{run.name} was launched again.")


def choose_destroyed(
    screen: Screen[None],
    ctx: AppContext,
    snapshot: ClusterSnapshot,
    launched: Callable[[tuple[str, ...] | None], None],
) -> None:
    """List runs destroyed from this machine that no longer exist, newest first; plan the chosen one again."""

    async def choose() -> None:
        from l2rtui.services import destroyed_specs

        destroyed = await asyncio.to_thread(destroyed_specs.destroyed_runs)
        gone = {
            run.spec.name: _note(run, ctx.clock()) for run in destroyed if not snapshot.run_named(run.spec.name)
        }
        if not gone:
            ctx.background.say("Nothing that was destroyed from here is gone.")
        elif screen.is_current:  # otherwise another dialog has been opened in the meantime

            def chosen(name: str | None) -> None:
                if name:
                    review_destroyed(screen, ctx, name, launched)

            screen.app.push_screen(ChoiceScreen("Launch again", tuple(gone), notes=gone), chosen)

    ctx.background.start(choose(), group="plan", what="what is gone", is_exclusive=True)


def _note(run: DestroyedRun, now: float) -> str:
    spec = run.spec
    pods = sum(part.replicas for part in spec.sets)
    experiment = f"{spec.experiment}, " if spec.experiment != spec.name else ""
    gone = f"destroyed {age(now - run.destroyed_at)} ago"
    return f"{experiment}seed {spec.seed}, {counted(pods, 'pod')}, {gone}"


def review_destroyed(
    screen: Screen[None], ctx: AppContext, target: str, launched: Callable[[tuple[str, ...] | None], None]
) -> None:
    """Show the plan of a run destroyed from this machine, by name; without a name, the last one."""

    async def review() -> None:
        from l2rtui.services import destroyed_specs, launcher
        from l2rtui.ui.dialogs.review import show_plan

        specs = await asyncio.to_thread(destroyed_specs.find, target)
        prepared = await launcher.prepare_runs(ctx.backend, specs)
        show_plan(screen, ctx, prepared, ctx.command_line(cli_equivalents.launch_again(target)), launched)

    ctx.background.start(review(), group="plan", what="launching again", is_exclusive=True)


def pins_of(spec: RunSpec, pods: Sequence[PodView]) -> tuple[Pin, ...]:
    """Return the slots of a run's pods in the order of its plan; empty if some pod has lost its slots."""
    slots_of = {(pod.set_name, pod.index): pod.slots for pod in pods}
    pins: list[Pin] = []
    for set_spec in spec.sets:
        for index in range(set_spec.num_pods if set_spec.slots else 0):
            slots = slots_of.get((set_spec.name, index), ())
            # Pins are matched to replicas by order only, so one gap would shift all later ones.
            if not set_spec.fills(slots):
                return ()
            pins.extend(Pin(slot.node, slot.gpu, slot.slot) for slot in slots)
    return tuple(pins)
