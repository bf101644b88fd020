"""The first line: where we are, how full it is, what fails, and whether what is shown is still true."""

from __future__ import annotations

from typing import Final, NamedTuple

from textual.reactive import reactive

from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.ui.digest import Tally
from l2rtui.ui.health import Health, name_of, right_of
from l2rtui.ui.text import Line, Span, Tone
from l2rtui.ui.widgets.ends import Ends


class StatusBar(Ends):
    """One line over everything."""

    DEFAULT_CSS = "StatusBar { height: 1; }"

    snapshot: reactive[ClusterSnapshot] = reactive(ClusterSnapshot, repaint=False)
    health: reactive[Health] = reactive(Health, repaint=False)
    tally: reactive[Tally] = reactive(Tally, repaint=False)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self._ledger: Ledger | None = None
        self._slots = NO_SLOTS

    def watch_snapshot(self) -> None:
        """Draw if the line reads differently."""
        self._look()

    def watch_health(self) -> None:
        """Draw if the line reads differently."""
        self._look()

    def _look(self) -> None:
        if self.health.is_connected and self.snapshot.ledger is not self._ledger:
            self._ledger = self.snapshot.ledger
            self._slots = slots_of(self._ledger)
        left = left_of(self.snapshot, self.health, self.tally, self._slots)
        self.show(left, right_of(self.snapshot.problems, self.health))


class Slots(NamedTuple):
    """How many slots there are, and how many of them are held and free."""

    there: int
    busy: int
    free: int


NO_SLOTS: Final = Slots(0, 0, 0)


def slots_of(ledger: Ledger) -> Slots:
    """Count the slots: a look at each of them, so only when the ledger is another."""
    busy = free = 0
    for slot in ledger.slots.values():
        state = slot.state
        if state is SlotState.FREE:
            free += 1
        elif state is SlotState.BUSY or state is SlotState.FAILED:
            busy += 1
    return Slots(len(ledger.slots), busy, free)


def left_of(snapshot: ClusterSnapshot, health: Health, tally: Tally, slots: Slots) -> Line:
    """Name, context and counts; least important last."""
    spans = list(name_of(health))
    if not health.is_connected:
        return tuple(spans)
    failing = tally.failing
    spans += [
        *_pair("slots", f"{slots.busy}/{slots.there}"),
        *_pair("free", f"{slots.free}"),
        *_pair("mine", f"{tally.mine}"),
        *_pair("runs", f"{len(snapshot.runs)}"),
        *_pair("failing", f"{'✖ ' if failing else ''}{failing}", Tone.BAD if failing else Tone.PLAIN),
        *_pair("pending", f"{tally.waiting}", Tone.WAIT if tally.waiting else Tone.PLAIN),
        *_pair("nodes", f"{sum(node.ready for node in snapshot.nodes.values())}/{len(snapshot.nodes)}"),
    ]
    return tuple(spans)


def _pair(label: str, value: str, tone: Tone = Tone.PLAIN) -> tuple[Span, Span]:
    return Span(f"  {label} ", Tone.DIM), Span(value, tone)
