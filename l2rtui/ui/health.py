"""How the app stands with its backend, and the two ends of the first line that say so.

Apart from the bar itself, since the first frame shows it before anything of the cluster is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from l2rtui.domain.sanitize import sanitize
from l2rtui.ui.text import Line, Span, Tone, age, shorten


@dataclass(frozen=True, slots=True)
class Health:
    """What the bar shows beside the snapshot.

    Attributes:
        context: The backend and its context.
        is_protected: Every change wants the context's name typed. is_admin: other people's runs may be changed.
        is_connected: A first snapshot has come.
        error: Why the watch is down; empty when it is well. silent_seconds: since when nothing was heard.
        busy: What this app is doing at this moment, for example a launch; empty when nothing.
    """

    context: str = ""
    is_readonly: bool = False
    is_protected: bool = False
    is_admin: bool = False
    is_connected: bool = False
    error: str = ""
    silent_seconds: float = 0.0
    busy: str = ""


def name_of(health: Health) -> Line:
    """The program's name and its context."""
    return Span(" l2rtui ", Tone.STRONG), Span(f" {sanitize(health.context)} ", Tone.ACCENT)


def right_of(problems: Sequence[str], health: Health) -> Line:
    """Work in hand, freshness, and whether anything may be changed."""
    spans: list[Span] = []
    if health.busy:
        spans.append(Span(f" {sanitize(health.busy)} ", Tone.WAIT))
    if health.error:
        since = age(health.silent_seconds)
        spans.append(Span(f" ▲ stale {since}: {shorten(sanitize(health.error), 48)} ", Tone.WARN))
    elif not health.is_connected:
        spans.append(Span(" ◌ connecting ", Tone.WAIT))
    elif problems:
        spans.append(Span(f" ▲ partial: {shorten(sanitize(problems[0]), 48)} ", Tone.WARN))
    else:
        spans.append(Span(" ● live ", Tone.OK))
    if health.is_admin:
        spans.append(Span(" ▲ ADMIN ", Tone.WARN))
    if health.is_protected:
        spans.append(Span(" ▲ PROTECTED ", Tone.BAD))
    spans.append(
        Span(" READ-ONLY " if health.is_readonly else " RW ", Tone.WARN if health.is_readonly else Tone.DIM)
    )
    return tuple(spans)
