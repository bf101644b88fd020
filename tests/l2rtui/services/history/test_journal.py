"""The journal: every change leaves a line, and a journal that cannot be written stops nothing."""

from __future__ import annotations

import pytest

from l2rtui.services.history import journal


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l2rtui"


def test_entries_come_back_in_order(state):
    journal.record("launch", "r", "done", pods=["r-w-0"])
    journal.record("destroy", "r", "done")

    found = list(journal.entries())

    assert [(one["verb"], one["target"], one["outcome"]) for one in found] == [
        ("launch", "r", "done"),
        ("destroy", "r", "done"),
    ]
    assert found[0]["pods"] == ["r-w-0"]
    assert (state / "journal.jsonl").stat().st_mode & 0o777 == 0o600


def test_bytes_that_are_no_text_stop_nothing(state):
    journal.record("launch", "r", "failed", error="/no/such/\udcff")
    assert [one["error"] for one in journal.entries()] == ["/no/such/\udcff"]


def test_a_damaged_line_is_passed_over(state):
    journal.record("launch", "r", "done")
    with (state / "journal.jsonl").open("a") as file:
        file.write("{torn\n")
    journal.record("destroy", "r", "done")

    assert [one["verb"] for one in journal.entries()] == ["launch", "destroy"]


def test_it_does_not_grow_for_ever(state, monkeypatch):
    monkeypatch.setattr(journal, "_MAX_BYTES", 500)
    for number in range(20):
        journal.record("launch", f"r{number}", "done")

    kept = [one["target"] for one in journal.entries()]
    assert kept[-1] == "r19"
    assert sum(path.stat().st_size for path in state.iterdir()) < 1500


def test_an_unwritable_journal_stops_nothing(state):
    state.write_text("a file where the folder should be")

    journal.record("launch", "r", "done")

    assert list(journal.entries()) == []


def test_the_results_of_changes_are_words_and_an_entry_without_details_has_its_outcome(state):
    journal.record("launch", "r", "done", pods=["r-learner-0", "r-w-0"])
    journal.record("scale", "r/w", "asked", replicas=1)
    journal.record("kill", "r-w-0", "asked")
    journal.record("signal", "r-w-0", "sent", signal="SIGUSR1")
    journal.record("destroy", "r", "left", left=["Pod r-w-0"], objects=3)
    journal.record("destroy", "r", "left")
    journal.record("sweep", "r", "stopped")
    assert [journal.result_of(entry) for entry in journal.entries()] == [
        "launched 2 pods",
        "set to 1 replica",
        "deletion requested",
        "SIGUSR1 sent",
        "destroyed, 1 object left",
        "left",
        "stopped",
    ]
