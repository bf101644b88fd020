"""history and diff on the command line: lists, one record, differences, CSV, and runs that cannot be repeated."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.cli.main import main
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.history.absence import note_departure
from l2rtui.services.history.launch_facts import spec_text
from l2rtui.services.history.store import HistoryStore, history_path

FIELDS = ["run", "run_id", "experiment", "seed", "state", "started", "ended", "env_steps", "best_return"]
FIELDS += ["image", "revision", "dirty", "backend", "context", "namespace"]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def spec(seed, rate):
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",), replicas=2))
    train = json.dumps({"algorithm": "ppo", "ppo": {"lr": rate}})
    return RunSpec(Kind.LEARNER_WORKERS, "race", f"race-s{seed}", sets, seed=seed, train=train)


def record(seed, rate=0.1, *, diff="", state=RunOutcome.DONE, **fields):
    entry = HistoryEntry(
        *(
            f"race-s{seed}",
            f"{seed:08x}{'a' * 24}",
            "race",
            seed,
            state,
            1.7e9 + seed,
            1.7e9 + 100,
            1e5,
            10.0 * seed,
        ),
        revision="c" * 40,
        is_dirty=bool(diff),
        owner="ada",
        backend="demo",
    )
    tree = SourceState("/repo", "c" * 40, "main", diff)
    launch = LaunchFacts(
        spec_text(spec(seed, rate)), (("race-w-0", ("n/0.1",)),), (("l2rtui", "1"),), "l2rtui", tree
    )
    ending = Ending(state, 1.7e9 + 100, 1e5, 10.0 * seed, logs=(("race-w-0", ("the \x1b[31mlast line",)),))
    return HistoryRecord(replace(entry, **fields), launch, ending)


@pytest.fixture
def history():
    with HistoryStore() as store:
        store.put([record(1), record(2, 0.2, diff="-a\n+b\n"), record(3, state=RunOutcome.FAILED, owner="bob")])
        yield store


def run(capsys, *words):
    code = main([*words, "--backend", "demo"])
    done = capsys.readouterr()
    return code, done.out, done.err


def rows(capsys, *words):
    code, out, _ = run(capsys, "history", *words, "-o", "json")
    assert code == 0
    return json.loads(out)


def test_the_list_has_exactly_the_agreed_fields(history, capsys):
    listed = rows(capsys)
    assert [row["run"] for row in listed] == ["race-s3", "race-s2", "race-s1"]
    assert all(list(row) == FIELDS for row in listed)
    assert (listed[1]["dirty"], listed[1]["started"], listed[1]["env_steps"]) == (
        True,
        "2023-11-14T22:13:22.000Z",
        100_000,
    )


def test_the_list_is_narrowed_by_names_states_owners_and_filters(history, capsys):
    def seeds(*words):
        return [row["seed"] for row in rows(capsys, *words)]

    assert seeds("race-s1", "race-s3") == [3, 1]
    assert seeds("race") == [3, 2, 1]
    assert seeds("*-s2") == [2]
    assert seeds("--state", "failed") == [3]
    assert seeds("--owner", "bob") == [3]
    assert seeds("--filter", "best>15 !failed") == [2]
    assert seeds("--last", "1") == [3]
    assert seeds("00000002") == [2]


def test_csv_is_read_as_it_was_written(history, capsys):
    history.put([record(4, run="=cmd()")])
    code, out, _ = run(capsys, "history", "-o", "csv")
    table = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert [row["seed"] for row in table] == ["4", "3", "2", "1"]
    assert list(table[0]) == FIELDS
    assert table[0]["run"] == "'=cmd()"  # not a formula for a spreadsheet


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["history", "rase-s1"], 1, "The history has no run rase-s1"),
        (["history", "--state", "happy"], 2, "'happy' is not a state of the history"),
        (["history", "show", "race"], 2, "race is an experiment of 3 runs: race-s3"),
        (["diff", "race-s1", "nothing"], 1, "The history has no run nothing"),
        (["history", "rm", "race-s1"], 2, "Add --yes"),
        (["history", "export"], 2, "An export needs its tracker"),
        (["history", "--to", "wandb"], 2, "An export needs its tracker"),
        (["history", "export", "rase", "--to", "wandb"], 1, "The history has no run rase"),
    ],
)
def test_mistakes_are_sentences(history, capsys, words, code, sentence):
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    assert sentence in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["logs", "race-s1/learner"],
            "race-s1 is in the history, with its last log lines: `l2rtui --backend demo history show race-s1`",
        ),
        (["pods", "race-s1"], "history show race-s1`"),
        (["describe", "race-s2"], "history show race-s2`"),
        (
            ["kill", "experiment/race", "--yes"],
            "3 runs of race are in the history: `l2rtui --backend demo history race`",
        ),
    ],
)
def test_a_verb_for_runs_names_the_history_if_only_that_has_the_run(history, capsys, words, sentence):
    found, _, err = run(capsys, *words)
    assert found == 1
    assert sentence in err


def test_a_history_without_runs_says_so(capsys):
    assert run(capsys, "history")[2].strip() == "The history is empty."


def test_one_record_is_printed_in_full_and_harmless(history, capsys):
    code, out, _ = run(capsys, "history", "show", "race-s2")
    assert code == 0
    assert "\x1b" not in out
    for part in ("race-w-0 n/0.1", "last line", "  +b", "lr: 0.2", "/repo at cccc"):
        assert part in out
    document = json.loads(run(capsys, "history", "show", "00000002", "-o", "json")[1])
    assert list(document)[: len(FIELDS)] == FIELDS
    assert document["spec"]["train"]["ppo"] == {"lr": 0.2}
    assert document["source"]["diff"] == "-a\n+b\n"


def test_differences_are_named_part_by_part(history, capsys):
    code, out, _ = run(capsys, "diff", "race-s1", "race-s2")
    assert code == 0
    for line in ("@@ spec @@", "-train.ppo.lr: 0.1", "+train.ppo.lr: 0.2", "-seed: 1", "@@ outcome @@", "++b"):
        assert line in out.splitlines()
    document = json.loads(run(capsys, "diff", "race-s1", "race-s2", "-o", "json")[1])
    assert {"part": "spec", "field": "train.ppo.lr", "first": 0.1, "second": 0.2} in document["differences"]
    assert document["changes"]
    assert run(capsys, "diff", "race-s1", "race-s1")[1:] == (
        "",
        "They do not differ in spec, code, versions and outcome.\n",
    )


def test_options_of_a_place_choose_records_and_each_row_says_where_it_is_from(history, capsys):
    away = {"backend": "kubernetes", "context": "lab", "namespace": "team"}
    history.put(
        [record(4, **away), record(5, **away | {"context": "west"}), record(6, **away | {"namespace": "x"})]
    )

    def seeds(*words):
        assert main(["history", "-o", "json", *words]) == 0
        return [row["seed"] for row in json.loads(capsys.readouterr().out)]

    assert seeds("--backend", "demo") == [3, 2, 1]
    assert seeds("--backend", "local") == []
    main(["history", "--backend", "demo"])
    table = capsys.readouterr().out
    assert "WHERE" in table
    assert "demo" in table
    assert "lab" not in table
    code, _, err = run(capsys, "diff", "race-s1", "race-s4")
    assert (code, err) == (1, "l2rtui: The history has no run race-s4. See `l2rtui --backend demo history`.\n")
    code, _, err = run(capsys, "history", "show", "race-s4")
    assert code == 1


def test_of_several_records_of_a_name_the_one_that_is_named_by_its_id_is_removed(history, capsys):
    again = replace(record(1).entry, run_id="e" * 32, started=1.8e9, context="lab")
    history.put([replace(record(1), entry=again)])
    code, _, err = run(capsys, "history", "rm", "race-s1", "--yes")
    assert code == 2
    assert "The history has 2 records of race-s1: eeeeeeee (done, 2027-01-15 08:00, demo/lab), 00000001" in err
    assert "Remove them by their ids." in err
    assert len(rows(capsys)) == 4
    assert run(capsys, "history", "rm", "eeeeeeee", "--yes")[0] == 0
    assert [row["run_id"][:8] for row in rows(capsys, "race-s1")] == ["00000001"]


def test_the_exact_name_of_a_run_chooses_no_others_of_an_experiment_of_that_name(history, capsys):
    history.put([record(4, run="race")])
    assert [row["run"] for row in rows(capsys, "race")] == ["race"]
    assert len(rows(capsys, "experiment/race")) == len(rows(capsys, "race*")) == 4


def test_records_are_removed_by_name(history, capsys):
    assert run(capsys, "history", "rm", "race-s1", "race-s2", "--yes")[0] == 0
    assert [row["run"] for row in rows(capsys)] == ["race-s3"]


def test_a_newer_history_is_listed_with_a_sentence(history, capsys):
    history.close()
    with closing(sqlite3.connect(history_path())) as raw, raw:
        raw.execute("PRAGMA user_version = 99")
    code, out, err = run(capsys, "history", "-o", "name")
    assert (code, out.split()) == (0, ["race-s3", "race-s2", "race-s1"])
    assert "newer l2rtui" in err


def test_a_run_of_the_past_is_launched_as_it_was(history, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "launch", "--like", "race-s2", "--yes")
    assert code == 3
    assert "its source tree /repo no longer exists" in err
    code, out, err = run(capsys, "launch", "--as", "race-s2", "--name", "again", "--inexact", "--yes", "-o", "json")
    assert code == 0, err
    assert (json.loads(out)["run"], json.loads(out)["seed"]) == ("again", 2)


@pytest.mark.parametrize("words", [["--set", "seed=3"], ["--seeds", "0-2"], ["-f", "x.yaml", "--like", "race-s1"]])
def test_a_run_of_the_past_takes_no_changes(history, capsys, words):
    code, _, err = run(capsys, "launch", *(["--as", "race-s1"] if "-f" not in words else []), *words, "--yes")
    assert code == 2
    assert "cannot be combined" in err


def test_a_launch_without_a_spec_names_both_ways(capsys):
    code, _, err = run(capsys, "launch", "--yes")
    assert code == 2
    assert "`l2rtui launch -f SPEC`, -t NAME for a template, or --like RUN" in err


def test_an_experiment_becomes_a_page_after_its_runs_are_gone(history, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "report", "race")
    assert (code, out) == (0, "")
    assert "Wrote race.html." in err
    page = (tmp_path / "race.html").read_text()
    for part in ("race-s1", "race-s3", "best return", "lr: 0.1", "train.ppo.lr", "c" * 40, "the last line"):
        assert part in page, part
    assert "\x1b" not in page
    assert run(capsys, "report", "race-s2", "--out", "-")[1].startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nothing"], 1, "Neither the history nor what runs now has nothing"),
        (["../race"], 2, "'../race' is not a file name"),
        (["race", "--out", "nowhere/page.html"], 2, "nowhere/page.html cannot be written"),
    ],
)
def test_a_page_that_cannot_be_made_is_a_sentence(history, capsys, words, code, sentence):
    exit_code, out, err = run(capsys, "report", *words)
    assert (exit_code, out) == (code, "")
    assert sentence in err


def test_what_happened_since_the_app_was_open_is_listed(history, capsys):
    assert "The app was not open here yet." in run(capsys, "history", "--since-left")[2]
    note_departure(FakeBackend(), EMPTY_SNAPSHOT, 1.7e9 + 50)
    history.put([record(4, started=1.7e9 + 60, ended=None, state=RunOutcome.RUNNING)])
    history.put([record(5, ended=1.7e9 + 40)])
    history.put([record(6, ended=None, state=RunOutcome.RUNNING)])
    assert {row["seed"] for row in rows(capsys, "--since-left")} == {1, 2, 3, 4}
    assert [row["seed"] for row in rows(capsys, "--since-left", "--last", "1")] == [4]
    assert [row["seed"] for row in rows(capsys, "race-s1", "race-s5", "--since-left")] == [1]


def test_a_run_of_the_past_takes_settings_by_short_names(history, capsys):
    code, _, err = run(
        capsys, "launch", "--like", "race-s2", "--with", "image=other:1", "--inexact", "--yes", "--name", "b"
    )
    assert code == 0, err
    code, _, err = run(capsys, "launch", "--like", "race-s2", "--with", "gama", "--inexact", "--yes")
    assert code == 2
    assert "write it as field.field=value" in err
    code, _, err = run(capsys, "launch", "-t", "cartpole-ppo", "--with", "gamma=0.9", "--yes")
    assert code == 2
    assert "Name it with --like" in err
