"""Actions on reservations: reserve slots for the user's own runs, and release them. Each asks first."""

from __future__ import annotations

from l2rtui.config import user_name
from l2rtui.domain import reservations
from l2rtui.domain.node import SlotId
from l2rtui.domain.quantity import counted
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError, UsageError
from l2rtui.ui.dialogs.confirm import Question
from l2rtui.ui.dialogs.questions import ask
from l2rtui.ui.home.home_view import HomeView
from l2rtui.ui.keys import cli_equivalents
from l2rtui.ui.text import Line, Span, TextStyle
from runtime.base.durations import duration_text, parse_duration

_USUAL_SECONDS = 4 * 3600.0


class ReservationActions:
    """Actions on the named slots, or on the slot under the cursor of the grid."""

    def __init__(self, view: HomeView) -> None:
        self._view = view
        self._ctx = view.ctx

    def action_reserve(self, text: str = "") -> None:
        """Ask before slots are reserved: ``[SLOTS] [SPAN] [NOTE]``."""
        try:
            slots, place, words = self._slots(text)
            seconds = _span(words[0]) if words else None
            note = " ".join(words[seconds is not None :])
            self._ask_reserve(slots, place, _USUAL_SECONDS if seconds is None else seconds, note)
        except L2RError as error:
            self._view.say(str(error), is_error=True)

    def action_unreserve(self, text: str = "") -> None:
        """Ask before the reservations of slots end."""
        from l2rtui.services import reservations as changes

        ledger = self._view.snapshot.ledger
        try:
            slots, place, words = self._slots(text)
            if words:
                raise UsageError(f"{words[0]!r} names no slots.", "Write n1, n1/0-3 or n1/3.2.")
            changes.store_of(self._ctx.backend)
        except L2RError as error:
            self._view.say(str(error), is_error=True)
            return
        reserved = reservations.reserved(slots, ledger)
        if not reserved:
            self._view.say(f"{_named(slots)} is not reserved." if len(slots) == 1 else "None of these is reserved.")
            return
        others = sorted({item.owner for _, item in reserved if not item.is_mine})
        if others and not self._ctx.is_admin:
            self._view.say(
                f"It is reserved by {', '.join(others)}: ask them, or type :admin if you may.", is_error=True
            )
            return
        names = [slot for slot, _ in reserved]
        lines = [(Span(f"{slot}  ", TextStyle.STRONG), Span(sanitize(item.text))) for slot, item in reserved[:8]]
        question = Question(
            f"End the reservation of {_named(names)}?",
            (self._where(), *lines),
            yes="End",
            typed=self._ctx.protected or (others[0] if others else ""),
            command=self._ctx.command_line(cli_equivalents.unreserve(place, is_admin=bool(others))),
        )

        async def release() -> None:
            is_admin = self._ctx.is_admin
            await changes.unreserve(self._ctx.backend, self._view.snapshot, names, is_admin=is_admin)
            self._view.say(f"ended the reservation of {_named(names)}")

        def begin() -> None:
            self._ctx.background.start(release(), group="reserve", what="the end of the reservation")

        ask(self._view.screen, self._ctx, question, f"releasing {_named(names)}", begin)

    def _ask_reserve(self, slots: tuple[SlotId, ...], place: str, seconds: float, note: str) -> None:
        from l2rtui.services import reservations as changes

        changes.store_of(self._ctx.backend)
        for problem, hint in (
            (reservations.span_problem(seconds), "Such as `:reserve n1/0-3 4h`."),
            (reservations.obstacle(slots, self._view.snapshot.ledger, user_name()), ""),
        ):
            if problem:
                raise UsageError(f"{problem[0].upper()}{problem[1:]}.", hint)
        question = Question(
            f"Reserve {_named(slots)} for {duration_text(seconds)}?",
            (
                self._where(),
                (Span("launches of others avoid these slots until then; yours use them", TextStyle.DIM),),
                *([(Span("note     ", TextStyle.DIM), Span(sanitize(note)))] if note else []),
            ),
            yes="Reserve",
            typed=self._ctx.protected,
            command=self._ctx.command_line(cli_equivalents.reserve(place, seconds, note)),
        )

        async def reserve() -> None:
            await changes.reserve(self._ctx.backend, slots, self._ctx.clock(), seconds, note)
            self._view.say(f"reserved {_named(slots)} for {duration_text(seconds)}")

        def begin() -> None:
            self._ctx.background.start(reserve(), group="reserve", what=f"the reservation of {_named(slots)}")

        ask(self._view.screen, self._ctx, question, f"reserving {_named(slots)}", begin, is_urgent=True)

    def _slots(self, text: str) -> tuple[tuple[SlotId, ...], str, list[str]]:
        """Return the slots named by the first word, or the slot under the cursor; their name; the other words."""
        from l2rtui.services import reservations as changes

        words, snapshot = text.split(), self._view.snapshot
        if words and (words[0].partition("/")[0].partition(",")[0] in snapshot.nodes or "/" in words[0]):
            return changes.slots_named(words[:1], snapshot), words[0], words[1:]
        cursor = self._view.panes.slots.cursor_slot
        if cursor is None:
            raise UsageError("There is no slot under the cursor.", "Name slots: `:reserve n1/0-3 4h`.")
        return (cursor,), str(cursor), words

    def _where(self) -> Line:
        return Span("place    ", TextStyle.DIM), Span(sanitize(self._ctx.acts_on()))


def _span(text: str) -> float | None:
    """Return the seconds of a span such as ``4h``; None for any other word."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _named(slots: tuple[SlotId, ...] | list[SlotId]) -> str:
    return str(slots[0]) if len(slots) == 1 else counted(len(slots), "slot")
