"""Owners in the app: who holds what, the GPUs that do nothing, and the pods behind a row."""

from __future__ import annotations

from l2rtui.domain.owners import HOLDER_SECONDS
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.widgets.virtual_table import VirtualTable


def rows(one):
    model = one.app.screen.query_one(VirtualTable).model
    keys = [column.key for column in model.columns]
    return {
        key.partition("/")[0]: dict(zip(keys, (cell.text for cell in model.rows[key].cells), strict=True))
        for key in model.displayed
    }


async def open_owners(one):
    await one.press("O")
    await one.until(lambda: one.top == "OwnersScreen" and rows(one), "the owners")


async def test_each_owner_has_the_slots_of_the_ledger(desk):
    async with desk() as one:
        await open_owners(one)
        held = {}
        for slot in one.cluster.snapshot.ledger.slots.values():
            if slot.pod:
                held[slot.owner] = held.get(slot.owner, 0) + 1
        assert {owner: row["slots"] for owner, row in rows(one).items()} == {
            owner: str(number) for owner, number in held.items()
        }
        assert "l2rtui --backend demo owners" in one.words()
        await one.press("enter")
        await one.until(lambda: one.top == "ClusterScreen" and one.cluster.panes.focused_pane is Pane.PODS)
        owner = max(held, key=held.get)
        pods = one.cluster.panes.pods.model
        assert {one.cluster.snapshot.pods[uid].owner for uid in pods.displayed} == {owner}


async def test_a_gpu_that_rests_for_half_an_hour_is_named_with_its_owner(desk):
    async with desk(demo=True) as one:
        idle = one.cluster.content.slot_figures.idle  # in the demo a worker of u17 is 4 % busy
        await one.until(lambda: ("phortx1", 5) in idle.spans, "the GPU at rest")
        one.backend.advance(HOLDER_SECONDS + 60.0)
        assert idle.long_idle(one.backend.now(), HOLDER_SECONDS)
        await open_owners(one)
        await one.press("exclamation_mark")
        await one.until(lambda: list(rows(one)) == ["u17"], "the idle holder")
        assert rows(one)["u17"]["which"].startswith("phortx1/5 ≥31m")
        assert rows(one)["u17"]["idle"] == "1"
