"""State of the connection to the backend, and the two ends of the status line that show it.

Separate from the status bar: the splash screen shows them before the home screen is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from l2rtui.domain.quantity import age
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.status import LOGIN_REFUSED
from l2rtui.ui.text import Line, Span, TextStyle, shorten

if TYPE_CHECKING:  # the first frame does not need it
    from l2rtui.domain.snapshot import ContextHealth

MOST_NAMED: Final = 4
"""With more contexts than this, live ones are only counted; the others are always named."""


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """Connection, permissions and work in progress, for the status bar.

    Attributes:
        context: The backend and its context.
        is_protected: The context's name must be typed before every change. is_admin: others' runs may be changed.
        is_connected: A first snapshot has arrived.
        error: Reason why the watch is down; empty while it works. silent_seconds: time since its last event.
        unanswered_seconds: Time since the backend's last response while no connection is broken; 0 while it
            responds.
        busy: Work of the app in progress, for example a launch; otherwise empty.
        contexts: State of each context if several are shown; otherwise empty.
        now: Time of this state in seconds since the epoch, if there are contexts.
    """

    context: str = ""
    is_readonly: bool = False
    is_protected: bool = False
    is_admin: bool = False
    is_connected: bool = False
    error: str = ""
    silent_seconds: float = 0.0
    unanswered_seconds: float = 0.0
    busy: str = ""
    contexts: tuple[ContextHealth, ...] = ()
    now: float = 0.0

    @property
    def outage(self) -> str:
        """Reason why no new data arrive; empty while the backend responds."""
        return self.error or ("nothing answers" if self.unanswered_seconds else "")

    @property
    def outage_seconds(self) -> float:
        """Age of the shown data during an outage; 0 while the backend responds."""
        return self.silent_seconds if self.error else self.unanswered_seconds


def name_of(health: ConnectionStatus) -> tuple[Line, ...]:
    """Return the groups of the left end: the program's name, and its context by parts."""
    if health.contexts:
        return ((Span(" l2rtui ", TextStyle.STRONG),), *_contexts(health), (Span(" "),))
    # By parts: a narrow terminal drops the user first and the context last.
    parts = [part for part in sanitize(health.context).split(" · ") if part]
    context = [(Span(f" {'· ' if number else ''}{part}", TextStyle.ACCENT),) for number, part in enumerate(parts)]
    return ((Span(" l2rtui ", TextStyle.STRONG),), *context, (Span(" "),))


def _contexts(health: ConnectionStatus) -> list[Line]:
    """Return a group for each context, those that are not live first: a narrow terminal drops the last groups."""
    named = sorted(health.contexts, key=lambda context: context.is_live)
    live = [context for context in named if context.is_live]
    counted: list[Line] = []
    if len(named) > MOST_NAMED and live:
        named = named[: len(named) - len(live)]
        counted = [(Span(f" ● {len(live)} contexts live ", TextStyle.OK),)]
    return [*([_context(context, health.now) for context in named]), *counted]


def _context(context: ContextHealth, now: float) -> Line:
    mark = "▲ PROTECTED " if context.is_protected else ""
    name = Span(f" {sanitize(context.name)}", TextStyle.ACCENT)
    if context.old_since is not None:
        state = Span(f" ▲ old {age(now - context.old_since)} ", TextStyle.FAULT)
    elif not context.has_rows:
        state = Span(" ✖ away ", TextStyle.FAULT) if context.has_failed else Span(" ◌ connecting ", TextStyle.WAIT)
    else:
        state = Span(" ▲ partial ", TextStyle.WARN) if context.problems else Span(" ● live ", TextStyle.OK)
    return (name, state, Span(mark, TextStyle.BAD)) if mark else (name, state)


def right_of(problems: Sequence[str], health: ConnectionStatus) -> Line:
    """Return the right end: work in progress, age of the data, and permissions."""
    spans: list[Span] = []
    if health.busy:
        spans.append(Span(f" {shorten(sanitize(health.busy), 60)} ", TextStyle.WAIT))
    if health.error:
        since = age(health.silent_seconds)
        spans.append(Span(f" ▲ stale {since}: {shorten(sanitize(health.error), 48)} ", TextStyle.WARN))
    elif not health.is_connected:
        spans.append(Span(" ◌ connecting ", TextStyle.WAIT))
    elif health.unanswered_seconds:
        # Before any partial problem: without answers, the whole screen has this age.
        spans.append(Span(f" ▲ no answer for {age(health.unanswered_seconds)} ", TextStyle.FAULT))
    elif health.contexts and (first := next((own for own in health.contexts if own.problems), None)):
        # The reason of the first; the state of each is shown at the left.
        spans.append(Span(f" {shorten(sanitize(first.problems[0]), 48)} ", TextStyle.WARN))
    elif problems:
        is_refused = problems[0].startswith((LOGIN_REFUSED, "The namespace "))
        kind, style = ("", TextStyle.FAULT) if is_refused else ("partial: ", TextStyle.WARN)
        spans.append(Span(f" ▲ {kind}{shorten(sanitize(problems[0]), 56 - len(kind))} ", style))
    else:
        spans.append(Span(" ● live ", TextStyle.OK))
    if health.is_admin:
        spans.append(Span(" ▲ ADMIN ", TextStyle.WARN))
    if health.is_protected:
        spans.append(Span(" ▲ PROTECTED ", TextStyle.BAD))
    if health.is_readonly:
        spans.append(Span(" READ-ONLY ", TextStyle.WARN))
    return tuple(spans)
