"""Experiments in the app: their rows, what they open into, and the row of the matrix that sums one."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from l2rtui.config import user_name
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.status import Phase
from l2rtui.domain.sweeps import trial_of
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.text import decimal
from l2rtui.ui.widgets.charts import ChartView
from l2rtui.ui.widgets.virtual_table import VirtualTable
from tests.l2rtui.ui.conftest import SmallLab

DEMO = ["lidar-ppo", "racing-sac"]


def rows(one):
    model = one.app.screen.query_one(VirtualTable).model
    keys = [column.key for column in model.columns]
    return {
        row.key: dict(zip(keys, (cell.text for cell in row.cells), strict=True))
        for row in map(model.rows.get, model.displayed)
    }


async def open_experiments(one, *keys):
    await one.until(lambda: len(one.cluster.metrics) == 3, "records of all learners")
    await one.press("E")
    await one.until(lambda: one.top == "ExperimentsScreen" and rows(one), "the experiments")
    await one.press(*keys)


def returns_of(one, experiment):
    cluster = one.cluster
    return {
        run.seed: cluster.metrics[uid].reported_return
        for uid, run in cluster.snapshot.runs.items()
        if run.experiment == experiment
    }


async def test_an_experiment_is_counted_and_averaged_over_its_seeds(desk):
    async with desk(demo=True) as one:
        await open_experiments(one)
        returns = returns_of(one, "racing-sac")
        row = rows(one)["racing-sac"]
        assert list(rows(one)) == DEMO
        assert (row["runs"], row["live"], row["queued"]) == ("2", "2", "0")
        assert row["return"] == decimal(np.mean(list(returns.values())))
        assert row["best"] == str(max(returns, key=returns.get))
        assert "l2rtui --backend demo experiments lidar-ppo" in one.words()
        assert rows(one)["lidar-ppo"]["low"] == "-"


async def test_a_row_follows_its_runs(desk):
    async with desk(demo=True) as one:
        await open_experiments(one)
        run = one.cluster.snapshot.run_named("lidar-ppo")
        learner = one.cluster.snapshot.pods_of(run.name)[0]
        one.backend.put_pod(replace(learner, phase=Phase.FAILED, ready=False, exit_code=1))
        await one.until(lambda: rows(one)["lidar-ppo"]["failed"] == "1", "the failure")
        await one.press("exclamation_mark")
        await one.until(lambda: list(rows(one)) == ["lidar-ppo"], "faults alone")


async def test_filter_and_sort_are_those_of_every_table(desk):
    async with desk(demo=True) as one:
        await open_experiments(one)
        await one.press("slash", *"runs>1")
        await one.until(lambda: list(rows(one)) == ["racing-sac"], "the filter")
        await one.press("enter")
        await one.until(lambda: not one.field.display and "/runs>1" in one.words(), "the title")
        await one.press("escape")
        await one.until(lambda: list(rows(one)) == DEMO, "all again")
        await one.press("comma")
        await one.until(lambda: list(rows(one)) == DEMO[::-1], "the other way round")
        await one.press("escape")
        await one.until(lambda: one.top == "ClusterScreen")


async def test_enter_opens_the_runs_of_an_experiment_with_their_sum(desk):
    async with desk(demo=True) as one:
        await open_experiments(one, "down", "enter")
        runs = one.cluster.panes.runs
        await one.until(lambda: one.top == "ClusterScreen" and runs.model.pinned is not None, "the sum")
        assert one.cluster.panes.focused_pane is Pane.RUNS
        listed = [one.cluster.snapshot.runs[uid] for uid in runs.model.displayed]
        assert [run.name for run in listed] == ["racing-sac-s0", "racing-sac-s1"]
        cells = dict(zip((column.key for column in runs.model.columns), runs.model.pinned.cells, strict=True))
        assert (cells["run"].text, cells["set:w"].text, cells["ready"].text) == ("all 2 seeds", "7/8", "11/12")
        assert cells["return"].text == decimal(np.mean(list(returns_of(one, "racing-sac").values())))
        await one.until(lambda: "all 2 seeds" in one.words())
        # The cursor goes over the runs alone, and esc shows everything again.
        await one.press("g", "down", "down")
        assert runs.cursor_key == listed[1].uid
        await one.press("escape")
        await one.until(lambda: runs.model.pinned is None and "all 2 seeds" not in one.words(), "no sum")


async def test_the_charts_of_an_experiment_are_the_mean_over_its_seeds(desk):
    async with desk(demo=True) as one:
        await one.press("space")  # a mark, whose charts would go first
        await open_experiments(one, "down", "8")
        charts = one.cluster.panes.charts
        await one.until(lambda: [group.name for group in charts.groups] == ["racing-sac"], "the group")
        assert [seed.seed for seed in charts.groups[0].seeds] == [0, 1]
        assert one.cluster.panes.focused_pane is Pane.CHARTS


async def test_the_command_takes_a_filter(desk):
    async with desk(demo=True) as one:
        await one.until(lambda: len(one.cluster.metrics) == 3, "records of all learners")
        await one.press("colon", *"experiments name~racing", "enter")
        await one.until(lambda: one.top == "ExperimentsScreen" and list(rows(one)) == ["racing-sac"], "the filter")


@pytest.mark.slow
async def test_a_click_below_the_sum_selects_the_run_that_is_there(desk):
    async with desk(demo=True) as one:
        await open_experiments(one, "down", "enter")
        runs = one.cluster.panes.runs
        await one.until(lambda: one.top == "ClusterScreen" and "all 2 seeds" in one.words(), "the sum")
        top = runs.region.y + runs.gutter.top
        await one.pilot.click("#runs", offset=(6, top - runs.region.y + 3))
        await one.until(lambda: runs.cursor_key == runs.model.displayed[1], "the second run")
        await one.pilot.click("#runs", offset=(6, top - runs.region.y + 1))  # the sum itself
        await one.pilot.pause()
        assert runs.cursor_key == runs.model.displayed[1]


async def sweep_backend():
    """Two trials of two seeds each, without logs."""
    backend = SmallLab(owner=user_name())
    sets = (SetSpec("learner", Role.LEARNER, ("true",)),)
    for number, rate in enumerate((1e-3, 3e-4)):
        trial = trial_of(number, {"train.sac.actor_lr": rate})
        specs = tuple(
            RunSpec(Kind.LEARNER_WORKERS, "search", f"search-t{number}-s{seed}", sets, seed=seed, trial=trial)
            for seed in (0, 1)
        )
        snapshot = await backend.snapshot()
        seats = place(specs, snapshot.ledger)
        plan = plan_launch(
            specs, seats, snapshot.nodes, owner=user_name(), uids=[f"uid-{number}-{seed}" for seed in (0, 1)]
        )
        backend.put_runs(plan, 600.0)
    return backend


async def test_a_sweep_has_a_pane_with_the_values_of_its_trials(desk):
    async with desk(backend=await sweep_backend(), ready=False) as one:
        await one.press("colon", *"sweep search", "enter")
        await one.until(lambda: one.top == "SweepScreen" and len(rows(one)) == 2, "the trials")
        assert [(key, row["value:train.sac.actor_lr"]) for key, row in rows(one).items()] == [
            ("t0", "0.001"),
            ("t1", "0.0003"),
        ]
        assert "actor_lr" in one.words()
        assert "l2rtui --backend demo sweep search" in one.words()
        await one.press("down", "enter")
        await one.until(lambda: one.top == "ClusterScreen", "the runs")
        runs = one.cluster.panes.runs.model
        names = [one.cluster.snapshot.runs[uid].name for uid in runs.displayed]
        assert sorted(names) == ["search-t1-s0", "search-t1-s1"]


async def test_an_experiment_that_is_a_sweep_opens_into_its_trials(desk):
    async with desk(backend=await sweep_backend(), ready=False) as one:
        await one.press("E")
        await one.until(lambda: one.top == "ExperimentsScreen" and "search" in rows(one), "the experiments")
        await one.press("G", "enter")
        await one.until(lambda: one.top == "SweepScreen" and len(rows(one)) == 2, "the trials")
        await one.press("escape")
        await one.until(lambda: one.top == "ExperimentsScreen", "back")


async def test_the_pane_fills_the_screen_and_draws_the_curves_of_its_row(desk):
    async with desk(demo=True, size=(80, 24)) as one:
        await open_experiments(one, "down")
        charts = one.app.screen.query_one(ChartView)
        await one.until(lambda: [group.name for group in charts.groups] == ["racing-sac"], "the curves")
        assert len(charts.groups[0].seeds) == 2
        assert rows(one)["racing-sac"]["trend"].strip()
        assert one.app.screen.query_one(".whole").region.size == (80, 24)
        assert "return" in one.words()
        await one.until(lambda: "curves · racing-sac" in one.words(), "the title")
        await one.press("colon")
        await one.until(lambda: one.top == "ClusterScreen" and one.cluster.command_line.is_open, "the prompt")
