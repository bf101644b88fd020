"""History in the app: runs of the past, one record, how two differ, and a launch as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.history.launch_facts import spec_text
from l2rtui.services.history.store import HistoryStore, history_path
from l2rtui.ui.overviews import history
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.virtual_table import VirtualTable


def record(seed, *, state=RunOutcome.DONE, best=1.0, root=""):
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",), replicas=2))
    spec = RunSpec(Kind.LEARNER_WORKERS, "past", f"past-s{seed}", sets, seed=seed)
    entry = HistoryEntry(
        *(
            spec.name,
            f"{seed:08x}{'a' * 24}",
            "past",
            seed,
            state,
            1.7e9 + 3600 * seed,
            1.7e9 + 9e3,
            1e5,
            best,
            best,
        ),
        owner="ada",
        backend="demo",
    )
    tree = SourceState(root, "c" * 40, "main", "-a\n+b\n") if root else SourceState()
    ending = Ending(state, 1.7e9 + 9e3, logs=(("past-w-0", ("the \x1b[31mlast line",)),))
    return HistoryRecord(entry, LaunchFacts(spec_text(spec), source=tree), ending)


@pytest.fixture
def past():
    with HistoryStore() as store:
        store.put([record(1), record(2, best=250.0), record(3, state=RunOutcome.FAILED, best=30.0, root="/gone")])


def runs(one):
    model = one.app.screen.query_one(VirtualTable).model
    return [model.rows[key].cells[0].text for key in model.displayed]


async def open_history(one, *keys):
    await one.press(*(keys or ("H",)))
    await one.until(lambda: one.top == "HistoryScreen" and runs(one), "the history")


@pytest.mark.usefixtures("past")
async def test_runs_of_the_past_are_listed_filtered_and_sorted(desk):
    async with desk() as one:
        await open_history(one)
        assert runs(one) == ["past-s3", "past-s2", "past-s1"]
        assert "2023-11-14 23:13" in one.words()
        await one.press("exclamation_mark")
        await one.until(lambda: runs(one) == ["past-s3"], "what failed")
        await one.press("exclamation_mark", "slash", *"best>200", "enter")
        await one.until(lambda: runs(one) == ["past-s2"], "the good one")
        await one.press("escape", "escape")
        await one.until(lambda: one.top == "ClusterScreen")


@pytest.mark.slow
@pytest.mark.usefixtures("past")
async def test_the_command_opens_it_with_a_filter(desk):
    async with desk() as one:
        await open_history(one, "colon", *"history state=failed", "enter")
        assert runs(one) == ["past-s3"]


@pytest.mark.usefixtures("past")
async def test_a_record_is_shown_in_full_and_harmless(desk):
    async with desk() as one:
        await open_history(one)
        assert "l2rtui --backend demo history show 00000003" in one.words()
        await one.press("enter")
        await one.until(lambda: one.top == "DetailScreen" and "last line" in one.words(), "the record")
        for part in (
            "state:        failed",
            "owner:        ada",
            "env steps:    100,000",
            "/gone at cccc",
            "spec:",
        ):
            assert part in one.words()
        assert "\x1b" not in one.words()
        await one.press("escape")
        await one.until(lambda: one.top == "HistoryScreen")


@pytest.mark.usefixtures("past")
async def test_two_marked_runs_are_compared_from_then_to_now(desk):
    async with desk() as one:
        await open_history(one)
        await one.press("d")
        await one.until(lambda: any("Mark two runs" in text for text in one.says()))
        await one.press("space", "space")
        await one.until(lambda: "l2rtui --backend demo diff 00000002 00000003" in one.words(), "the command")
        await one.press("d")
        await one.until(lambda: one.top == "DetailScreen" and "@@ outcome @@" in one.words(), "the difference")
        for line in ("-state: done", "+state: failed", "-best return: 250", "+best return: 30"):
            assert line in one.words()


@pytest.mark.usefixtures("past")
async def test_a_run_is_planned_as_it_was_and_what_is_gone_refuses_it(desk):
    async with desk() as one:
        await open_history(one)
        await one.press("R")
        await one.until(lambda: one.top == "ReviewScreen", "the review")
        await one.until(lambda: "its source tree /gone no longer exists" in one.words(), "the refusal")
        assert "launch --like 00000003" in one.words()


@pytest.mark.usefixtures("past")
async def test_nothing_is_launched_readonly(desk):
    async with desk(readonly=True) as one:
        await open_history(one)
        await one.press("R")
        await one.until(lambda: any("repeat" in text for text in one.says()), "the reason")
        assert one.top == "HistoryScreen"


async def test_a_record_that_is_written_meanwhile_appears(desk):
    async with desk() as one:
        await one.press("H")
        await one.until(lambda: "No run has been recorded yet" in one.words(), "the empty history")
        with HistoryStore() as store:
            store.put([record(7)])
        await one.until(lambda: runs(one) == ["past-s7"], "the new record")


async def test_a_history_that_cannot_be_read_is_a_sentence(desk, tmp_path):
    folder = tmp_path / "state" / "l2rtui"
    folder.mkdir(parents=True)
    (folder / "history").write_text("a file where a folder belongs")
    async with desk() as one:
        await one.press("H")
        await one.until(lambda: "cannot be opened" in one.words(), "the reason")


async def test_the_curve_of_a_past_run_is_drawn_and_its_trend_shown(desk):
    with HistoryStore() as store:
        old = record(1)
        columns = (
            ("env_steps", tuple(1e3 * step for step in range(1, 40))),
            ("time", tuple(1.7e9 + step for step in range(1, 40))),
            ("return", tuple(float(step) for step in range(1, 40))),
        )
        store.put([replace(old, ending=replace(old.ending, curve=columns)), record(2)])
    async with desk() as one:
        await open_history(one, "H")
        charts = one.app.screen.query_one(ChartView)
        await one.press("down")
        await one.until(lambda: [group.name for group in charts.groups] == ["past-s1"], "the curve")
        assert charts.groups[0].seeds[0].curve.newest("return") == 39.0
        assert "▁" in one.words()
        assert "█" in one.words()
        await one.press("space", "up", "space")
        await one.until(lambda: len(charts.groups) == 2, "both marked runs")


def test_a_log_of_the_history_that_is_removed_between_two_looks_is_no_error(monkeypatch, past):
    before = history.file_state()
    monkeypatch.setattr(Path, "exists", lambda _: True)
    history_path().with_name("runs.db-wal").unlink(missing_ok=True)
    history_path().unlink()
    assert before
    assert history.file_state() == []
