"""Progress bars in a log pane: the newest state takes the place of the one before it."""

from __future__ import annotations

from l2rtui.domain.log import LogLine
from l2rtui.ui.widgets.log_ring import LogRing, LogStore, newest_states


def state(number, pod="p", *, replaces=True):
    return LogLine(float(number), pod, f"{number}%", replaces=replaces)


def test_of_the_states_of_one_bar_the_newest_stays():
    lines = [LogLine(0.0, "p", "begin"), state(1, replaces=False), state(2), state(3), LogLine(4.0, "p", "end")]
    assert [line.text for line in newest_states(lines)] == ["begin", "3%", "end"]
    assert [line.replaces for line in newest_states(lines)] == [False, False, False]
    assert [line.text for line in newest_states([state(1), state(2, "q"), state(3)])] == ["1%", "2%", "3%"]


def test_a_store_and_a_ring_forget_what_was_replaced():
    store, ring = LogStore(), LogRing()
    for line in (LogLine(0.0, "p", "begin"), state(1)):
        ring.extend(store.extend([line])[1])
    assert store.drop_newest()
    ring.drop_newest()
    ring.extend(store.extend([state(22)])[1])
    assert [entry.text for entry in ring] == ["begin", "22%"]
    assert (len(store), ring.rows) == (2, 2)
    for empty in (LogStore(), LogRing()):
        assert not empty.drop_newest()


async def test_a_bar_moves_in_its_row(desk):
    async with desk() as one:
        pane = one.cluster.panes.log_pane
        await one.press("5")
        pane.extend([LogLine(1.0, "p", "begin"), state(1, replaces=False)])
        rows = len(pane.ring)
        for number in range(2, 30):
            pane.extend([state(number)])
        assert [entry.text for entry in pane.ring][-2:] == ["begin", "29%"]
        assert len(pane.ring) == rows
        pane.extend([LogLine(40.0, "q", "other")])
        pane.extend([state(41)])
        assert [entry.text for entry in pane.ring][-3:] == ["29%", "other", "41%"]
