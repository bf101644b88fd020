"""Row of the matrix with the totals of an experiment: pods of each set, summed rates and env steps, mean return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from l2rtui.domain.experiments import seed_result, summarize
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.quantity import counted
from l2rtui.domain.runstatus import NO_REPORTS, LearningState, learning_state, replicas_of_run, run_status
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Level
from l2rtui.ui.text import NOTHING, Span, TextStyle, count, decimal, per_second
from l2rtui.ui.widgets.run_table import CELL, is_learning
from l2rtui.ui.widgets.table_model import Row, RowModel

KEY: Final = "sum"
"""Key of the row; no run has it, and the cursor skips it."""
PodsOf = Callable[[str], Sequence[PodView]]


def sum_of_listed(
    model: RowModel,
    runs: Mapping[str, RunView],
    pods_of: PodsOf,
    metrics: Mapping[str, RunMetrics],
    learning: Mapping[str, LearningState],
) -> Row | None:
    """Return the sum of the listed runs if they are several of one experiment; otherwise None.

    Args:
        runs, metrics, learning: By uid of the run.
    """
    # The rows may be slightly older than the snapshot.
    listed = [runs[uid] for uid in model.displayed if uid in runs]
    if len(listed) < 2 or any(run.experiment != listed[0].experiment for run in listed):
        return None
    cells = _cells(listed, pods_of, metrics, learning)
    spans = [cells.get(column.key, Span("")) for column in model.columns]
    return Row(KEY, tuple(spans), tuple(0.0 for _ in spans))


def _cells(
    runs: Sequence[RunView],
    pods_of: PodsOf,
    metrics: Mapping[str, RunMetrics],
    learning: Mapping[str, LearningState],
) -> dict[str, Span]:
    """Return the cells by the keys of their columns."""
    pods = {run.uid: pods_of(run.name) for run in runs}
    states = {
        run.uid: learning.get(run.uid) or learning_state(run, pods[run.uid], NO_REPORTS, run.created)
        for run in runs
    }
    summaries = summarize(seed_result(run, states[run.uid], metrics.get(run.uid)) for run in runs)
    num_live, is_fault = sum(own.live for own in summaries), any(own.is_fault for own in summaries)
    # Runs of several specs or places have no mean.
    mean_return = summaries[0].mean_return if len(summaries) == 1 else None
    own = [metrics[run.uid] for run in runs if run.uid in metrics]
    # A learner that has ended no longer has a rate, whatever its last record says.
    rates = [metrics[run.uid] for run in runs if run.uid in metrics and is_learning(pods[run.uid])]
    num_good = sum(run_status(run, pods[run.uid]).level in (Level.OK, Level.DONE) for run in runs)
    ready = sum(pod.ready for members in pods.values() for pod in members)
    replicas = sum(map(replicas_of_run, runs))
    return {
        "run": Span(f"all {counted(len(runs), 'seed')}", TextStyle.STRONG),
        "state": Span(f"{num_good} of {len(runs)} ok", _style(num_good, len(runs))),
        "learning": Span(f"{num_live} live", TextStyle.WARN if is_fault else TextStyle.PLAIN),
        "seed": Span(str(len(runs)), TextStyle.DIM),
        "ready": Span(f"{ready}/{replicas}", _style(ready, replicas)),
        "rate": Span(count(sum(record.env_steps_per_second for record in rates)) if rates else NOTHING),
        "updates": Span(per_second(sum(record.updates_per_second for record in rates)) if rates else NOTHING),
        "return": Span(decimal(mean_return), TextStyle.STRONG),
        "lag": Span(decimal(max((record.policy_lag for record in own), default=None))),
        "steps": Span(count(sum(record.env_steps for record in own)) if own else NOTHING),
        "experiment": Span(sanitize(runs[0].experiment), TextStyle.DIM),
        **_set_cells(runs, pods),
    }


def _set_cells(runs: Sequence[RunView], pods: Mapping[str, Sequence[PodView]]) -> dict[str, Span]:
    """Return ``ready/replicas`` of each set over all runs."""
    replicas: dict[str, int] = {}
    for run in runs:
        for worker_set in run.sets:
            replicas[worker_set.name] = replicas.get(worker_set.name, 0) + worker_set.replicas
    ready = dict.fromkeys(replicas, 0)
    for members in pods.values():
        for pod in members:
            if pod.ready and pod.set_name in ready:
                ready[pod.set_name] += 1
    return {
        f"{CELL}{name}": Span(f"{ready[name]}/{number}", _style(ready[name], number))
        for name, number in replicas.items()
    }


def _style(part: int, total: int) -> TextStyle:
    return TextStyle.PLAIN if part >= total else TextStyle.WARN
