"""Launching again: runs that are there, with the spec that they have or another one, and runs that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from textual.screen import Screen

from l2rtui.backends.base import Receipt
from l2rtui.domain.placement import Pin
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import LeftBehindError
from l2rtui.ui import twins
from l2rtui.ui.link import Link
from l2rtui.ui.screens.asking import ask, goes, is_acting_for, may_touch, typed_for
from l2rtui.ui.screens.confirm import Question
from l2rtui.ui.text import Line, Span, Tone, plural


def ask_relaunch(
    screen: Screen[None],
    link: Link,
    runs: Sequence[RunView],
    snapshot: ClusterSnapshot,
    *,
    changed: Mapping[str, RunSpec] | None = None,
    lines: Sequence[Line] = (),
) -> None:
    """Ask whether runs are to be destroyed and launched again, each where it was.

    Args:
        changed: By name of the run, the spec that it gets; the others keep theirs.
        lines: What is changed, for people.
    """
    if not may_touch(link, "relaunch", runs):
        return
    title = sanitize(runs[0].name) if len(runs) == 1 else plural(len(runs), "run")
    then = "the changed spec is launched" if changed else "the same spec is launched again on the same slots"
    names = [run.name for run in runs]
    question = Question(
        f"Relaunch {title}?",
        (*goes(runs, snapshot), (Span("then     ", Tone.DIM), Span(then)), *lines),
        yes="Relaunch",
        typed=typed_for(link, runs, snapshot, "relaunch"),
        is_grave=True,
        command="" if changed else twins.relaunch(names, is_admin=is_acting_for(runs)),
    )

    def begin() -> None:
        for run in runs:
            spec = (changed or {}).get(run.name)
            work = _relaunch(link, run, snapshot.pods_of(run.name), spec)
            link.background.start(work, group="launch", what=f"relaunching {run.name}")

    ask(screen, link, question, f"relaunching {title}", begin)


async def _relaunch(link: Link, run: RunView, pods: Sequence[PodView], changed: RunSpec | None) -> None:
    from l2rtui.services import launcher
    from l2rtui.services.specfile import Wish

    with link.background.busy(f"relaunching {run.name}"):
        before = await link.backend.spec(run.name)
        spec = changed or before
        async for item in launcher.destroy(link.backend, run, grace_seconds=link.settings.grace_seconds):
            if isinstance(item, Receipt) and item.left:
                raise LeftBehindError(f"{item.sentence}.", "It was not launched again.")
        pins = pins_of(spec, pods)
        prepared = await launcher.prepare(link.backend, Wish(spec, pins=pins))
        async for _ in launcher.launch(link.backend, prepared):
            pass
    link.background.say(f"{run.name} was launched again.")


def review_destroyed(
    screen: Screen[None], link: Link, target: str, launched: Callable[[tuple[str, ...] | None], None]
) -> None:
    """Show the plan of runs that were destroyed from here, by name; without one the last of them."""

    async def review() -> None:
        from l2rtui.services import lastruns, launcher
        from l2rtui.ui.screens.review import show_plan

        specs = await asyncio.to_thread(lastruns.find, target)
        prepared = await launcher.prepare_runs(link.backend, specs)
        show_plan(screen, link, prepared, twins.launch_again(target), launched)

    link.background.start(review(), group="plan", what="launching again", is_exclusive=True)


def pins_of(spec: RunSpec, pods: Sequence[PodView]) -> tuple[Pin, ...]:
    """The slots of a run's pods in the order of its plan; none when some pod has lost its place."""
    held = {(pod.set_name, pod.index): pod.slots for pod in pods}
    pins: list[Pin] = []
    for one in spec.sets:
        for index in range(one.replicas if one.slots else 0):
            slots = held.get((one.name, index), ())
            if len(slots) != one.slots:
                return ()
            pins.extend(Pin(slot.node, slot.gpu, slot.slot) for slot in slots)
    return tuple(pins)
