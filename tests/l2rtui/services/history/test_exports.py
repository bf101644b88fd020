"""Export to other trackers: the form of a record there, and MLflow and Weights & Biases if installed."""

from __future__ import annotations

import json
import sys

import pytest

from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome, SourceState
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.errors import BackendError, UsageError
from l2rtui.services.history.exports import Tracker, export_runs, tracked_run
from l2rtui.services.history.launch_facts import spec_text
from tests.packages import needed
from tests.runtime.conftest import eventually


def record(seed=1, *, state=RunOutcome.DONE, ending=True):
    train = json.dumps({"algorithm": "ppo", "ppo": {"lr": 0.1}})
    sets = (SetSpec("learner", Role.LEARNER, ("true",)), SetSpec("w", Role.WORKER, ("true",)))
    spec = RunSpec(
        *(Kind.LEARNER_WORKERS, "race", f"race-s{seed}", sets),
        seed=seed,
        train=train,
    )
    ended = 1.7e9 + 90 if ending else None
    entry = HistoryEntry(
        *(spec.name, f"{seed:032x}", "race", seed, state, 1.7e9, ended, 300.0, 9.5, 8.0),
        revision="c" * 40,
        is_dirty=True,
        owner="ada",
    )
    facts = LaunchFacts(spec_text(spec), versions=(("torch", "2"),), source=SourceState(diff="-a\n+b\n"))
    curve = (
        ("env_steps", (100.0, 200.0, 200.0, 300.0)),
        ("time", (1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3, 1.7e9 + 4)),
        ("return", (1.0, None, 3.0, 8.0)),
        ("loss", (0.5, 0.4, 0.3, 0.2)),
    )
    end = Ending(state, 1.7e9 + 90, curve=curve, logs=(("race/w/0", ("the last line",)),))
    return HistoryRecord(entry, facts, end if ending else None)


def test_a_record_becomes_parameters_tags_points_and_texts():
    run = tracked_run(record())
    assert (run.name, run.group, run.parameters["train.ppo.lr"]) == ("race-s1", "race", 0.1)
    assert run.tags["l2rtui.run_id"] == f"{1:032x}"
    assert (run.tags["l2rtui.dirty"], run.tags["l2rtui.version.torch"]) == ("true", "2")
    # A step occurs once, and missing measurements are left out.
    assert [(point.step, dict(point.figures)) for point in run.points] == [
        (100, {"return": 1.0, "loss": 0.5}),
        (200, {"loss": 0.4}),
        (300, {"return": 8.0, "loss": 0.2}),
    ]
    assert run.summary == {"env_steps": 300.0, "best_return": 9.5, "final_return": 8.0}
    assert run.texts["changes.diff"] == "-a\n+b\n"
    assert run.texts["logs/race_w_0.txt"] == "the last line\n"
    assert tracked_run(record(ending=False)).points == ()


@pytest.mark.parametrize("tracker", Tracker)
def test_a_tracker_that_is_not_installed_is_a_sentence(monkeypatch, tracker):
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(UsageError, match=f"{tracker} is not installed"):
        export_runs(tracker, [record()])


@pytest.mark.packages
@pytest.mark.filterwarnings("ignore")  # from its own libraries
def test_mlflow_has_each_run_once_with_its_curve(monkeypatch, tmp_path):
    mlflow = needed("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    runs = [record(1), record(2, state=RunOutcome.FAILED), record(3, state=RunOutcome.RUNNING, ending=False)]
    assert export_runs(Tracker.MLFLOW, runs)[1:] == (["race-s1", "race-s2", "race-s3"], [])
    # The third one is written again, since it had no end.
    assert export_runs(Tracker.MLFLOW, runs)[1:] == (["race-s3"], ["race-s1", "race-s2"])

    client = mlflow.MlflowClient()
    copies = client.search_runs(
        [client.get_experiment_by_name("race").experiment_id], order_by=["tags.`l2rtui.seed`"]
    )
    assert [copy.info.status for copy in copies] == ["FINISHED", "FAILED", "RUNNING"]
    first = copies[0]
    assert (first.info.run_name, first.data.params["train.ppo.lr"]) == ("race-s1", "0.1")
    assert (first.info.start_time, first.info.end_time) == (1_700_000_000_000, 1_700_000_090_000)
    points = client.get_metric_history(first.info.run_id, "return")
    assert [(point.step, point.value) for point in points] == [(100, 1.0), (300, 8.0)]
    files = {file.path for file in client.list_artifacts(first.info.run_id)}
    assert files == {"spec.json", "changes.diff", "logs"}


@pytest.mark.packages
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_writes_a_run_to_synchronise(monkeypatch, tmp_path):
    wandb = needed("wandb")
    wandb.teardown()  # it reads its variables once in each process
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    assert export_runs(Tracker.WANDB, [record()], "lab") == ("project lab", ["race-s1"], [])
    (folder,) = (tmp_path / "wandb").glob(f"offline-run-*-{1:032x}")
    assert (folder / "files" / "logs" / "race_w_0.txt").read_text() == "the last line\n"
    (log,) = folder.glob("*.wandb")
    eventually(lambda: b"train.ppo.lr" in log.read_bytes(), "the run is written")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Install an MLflow that always fails."""
    (tmp_path / "mlflow.py").write_text(
        "from types import SimpleNamespace as entities\n"
        "get_tracking_uri = str\n"
        "def MlflowClient():\n    raise ConnectionError('no route to ada:pw@host\\x1b[31m\\nmore')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    yield
    sys.modules.pop("mlflow", None)


@pytest.mark.usefixtures("broken")
def test_a_tracker_that_fails_is_a_sentence():
    with pytest.raises(BackendError, match="mlflow did not take the runs: no route to") as caught:
        export_runs(Tracker.MLFLOW, [record()])
    assert "\x1b" not in str(caught.value)
    assert "more" not in caught.value.message
