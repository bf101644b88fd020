"""Questions before kill, scale and destroy, and what a yes starts.

Each lists what goes and what that frees, and shows the command line that does the same. A yes to what cannot be
taken back begins some seconds later, and can be called back until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.screen import Screen

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.ui import twins
from l2rtui.ui.link import Link
from l2rtui.ui.screens.asking import (
    LARGE_PODS,
    ask,
    goes,
    is_acting_for,
    listed,
    may_touch,
    owned_by,
    typed,
    typed_for,
)
from l2rtui.ui.screens.confirm import Question
from l2rtui.ui.text import Line, Span, Tone, plural


def ask_kill(screen: Screen[None], link: Link, pods: Sequence[PodView], target: str = "") -> None:
    """Ask whether these pods are to be killed, and kill them.

    Args:
        target: What names them all: a set, for example; empty names each.
    """
    if not may_touch(link, "kill", pods):
        return
    names = target or ", ".join(pod.name for pod in pods)
    is_admin = is_acting_for(pods)
    question = Question(
        f"Kill {plural(len(pods), 'pod')}?" if len(pods) > 1 else f"Kill {sanitize(pods[0].name)}?",
        (
            *listed(pods),
            (Span("SIGTERM, then SIGKILL after the grace time. The set starts a replacement.", Tone.DIM),),
            *owned_by(pods),
        ),
        yes="Kill",
        typed=typed(link, "kill" if len(pods) > LARGE_PODS or is_admin else ""),
        is_grave=len(pods) > 1 or is_admin,
        command=twins.kill([target] if target else [pod.name for pod in pods], is_admin=is_admin),
    )

    async def kill() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"killing {plural(len(pods), 'pod')}"):
            await launcher.kill(link.backend, pods, link.settings.grace_seconds)
        link.background.say(f"{names} is being stopped; its set replaces it.")

    ask(
        screen,
        link,
        question,
        f"killing {plural(len(pods), 'pod')}",
        lambda: link.background.start(kill(), group="kill", what=f"killing {names}"),
    )


def ask_destroy(screen: Screen[None], link: Link, runs: Sequence[RunView], snapshot: ClusterSnapshot) -> None:
    """Ask whether these runs are to be destroyed; a yes opens the receipt."""
    if not may_touch(link, "destroy", runs):
        return
    title = sanitize(runs[0].name) if len(runs) == 1 else plural(len(runs), "run")
    question = Question(
        f"Destroy {title}?",
        (*goes(runs, snapshot), (Span("keeps    ", Tone.DIM), Span("checkpoints and metrics"))),
        yes="Destroy",
        typed=typed_for(link, runs, snapshot, "destroy"),
        is_grave=True,
        command=twins.destroy([run.name for run in runs], is_admin=is_acting_for(runs)),
    )

    def begin() -> None:
        from l2rtui.ui.screens.receipt import ReceiptScreen

        screen.app.push_screen(ReceiptScreen(link, runs))

    ask(screen, link, question, f"destroying {title}", begin)


def ask_scale(screen: Screen[None], link: Link, runs: Sequence[RunView], set_name: str, to: int) -> None:
    """Ask whether a set is to get another number of replicas, in each of these runs, and scale it."""
    if not may_touch(link, "scale", runs):
        return
    if to != 1 and any(one.role is Role.LEARNER for run in runs for one in run.sets if one.name == set_name):
        link.background.say(
            f"{set_name} is the learner: a run has exactly one. ctrl+d on the run destroys it whole."
        )
        return
    before = {run.name: _replicas(run, set_name) for run in runs}
    targets = [f"{run.name}/{set_name}" for run in runs]
    name = targets[0] if len(targets) == 1 else f"{set_name} of {plural(len(runs), 'run')}"
    now = sum(before.values())
    word = (
        "More replicas take free slots."
        if to * len(runs) > now
        else f"The set stays in the run; + starts a replica again. {plural(now, 'replica')} stop."
        if to == 0
        else "The replicas with the highest indices are stopped."
    )
    lines: list[Line] = [(Span(word, Tone.DIM),)]
    if len(runs) > 1:
        lines += [(Span(f"  {sanitize(run.name)}  {before[run.name]} → {to}"),) for run in runs]
    is_admin = is_acting_for(runs)
    question = Question(
        f"Scale {sanitize(name)} from {now} to {to * len(runs)}?",
        (*lines, *owned_by(runs)),
        yes="Scale",
        typed=typed(link, runs[0].name if is_admin else "scale" if now - to * len(runs) > LARGE_PODS else ""),
        command=" && ".join(twins.scale(target, to, is_admin=is_admin) for target in targets),
        is_grave=to == 0,
    )

    async def scale() -> None:
        from l2rtui.services import launcher

        with link.background.busy(f"scaling {name}"):
            for run in runs:
                await launcher.scale(link.backend, run.name, set_name, to)
        link.background.say(f"{name} is being scaled to {to}.")

    def begin() -> None:
        link.background.start(scale(), group="scale", what=f"scaling {name}")

    ask(screen, link, question, f"scaling {name}", begin, is_urgent=to * len(runs) > now)


def _replicas(run: RunView, set_name: str) -> int:
    return next((one.replicas for one in run.sets if one.name == set_name), 0)
