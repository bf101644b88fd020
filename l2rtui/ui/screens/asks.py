"""Questions before kill, scale and destroy, and what a yes starts. The lists say what goes and what it frees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.screen import Screen

from l2rtui.config import user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.ui.link import Link
from l2rtui.ui.screens.confirm import ConfirmScreen, Question
from l2rtui.ui.text import Line, Span, Tone, plural, slot_ranges

LARGE_PODS: Final = 10
"""More pods than this want a typed name."""
_LISTED: Final = 12


def ask_kill(screen: Screen[None], link: Link, pods: Sequence[PodView]) -> None:
    """Ask whether these pods are to be killed, and kill them."""
    names = ", ".join(pod.name for pod in pods)
    owners = _foreign_owners(pods)
    question = Question(
        f"Kill {plural(len(pods), 'pod')}?" if len(pods) > 1 else f"Kill {sanitize(pods[0].name)}?",
        (
            *_listed(pods),
            (Span("SIGTERM, then SIGKILL after the grace time. The set starts a replacement.", Tone.DIM),),
            *_owned_by(owners),
        ),
        yes="Kill",
        typed="kill" if len(pods) > LARGE_PODS or owners else "",
        is_grave=len(pods) > 1 or bool(owners),
    )

    async def kill() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"killing {plural(len(pods), 'pod')}"):
            await launcher.kill(link.backend, pods, link.settings.grace_seconds)
        link.background.say(f"{names} is being stopped; its set replaces it.")

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            link.background.start(kill(), group="kill", what=f"killing {names}")

    screen.app.push_screen(ConfirmScreen(question), answered)


def ask_destroy(screen: Screen[None], link: Link, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> None:
    """Ask whether these runs are to be destroyed; a yes opens the receipt."""
    pods = [pod for run in runs for pod in snapshot.pods_of(run.name)]
    owners = tuple(sorted({run.owner for run in runs if run.owner not in ("", user_name())}))
    slots = sorted({slot for pod in pods for slot in pod.slots})
    name = runs[0].name if len(runs) == 1 else "destroy"
    title = sanitize(runs[0].name) if len(runs) == 1 else plural(len(runs), "run")
    freed = f": {sanitize(slot_ranges(slots))}" if slots else ""
    question = Question(
        f"Destroy {title}?",
        (
            (Span(f"{plural(len(runs), 'run')}, {plural(len(pods), 'pod')} go:", Tone.DIM),),
            *_listed(pods),
            (Span("frees    ", Tone.DIM), Span(f"{plural(len(slots), 'slot')}{freed}")),
            (Span("keeps    ", Tone.DIM), Span("checkpoints and metrics")),
            *_owned_by(owners),
        ),
        yes="Destroy",
        typed=name if len(pods) > LARGE_PODS or owners else "",
        is_grave=True,
    )

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            from l2rtui.ui.screens.receipt import ReceiptScreen

            screen.app.push_screen(ReceiptScreen(link, runs))

    screen.app.push_screen(ConfirmScreen(question), answered)


def ask_scale(screen: Screen[None], link: Link, run: RunView, set_name: str, by: int) -> None:
    """Ask whether a set is to get more or fewer replicas, and scale it."""
    now = next((one.replicas for one in run.sets if one.name == set_name), 0)
    to = now + by
    target = f"{run.name}/{set_name}"
    word = "One replica more takes free slots." if by > 0 else "The replica with the highest index is stopped."
    question = Question(
        f"Scale {sanitize(target)} from {now} to {to}?",
        ((Span(word, Tone.DIM),), *_owned_by(_foreign([run.owner]))),
        yes="Scale",
        typed=run.name if _foreign([run.owner]) else "",
    )

    async def scale() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"scaling {target}"):
            await launcher.scale(link.backend, run.name, set_name, to)
        link.background.say(f"{target} is being scaled to {to}.")

    def answered(is_yes: bool | None) -> None:
        if is_yes:
            link.background.start(scale(), group="scale", what=f"scaling {target}")

    screen.app.push_screen(ConfirmScreen(question), answered)


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


def _foreign_owners(pods: Sequence[PodView]) -> tuple[str, ...]:
    return _foreign([pod.owner for pod in pods])


def _owned_by(owners: Sequence[str]) -> tuple[Line, ...]:
    if not owners:
        return ()
    return ((Span(f"▲ not yours: {sanitize(', '.join(owners))}", Tone.WARN),),)
