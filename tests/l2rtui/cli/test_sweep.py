"""``sweep``: the results of trials from the history and of existing runs, as a table, CSV and JSON."""

from __future__ import annotations

import csv
import json

import pytest
from msgspec.structs import replace

from l2rtui.cli.main import main
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome
from l2rtui.domain.sweeps import trial_of
from l2rtui.domain.workload import Kind, RunSpec
from l2rtui.services.history.launch_facts import spec_text
from l2rtui.services.history.store import HistoryStore

SPEC = RunSpec(Kind.LEARNER_WORKERS, "race", "race", ())
SWEEP = """\
kind: learner-workers
name: hunt
sweep: {train.sac.actor_lr: [1e-4, 3e-4], seeds: 0-1}
"""


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def record(number, seed, final, *, values=None, started=1.7e9):
    trial = trial_of(number, values or {"train.ppo.lr": 10.0**-number, "train.ppo.epochs": 10})
    spec = replace(SPEC, name=f"race-t{number}-s{seed}", seed=seed, trial=trial)
    entry = HistoryEntry(spec.name, f"{number}{seed}{started:.0f}".ljust(32, "a"), "race", seed, started=started)
    ending = Ending(RunOutcome.DONE, started + 60, 1e4, final + 5, final)
    figures = {"ended": started + 60, "env_steps": 1e4, "best_return": final + 5, "final_return": final}
    entry = replace(entry, state=RunOutcome.DONE, **figures)
    return HistoryRecord(entry, LaunchFacts(spec_text(spec)), ending)


@pytest.fixture
def sweep():
    with HistoryStore() as store:
        store.put([record(number, seed, 50.0 * number + seed) for number in range(3) for seed in range(2)])


def run(capsys, *words):
    code = main(["--backend", "demo", *words])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.usefixtures("sweep")
def test_json_has_a_result_for_each_trial_the_best_first(capsys):
    code, out, _ = run(capsys, "sweep", "race", "-o", "json")
    best, *others = json.loads(out)
    assert code == 0
    assert [result["trial"] for result in (best, *others)] == [2, 1, 0]
    assert best["values"] == {"train.ppo.lr": 0.01, "train.ppo.epochs": 10}
    assert (best["mean_return"], best["best_return"], best["env_steps"]) == (100.5, 106.0, 20000)
    assert (best["runs"], best["states"]) == (2, {"done": 2})
    assert best["low"] <= best["mean_return"] <= best["high"]


@pytest.mark.usefixtures("sweep")
def test_a_table_and_csv_have_a_column_for_each_field(capsys):
    _, table, _ = run(capsys, "sweep", "race")
    assert table.split("\n")[0].split() == ["TRIAL", "LR", "EPOCHS", "MEAN", "LOW", "HIGH", "BEST", "STEPS", "RUNS"]
    assert table.split("\n")[1].startswith("t2     0.01  10")
    _, rows, _ = run(capsys, "sweep", "race", "-o", "csv")
    best = next(csv.DictReader(rows.splitlines()))
    assert (best["trial"], best["train.ppo.lr"], best["mean_return"], best["states"]) == (
        "2",
        "0.01",
        "100.5",
        "2 done",
    )


def test_fields_of_one_last_word_are_told_apart_and_lists_are_json(capsys):
    values = {"train.actor.lr": 1, "train.critic.lr": 2, "train.hidden": [64, 64]}
    with HistoryStore() as store:
        store.put([record(0, 0, 1.0, values=values)])
    _, table, _ = run(capsys, "sweep", "race")
    assert table.split()[1:4] == ["TRAIN.ACTOR.LR", "TRAIN.CRITIC.LR", "HIDDEN"]
    assert "[64, 64]" in table


@pytest.mark.usefixtures("sweep")
def test_the_newest_launch_of_a_run_counts(capsys):
    with HistoryStore() as store:
        store.put([record(0, 0, 1e6, started=1.8e9)])
    _, out, _ = run(capsys, "sweep", "race", "-o", "json")
    best = json.loads(out)[0]
    assert (best["trial"], best["mean_return"]) == (0, (1e6 + 1) / 2)


def test_what_is_no_sweep_gets_a_sentence(capsys):
    code, _, err = run(capsys, "sweep", "racing-sac")
    assert (code, "racing-sac is no sweep" in err) == (2, True)
    code, _, err = run(capsys, "sweep", "nothing")
    assert (code, "There is no experiment nothing" in err) == (1, True)


def test_a_launch_of_a_sweep_is_a_list_with_trials(capsys, tmp_path):
    (tmp_path / "hunt.yaml").write_text(SWEEP)
    code, out, _ = run(capsys, "launch", "-f", str(tmp_path / "hunt.yaml"), "--yes", "-o", "json")
    documents = json.loads(out)
    assert code == 0
    assert [document["run"] for document in documents] == ["hunt-t0-s0", "hunt-t0-s1", "hunt-t1-s0", "hunt-t1-s1"]
    assert documents[3]["trial"] == {"number": 1, "values": {"train.sac.actor_lr": 3e-4}}


def test_other_runs_have_no_trial(capsys):
    _, out, _ = run(capsys, "runs", "-o", "json")
    assert {document["trial"] for document in json.loads(out)} == {None}
