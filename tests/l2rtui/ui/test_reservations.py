"""``:reserve`` and ``:unreserve``: a question first, the grid and the details show it, others are named."""

from __future__ import annotations

import pytest

from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import SlotId, SlotReservation
from l2rtui.domain.reservations import reservations_text

FREE = SlotId("phortx1", 7, 0)


def state_of(one, slot=FREE):
    return one.cluster.snapshot.ledger.slots[slot]


@pytest.mark.slow
async def test_a_slot_is_reserved_after_a_question_and_released_after_another(desk):
    async with desk(demo=True) as one:
        await one.press("colon", *"reserve phortx1/7 2h figures", "enter")
        await one.until(lambda: one.top == "ConfirmScreen" and "Reserve 4 slots for 2 h?" in one.words())
        # The dialog breaks the line.
        command = one.app.screen.question.command
        assert command == "l2rtui --backend demo reserve phortx1/7 --for 2h --note figures"
        await one.press("y")
        await one.until(lambda: state_of(one).reservation is not None)
        await one.until(lambda: "reserved 4 slots for 2 h" in one.says())
        assert (state_of(one).state, state_of(one).reservation.note) == (SlotState.FREE, "figures")
        await one.press("1")
        one.cluster.panes.slots.move_to(FREE)
        await one.until(lambda: "(figures)" in one.words() and "until 2025-06-15 17:06 UTC" in one.words())
        await one.press("colon", *"unreserve", "enter")
        await one.until(lambda: one.top == "ConfirmScreen" and f"End the reservation of {FREE}?" in one.words())
        await one.press("y")
        await one.until(lambda: state_of(one).reservation is None)
        await one.until(lambda: f"ended the reservation of {FREE}" in one.says())
        assert state_of(one, SlotId("phortx1", 7, 1)).reservation is not None


@pytest.mark.slow
async def test_what_somebody_else_has_reserved_is_shown_and_left_alone(desk):
    async with desk(demo=True) as one:
        theirs = reservations_text([SlotReservation(7, 0, "anna", one.backend.now() + 3600, "demo")])
        one.backend.reservations.write({"phortx1": theirs})
        await one.until(lambda: state_of(one).state is SlotState.RESERVED and "= reserved 1" in one.words())
        for line, sentence in (
            ("reserve phortx1/7.0", "is reserved by anna until 2025-06-15 16:06 UTC (demo)."),
            ("unreserve phortx1/7.0", "It is reserved by anna: ask them"),
            ("unreserve phortx1/7.1", "phortx1/7.1 is not reserved"),
            ("reserve phortx1/99 1h", "There is no slot phortx1/99. `l2rtui --backend demo slots` lists them."),
            ("reserve phortx1/7.1 90d", "from 1 minute to 14 days"),
            ("unreserve phortx1/7.1 now", "'now' names no slots"),
        ):
            await one.press("colon", *line, "enter")
            await one.until(lambda sentence=sentence: any(sentence in said for said in one.says()), line)
            if line == "reserve phortx1/99 1h":  # so far no line was written wrongly
                assert not any("Such as" in said for said in one.says())
            assert one.top == "ClusterScreen"
        await one.pass_time(4000, lambda: state_of(one).state is SlotState.FREE)
