"""Since you left: what happened between two visits to the app, as a notice that a key takes away and as a list."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import user_name
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, RunOutcome
from l2rtui.services.history.absence import departure, note_departure
from l2rtui.services.history.store import HistoryStore


def put(run, started, ended=None, state=RunOutcome.RUNNING, **fields):
    entry = HistoryEntry(
        run, run, "race", 0, state, started, ended, owner=user_name(), **{"backend": "demo", **fields}
    )
    ending = Ending(state, ended) if ended is not None else None
    with HistoryStore() as store:
        store.put([HistoryRecord(entry, ending=ending)])


def notices(one):
    return [text for text in one.says() if ":since" in text]


async def list_since(one):
    await one.press("colon", *"since", "enter")
    await one.until(lambda: one.top == "DetailScreen", "the list")
    return one.words()


async def test_the_first_visit_has_nothing_to_tell_and_is_noted(desk):
    put("old", 1.0, 2.0, RunOutcome.FAILED)
    async with desk(has_toasts=True) as one:
        await one.until(lambda: departure(one.backend), "the note")
        assert "The app was not open here before." in await list_since(one)
        assert not notices(one)


@pytest.mark.slow
async def test_a_visit_says_what_happened_since_the_one_before(desk):
    async with desk() as one:
        left = one.backend.now()
    last = departure(one.backend)
    assert last is not None
    assert last.left >= left
    later = FakeBackend(owner=user_name())
    later.advance(last.left - later.now() + 7200.0)
    put("mine-\x1b[2Jfailed", 1.0, last.left + 60.0, RunOutcome.FAILED)
    put("mine-done", last.left + 1.0, last.left + 70.0, RunOutcome.DONE)
    put("mine-new", last.left + 80.0)
    put("mine-before", 1.0, last.left - 1.0, RunOutcome.DONE)
    put("mine-elsewhere", last.left + 1.0, context="other")
    async with desk(backend=later, has_toasts=True) as one:
        await one.until(lambda: notices(one), "the notice")
        assert "1 failed, 1 done, 1 started." in notices(one)[0]
        await one.press("slash", *"race", "enter")
        text = one.cluster.filters.filter_text()
        await one.press("escape")
        assert not notices(one)
        assert one.cluster.filters.filter_text() == text  # the filter stays for the next press
        shown = await list_since(one)
        lines = [line for line in shown.splitlines() if "mine-" in line]
        assert [word in line for word, line in zip(("failed", "done", "started"), lines, strict=True)] == [True] * 3
        assert "2h00m ago" in shown
        assert "\x1b" not in shown
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")
    # And that visit was noted: nothing is told twice.
    again = FakeBackend(owner=user_name())
    again.advance(later.now() - again.now() + 60.0)
    async with desk(backend=again, has_toasts=True) as one:
        assert "No run of yours started or ended." in await list_since(one)
        assert not notices(one)


@pytest.mark.slow
async def test_a_pod_that_is_evicted_is_told_once(desk):
    backend = FakeBackend(owner=user_name())
    snapshot = await backend.snapshot()
    note_departure(backend, snapshot, backend.now())
    mine = next(pod for pod in snapshot.pods.values() if pod.run and pod.owner == user_name())
    backend.put_pod(replace(mine, reason="Evicted", message="its node had too little left"))
    async with desk(backend=backend, has_toasts=True) as one:
        await one.until(lambda: notices(one), "the notice")
        assert "1 evicted" in notices(one)[0]
        assert mine.name in await list_since(one)
    last = departure(backend)
    assert last is not None
    assert last.evicted == {mine.uid}


@pytest.mark.slow
async def test_a_note_that_cannot_be_read_counts_as_none(desk, tmp_path):
    folder = tmp_path / "state" / "l2rtui" / "left"
    async with desk():
        pass
    (path,) = folder.iterdir()
    for text in ("", "[]", '{"left": "x"}', '{"left": 1e999}', "\xff"):
        path.write_text(text)
        assert departure(FakeBackend()) is None
    path.unlink()
    path.mkdir()  # and one that cannot be written disturbs nobody
    async with desk() as one:
        assert "The app was not open here before." in await list_since(one)
