"""Questions before kill, scale, relaunch and destroy, and what a yes starts.

Each lists what goes and what that frees, and shows the command line that does the same. A yes to what cannot be
taken back begins some seconds later, and can be called back until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from textual.screen import Screen

from l2rtui.backends.base import Receipt
from l2rtui.config import user_name
from l2rtui.domain.placement import Pin
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import LeftBehindError
from l2rtui.ui import twins
from l2rtui.ui.link import Link
from l2rtui.ui.screens.confirm import ConfirmScreen, Question
from l2rtui.ui.text import Line, Span, Tone, plural, slot_ranges

LARGE_PODS: Final = 10
"""More pods than this want a typed name."""
_LISTED: Final = 12


def ask_kill(screen: Screen[None], link: Link, pods: Sequence[PodView], target: str = "") -> None:
    """Ask whether these pods are to be killed, and kill them.

    Args:
        target: What names them all: a set, for example; empty names each.
    """
    names = target or ", ".join(pod.name for pod in pods)
    owners = _foreign([pod.owner for pod in pods])
    question = Question(
        f"Kill {plural(len(pods), 'pod')}?" if len(pods) > 1 else f"Kill {sanitize(pods[0].name)}?",
        (
            *_listed(pods),
            (Span("SIGTERM, then SIGKILL after the grace time. The set starts a replacement.", Tone.DIM),),
            *_owned_by(owners),
        ),
        yes="Kill",
        typed=_typed(link, "kill" if len(pods) > LARGE_PODS or owners else ""),
        is_grave=len(pods) > 1 or bool(owners),
        command=twins.kill([target] if target else [pod.name for pod in pods]),
    )

    async def kill() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"killing {plural(len(pods), 'pod')}"):
            await launcher.kill(link.backend, pods, link.settings.grace_seconds)
        link.background.say(f"{names} is being stopped; its set replaces it.")

    _ask(
        screen,
        link,
        question,
        f"killing {plural(len(pods), 'pod')}",
        lambda: link.background.start(kill(), group="kill", what=f"killing {names}"),
    )


def ask_destroy(screen: Screen[None], link: Link, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> None:
    """Ask whether these runs are to be destroyed; a yes opens the receipt."""
    title = sanitize(runs[0].name) if len(runs) == 1 else plural(len(runs), "run")
    question = Question(
        f"Destroy {title}?",
        (*_goes(runs, snapshot), (Span("keeps    ", Tone.DIM), Span("checkpoints and metrics"))),
        yes="Destroy",
        typed=_typed_for(link, runs, snapshot, "destroy"),
        is_grave=True,
        command=twins.destroy([run.name for run in runs]),
    )

    def begin() -> None:
        from l2rtui.ui.screens.receipt import ReceiptScreen

        screen.app.push_screen(ReceiptScreen(link, runs))

    _ask(screen, link, question, f"destroying {title}", begin)


def ask_relaunch(screen: Screen[None], link: Link, run: RunView, snapshot: ClusterSnapshot) -> None:
    """Ask whether a run is to be destroyed and launched again, where it was, with the spec that it has."""
    again = (Span("then     ", Tone.DIM), Span("the same spec is launched again on the same slots"))
    question = Question(
        f"Relaunch {sanitize(run.name)}?",
        (*_goes([run], snapshot), again),
        yes="Relaunch",
        typed=_typed_for(link, [run], snapshot, "relaunch"),
        is_grave=True,
        command=twins.destroy([run.name]),
    )
    pods = snapshot.pods_of(run.name)

    async def relaunch() -> None:
        from l2rtui.services import launcher
        from l2rtui.services.specfile import Wish

        with link.background.busy(f"relaunching {run.name}"):
            spec = await link.backend.spec(run.name)
            async for item in launcher.destroy(link.backend, run, grace_seconds=link.settings.grace_seconds):
                if isinstance(item, Receipt) and item.left:
                    raise LeftBehindError(f"{item.sentence}.", "It was not launched again.")
            prepared = await launcher.prepare(link.backend, Wish(spec, pins=pins_of(spec, pods)))
            async for _ in launcher.launch(link.backend, prepared):
                pass
        link.background.say(f"{run.name} was launched again.")

    _ask(
        screen,
        link,
        question,
        f"relaunching {sanitize(run.name)}",
        lambda: link.background.start(relaunch(), group="launch", what=f"relaunching {run.name}"),
    )


def ask_scale(screen: Screen[None], link: Link, run: RunView, set_name: str, to: int) -> None:
    """Ask whether a set is to get another number of replicas, and scale it."""
    now = next((one.replicas for one in run.sets if one.name == set_name), 0)
    target = f"{run.name}/{set_name}"
    word = (
        "More replicas take free slots."
        if to > now
        else f"The set stays in the run; + starts a replica again. {plural(now, 'replica')} stop."
        if to == 0
        else "The replica with the highest index is stopped."
    )
    owners = _foreign([run.owner])
    question = Question(
        f"Scale {sanitize(target)} from {now} to {to}?",
        ((Span(word, Tone.DIM),), *_owned_by(owners)),
        yes="Scale",
        typed=_typed(link, run.name if owners else ""),
        command=twins.scale(target, to),
        is_grave=to == 0,
    )

    async def scale() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"scaling {target}"):
            await launcher.scale(link.backend, run.name, set_name, to)
        link.background.say(f"{target} is being scaled to {to}.")

    def begin() -> None:
        link.background.start(scale(), group="scale", what=f"scaling {target}")

    _ask(screen, link, question, f"scaling {target}", begin, is_urgent=to > 0)


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


def _ask(
    screen: Screen[None],
    link: Link,
    question: Question,
    what: str,
    begin: Callable[[], object],
    *,
    is_urgent: bool = False,
) -> None:
    """Ask, and begin after a yes: at once where that can be undone, else after the seconds to call it back."""

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            link.pending.start(what, 0.0 if is_urgent else link.cancel_seconds, begin)

    screen.app.push_screen(ConfirmScreen(question), answered)


def _goes(runs: Sequence[RunView], snapshot: ClusterSnapshot) -> tuple[Line, ...]:
    """What goes with these runs and what that frees."""
    pods = [pod for run in runs for pod in snapshot.pods_of(run.name)]
    slots = sorted({slot for pod in pods for slot in pod.slots})
    freed = f": {sanitize(slot_ranges(slots))}" if slots else ""
    return (
        (Span(f"{plural(len(runs), 'run')}, {plural(len(pods), 'pod')} go:", Tone.DIM),),
        *_listed(pods),
        (Span("frees    ", Tone.DIM), Span(f"{plural(len(slots), 'slot')}{freed}")),
        *_owned_by(_foreign([run.owner for run in runs])),
    )


def _typed_for(link: Link, runs: Sequence[RunView], snapshot: ClusterSnapshot, word: str) -> str:
    """What must be typed before runs go: a run's name, or the word where there are several; else empty."""
    pods = sum(len(snapshot.pods_of(run.name)) for run in runs)
    is_large = pods > LARGE_PODS or bool(_foreign([run.owner for run in runs]))
    return _typed(link, (runs[0].name if len(runs) == 1 else word) if is_large else "")


def _typed(link: Link, otherwise: str) -> str:
    """In a protected context its name must be typed before anything changes."""
    return link.protected or otherwise


def _listed(pods: Sequence[PodView]) -> tuple[Line, ...]:
    lines: list[Line] = []
    for pod in pods[:_LISTED]:
        slots = " ".join(str(slot) for slot in pod.slots) or "no slot"
        lines.append((Span(f"  {sanitize(pod.name)}", Tone.PLAIN), Span(f"  {sanitize(slots)}", Tone.DIM)))
    if len(pods) > _LISTED:
        lines.append((Span(f"  and {len(pods) - _LISTED} more", Tone.DIM),))
    return tuple(lines)


def _foreign(owners: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({owner for owner in owners if owner not in ("", user_name())}))


def _owned_by(owners: Sequence[str]) -> tuple[Line, ...]:
    if not owners:
        return ()
    return ((Span(f"▲ not yours: {sanitize(', '.join(owners))}", Tone.WARN),),)
