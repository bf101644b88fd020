"""The file of the history: stored records are read back, and no file is ever lost."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing

import pytest
from msgspec.structs import replace

from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.errors import NotFoundError
from l2rtui.services.history import store
from l2rtui.services.history.store import HistoryError, HistoryFilter, HistoryStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "runs.db"


@pytest.fixture
def history(path):
    with HistoryStore(path) as opened:
        yield opened


def record(number=1, *, diff="", **fields):
    entry = HistoryEntry(f"e-s{number}", f"{number:032x}", "e", number, started=float(number), owner="ada")
    tree = SourceState("/repo", "c" * 40, "main", diff)
    facts = LaunchFacts('{"name":"e"}', (("e-learner-0", ("n1/0.0",)),), (("python", "3"),), "l2rtui launch", tree)
    return HistoryRecord(replace(entry, **fields), facts)


ENDING = Ending(
    RunOutcome.DONE,
    99.0,
    1e6,
    20.5,
    19.0,
    (("env_steps", (1.0, 2.0)), ("mean_return", (None, 20.5))),
    (("e-learner-0", ("first", "last")),),
    "/runs/e-s1",
    "nothing left of e-s1",
)


def test_a_record_comes_back_as_it_was_put(history, path):
    whole = replace(record(diff="-a\n+b\n", is_dirty=True, image="i@sha256:ab"), ending=ENDING)
    history.put([whole])
    with HistoryStore(path) as another:
        assert another.get(whole.entry.run_id) == whole
        assert another.entries() == [whole.entry]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_an_end_is_added_once_and_a_receipt_afterwards(history):
    history.put([record()])
    assert history.complete(record().entry.run_id, replace(ENDING, receipt=""))
    assert history.complete(record().entry.run_id, Ending(RunOutcome.DESTROYED, 200.0, receipt="nothing left"))

    (entry,) = history.entries()
    assert (entry.state, entry.ended, entry.env_steps, entry.best_return) == (RunOutcome.DONE, 99.0, 1e6, 20.5)
    assert history.get(entry.run_id).ending == replace(ENDING, receipt="nothing left")
    assert not history.complete("f" * 32, ENDING)


def test_lists_select_by_name_state_place_and_time(history):
    history.put([record(number, context="lab" if number > 2 else "", backend="local") for number in (1, 2, 3)])
    history.put([record(9, experiment="other", run="x", owner="bob", state=RunOutcome.FAILED)])

    def seeds(**selection):
        return [entry.seed for entry in history.entries(HistoryFilter(**selection))]

    assert seeds() == [9, 3, 2, 1]
    assert seeds(names=("e",)) == [3, 2, 1]
    assert seeds(names=("x", "e-s2")) == [9, 2]
    assert seeds(names=(record(2).entry.run_id,)) == [2]
    assert seeds(states=(RunOutcome.FAILED, RunOutcome.LOST)) == [9]
    assert seeds(owner="ada", backend="local", context="lab") == [3]
    assert seeds(since=2.5, limit=1) == [9]
    assert history.has([record(2).entry.run_id, "f" * 32]) == {record(2).entry.run_id}


def test_what_is_removed_is_gone_with_all_that_no_other_run_shares(history, path):
    history.put([record(1, diff="shared"), record(2, diff="shared")])
    with closing(sqlite3.connect(path)) as raw, raw:
        bodies = raw.execute("SELECT count(*) FROM bodies").fetchone()[0]
    assert history.remove([record(1).entry.run_id, "f" * 32]) == 1
    with pytest.raises(NotFoundError, match="has no run"):
        history.get(record(1).entry.run_id)
    assert history.get(record(2).entry.run_id).launch.source.diff == "shared"
    assert bodies == 2  # one diff and one launch, for both


def test_a_full_history_loses_the_oldest_texts_and_no_row(history, monkeypatch):
    history.put([record(number, diff=str(number) * 100, state=RunOutcome.DONE) for number in range(1, 6)])
    monkeypatch.setattr(store, "MAX_BYTES", 0)
    history.put([record(6)])
    assert len(history.entries()) == 6
    diffs = {number: history.get(f"{number:032x}").launch.source.diff for number in range(1, 6)}
    assert diffs[1] == ""
    assert diffs[5] == "5" * 100


def test_several_writers_at_once_lose_nothing(path):
    def write(start):
        for number in range(start, start + 10):
            with HistoryStore(path) as history:
                history.put([record(number)])

    # All of them start without a file: the first makes the tables, the others wait for it.
    threads = [threading.Thread(target=write, args=(start,)) for start in (1, 101, 201, 301)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with HistoryStore(path) as history:
        assert len(history.entries()) == 40


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 400, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_moved_aside(path, damage):
    path.parent.mkdir()
    path.write_bytes(damage)
    os.utime(path, (0, 0))  # an empty file that is new belongs to a process that makes the tables
    with HistoryStore(path) as history:
        assert "damaged" in history.problem
        history.put([record()])
    (aside,) = path.parent.glob("runs.db.damaged-*")
    assert aside.read_bytes() == damage
    with HistoryStore(path) as history:
        assert history.problem == ""
        assert len(history.entries()) == 1


def test_damage_that_shows_later_is_a_sentence_and_the_file_stays(path):
    with HistoryStore(path) as history:
        history.put([record(number, diff=str(number) * 5000) for number in range(50)])
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with HistoryStore(path) as history:
        with pytest.raises(HistoryError, match="damaged"):
            history.entries()
        history.put([record()])
        assert len(history.entries()) == 1
    (aside,) = (part for part in path.parent.glob("runs.db.damaged-*") if part.suffix not in ("-wal", "-shm"))
    assert aside.read_bytes() == bytes(data)


def test_a_file_of_a_newer_version_is_read_and_not_written(path):
    with HistoryStore(path) as history:
        history.put([record()])
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("ALTER TABLE runs ADD COLUMN mood TEXT")
        raw.execute("UPDATE runs SET state = 'a state of tomorrow'")
        raw.execute(f"PRAGMA user_version = {store.SCHEMA + 1}")
    with HistoryStore(path) as history:
        assert "newer" in history.problem
        assert [entry.state for entry in history.entries()] == [RunOutcome.LOST]
        with pytest.raises(HistoryError, match="read and not written"):
            history.put([record(2)])
    assert [part.name for part in path.parent.glob("*damaged*")] == []


def test_an_older_file_takes_the_steps_that_it_lacks(path, monkeypatch):
    with HistoryStore(path) as history:
        history.put([record()])
    monkeypatch.setattr(store, "STEPS", (*store.STEPS, "ALTER TABLE runs ADD COLUMN later TEXT"))
    monkeypatch.setattr(store, "SCHEMA", store.SCHEMA + 1)
    with HistoryStore(path) as history:
        assert history.problem == ""
        assert len(history.entries()) == 1
    with closing(sqlite3.connect(path)) as raw, raw:
        assert raw.execute("SELECT later FROM runs").fetchall() == [(None,)]


def test_a_folder_that_cannot_be_written_is_a_sentence(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(HistoryError, match=r"The history .*runs\.db cannot be opened"):
        HistoryStore(path)


def test_a_write_that_fails_leaves_the_records_as_they_were(history, path):
    history.put([record()])
    with closing(sqlite3.connect(path, isolation_level=None)) as other, other:
        other.execute("CREATE TRIGGER full BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'disk is full'); END")
        with pytest.raises(HistoryError, match="disk is full"):
            history.complete(record().entry.run_id, ENDING)
        other.execute("DROP TRIGGER full")
    assert history.get(record().entry.run_id) == record()
    assert history.complete(record().entry.run_id, ENDING)
