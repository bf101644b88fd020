"""What all questions before a change share: whose it is, what goes, what must be typed, the seconds after a yes.

Other people's runs are left alone, as the headless verbs leave them, until ``:admin`` was said; then their name
must be typed. In a protected context its own name must be typed before anything changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from textual.screen import Screen

from l2rtui.config import user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.errors import RefusedError
from l2rtui.services.owners import is_mine, refuse_others
from l2rtui.ui.link import Link
from l2rtui.ui.screens.confirm import ConfirmScreen, Question
from l2rtui.ui.text import Line, Span, Tone, plural, slot_ranges

LARGE_PODS: Final = 10
"""More pods than this want a typed name."""
_LISTED: Final = 12


def ask(
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


def may_touch(link: Link, verb: str, objects: Sequence[PodView | RunView]) -> bool:
    """Whether these may be changed: mine, or anybody's for an administrator. Says it where not."""
    try:
        refuse_others(verb, objects, is_admin=link.is_admin, me=user_name())
    except RefusedError as error:
        link.background.say(
            f"{error.message} Ask the owner, or type :admin if you may act for them.", is_error=True
        )
        return False
    return True


def foreign(objects: Sequence[PodView | RunView]) -> tuple[str, ...]:
    """Owners of what is not mine."""
    me = user_name()
    return tuple(sorted({one.owner or "nobody known" for one in objects if not is_mine(one, me)}))


def is_acting_for(objects: Sequence[PodView | RunView]) -> bool:
    """Whether the command line of a change needs ``--admin``."""
    return bool(foreign(objects))


def owned_by(objects: Sequence[PodView | RunView]) -> tuple[Line, ...]:
    """A line where something is not mine."""
    owners = foreign(objects)
    return ((Span(f"▲ not yours: {sanitize(', '.join(owners))}", Tone.WARN),),) if owners else ()


def typed(link: Link, otherwise: str) -> str:
    """In a protected context its name must be typed before anything changes."""
    return link.protected or otherwise


def typed_for(link: Link, runs: Sequence[RunView], snapshot: ClusterSnapshot, word: str) -> str:
    """What must be typed before runs go: a run's name, or the word where there are several; else empty."""
    pods = sum(len(snapshot.pods_of(run.name)) for run in runs)
    is_large = pods > LARGE_PODS or bool(foreign(runs))
    return typed(link, (runs[0].name if len(runs) == 1 else word) if is_large else "")


def goes(runs: Sequence[RunView], snapshot: ClusterSnapshot) -> tuple[Line, ...]:
    """What goes with these runs and what that frees."""
    pods = [pod for run in runs for pod in snapshot.pods_of(run.name)]
    slots = sorted({slot for pod in pods for slot in pod.slots})
    freed = f": {sanitize(slot_ranges(slots))}" if slots else ""
    return (
        (Span(f"{plural(len(runs), 'run')}, {plural(len(pods), 'pod')} go:", Tone.DIM),),
        *listed(pods),
        (Span("frees    ", Tone.DIM), Span(f"{plural(len(slots), 'slot')}{freed}")),
        *owned_by(runs),
    )


def listed(pods: Sequence[PodView]) -> tuple[Line, ...]:
    """Pods and their slots, and how many more there are when they are many."""
    lines: list[Line] = []
    for pod in pods[:_LISTED]:
        slots = " ".join(str(slot) for slot in pod.slots) or "no slot"
        lines.append((Span(f"  {sanitize(pod.name)}", Tone.PLAIN), Span(f"  {sanitize(slots)}", Tone.DIM)))
    if len(pods) > _LISTED:
        lines.append((Span(f"  and {len(pods) - _LISTED} more", Tone.DIM),))
    return tuple(lines)
