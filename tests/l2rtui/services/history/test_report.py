"""Reports from the history, from running runs, and from both: curves, newest launches, backends that do not
answer.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings
from l2rtui.domain.curves.chart import RETURN
from l2rtui.domain.curves.run_curve import Axis, CurveRecord, RunCurve
from l2rtui.domain.history import Ending, HistoryEntry, HistoryRecord, LaunchFacts, RunOutcome
from l2rtui.errors import BackendError, NotFoundError
from l2rtui.services.history.endings import curve_columns, final_figures
from l2rtui.services.history.report import experiment_report, stored_curve
from l2rtui.services.history.store import HistoryStore


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def backend():
    return make_backend("demo", Settings())


def curve(*returns):
    result = RunCurve()
    for number, value in enumerate(returns, 1):
        result.add(CurveRecord(10.0 * number, 100.0 * number, number, {} if value is None else {RETURN: value}))
    return result


def record(seed, launch=0, *returns, experiment="old", spec='{"lr": 0.1}'):
    steps, best, final = final_figures(curve(*returns))
    entry = HistoryEntry(
        *(f"old-s{seed}", f"{seed:016x}{launch:016x}", experiment, seed, RunOutcome.DESTROYED, 1e9 + launch, 2e9),
        *(steps, best, final),
    )
    ending = Ending(RunOutcome.DESTROYED, 2e9, steps, best, final, curve_columns(curve(*returns)))
    return HistoryRecord(entry, LaunchFacts(spec=spec), replace(ending, receipt=f"nothing left of {launch}"))


def put(*records):
    with HistoryStore() as store:
        store.put(records)


async def test_destroyed_runs_are_reported_from_the_history_alone(backend):
    put(record(1, 0, 5.0), record(0, 0, 1.0, None, 2.0), record(1, 1, 4.0, spec='{"lr": 0.2}'))
    report = await experiment_report(backend, "old")
    assert report.title == "old"
    assert [(run.record.entry.run, run.is_newest) for run in report.runs] == [
        ("old-s0", True),
        ("old-s1", True),
        ("old-s1", False),
    ]
    # Two specs: no common mean.
    assert report.final_return is None
    assert [(each.mean, each.num) for each in report.final_returns] == [(2.0, 1), (4.0, 1)]
    assert all(each.variant.startswith("spec ") for each in report.final_returns)
    assert [(row.field, row.first, row.second) for row in report.runs[1].differences] == [("lr", 0.1, 0.2)]
    assert report.spec == "lr: 0.1\n"
    assert report.notes == ()
    assert report.runs[0].curve.curve.positions(Axis.ENV_STEPS)[-1] == 300.0


async def test_one_run_is_reported_by_name_and_by_id(backend):
    put(record(0, 0, 1.0), record(1, 7, 2.0))
    for word in ("old-s1", "0000000000000001"):
        report = await experiment_report(backend, word)
        assert [run.record.entry.run for run in report.runs] == ["old-s1"]
        assert report.title == "old-s1"


async def test_what_runs_is_reported_without_a_record(backend):
    report = await experiment_report(backend, "racing-sac")
    assert [run.record.entry.run for run in report.runs] == ["racing-sac-s0", "racing-sac-s1"]
    assert all(run.curve.curve.num_records for run in report.runs)
    assert report.runs[0].record.entry.best_return is not None
    assert "learner" in report.spec


async def test_runs_of_now_and_of_the_past_are_in_one_report(backend):
    put(record(7, 0, 1.0, experiment="racing-sac"))
    report = await experiment_report(backend, "racing-sac")
    assert [run.record.entry.seed for run in report.runs] == [0, 1, 7]


async def test_a_backend_that_does_not_answer_costs_a_note(backend, monkeypatch):
    async def fails():
        raise BackendError("The cluster is out of reach.")

    monkeypatch.setattr(backend, "snapshot", fails)
    put(record(0, 0, 1.0))
    (note,) = (await experiment_report(backend, "old")).notes
    assert "The cluster is out of reach." in note


async def test_a_name_that_nothing_has_is_a_sentence(backend):
    with pytest.raises(NotFoundError, match="has nothing-such"):
        await experiment_report(backend, "nothing-such")


def test_a_stored_curve_is_the_recorded_one_and_bad_columns_are_left_out():
    columns = (("env_steps", (1.0, 2.0)), ("time", (5.0, 6.0)), (RETURN, (None, 3.0)), ("short", (1.0,)))
    read = stored_curve(Ending(RunOutcome.DONE, 0.0, curve=columns))
    assert read.figures == (RETURN,)
    assert curve_columns(read) == columns[:3]
    assert stored_curve(Ending(RunOutcome.DONE, 0.0)).num_records == 0
