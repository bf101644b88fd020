"""The first line: where we are, how full it is, what fails, and whether what is shown is still true."""

from __future__ import annotations

from dataclasses import dataclass

from textual.reactive import reactive
from textual.strip import Strip

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.ui.digest import Tally
from l2rtui.ui.text import Line, Span, Tone, age, shorten, width_of
from l2rtui.ui.widgets.paint import Painted


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


class StatusBar(Painted):
    """One line over everything."""

    DEFAULT_CSS = "StatusBar { height: 1; }"

    snapshot: reactive[ClusterSnapshot] = reactive(ClusterSnapshot, repaint=False)
    health: reactive[Health] = reactive(Health, repaint=False)
    tally: reactive[Tally] = reactive(Tally, repaint=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self._shown: tuple[Line, Line] = (), ()

    def watch_snapshot(self) -> None:
        """Draw if the line reads differently."""
        self._look()

    def watch_health(self) -> None:
        """Draw if the line reads differently."""
        self._look()

    def _look(self) -> None:
        left, right = left_of(self.snapshot, self.health, self.tally), right_of(self.snapshot, self.health)
        if (left, right) != self._shown:
            self._shown = left, right
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002  (there is one line)
        """The line, its right end at the right edge; where both do not fit, the left end gives way."""
        width = self.size.width
        shown, right = self._shown if any(self._shown) else (left_of(self.snapshot, self.health, self.tally), ())
        room = max(0, width - width_of(right))
        left = list(shown)
        while left and width_of(left) > room:
            left.pop()
        return self.strip((*left, Span(" " * (room - width_of(left))), *right), width)


def left_of(snapshot: ClusterSnapshot, health: Health, tally: Tally) -> Line:
    """Name, context and counts; least important last."""
    spans = [Span(" l2rtui ", Tone.STRONG), Span(f" {sanitize(health.context)} ", Tone.ACCENT)]
    if not health.is_connected:
        return tuple(spans)
    ledger = snapshot.ledger
    busy = free = 0
    for slot in ledger.slots.values():  # all of a large cluster, so once and not once for each state
        state = slot.state
        if state is SlotState.FREE:
            free += 1
        elif state is SlotState.BUSY or state is SlotState.FAILED:
            busy += 1
    failing = tally.failing
    spans += [
        *_pair("slots", f"{busy}/{len(ledger.slots)}"),
        *_pair("free", f"{free}"),
        *_pair("mine", f"{tally.mine}"),
        *_pair("runs", f"{len(snapshot.runs)}"),
        *_pair("failing", f"{'✖ ' if failing else ''}{failing}", Tone.BAD if failing else Tone.PLAIN),
        *_pair("pending", f"{tally.waiting}", Tone.WAIT if tally.waiting else Tone.PLAIN),
        *_pair("nodes", f"{sum(node.ready for node in snapshot.nodes.values())}/{len(snapshot.nodes)}"),
    ]
    return tuple(spans)


def right_of(snapshot: ClusterSnapshot, health: Health) -> Line:
    """Work in hand, freshness, and whether anything may be changed."""
    spans: list[Span] = []
    if health.busy:
        spans.append(Span(f" {sanitize(health.busy)} ", Tone.WAIT))
    if health.error:
        since = age(health.silent_seconds)
        spans.append(Span(f" ▲ stale {since}: {shorten(sanitize(health.error), 48)} ", Tone.WARN))
    elif not health.is_connected:
        spans.append(Span(" ◌ connecting ", Tone.WAIT))
    elif snapshot.problems:
        spans.append(Span(f" ▲ partial: {shorten(sanitize(snapshot.problems[0]), 48)} ", Tone.WARN))
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


def _pair(label: str, value: str, tone: Tone = Tone.PLAIN) -> tuple[Span, Span]:
    return Span(f"  {label} ", Tone.DIM), Span(value, tone)
