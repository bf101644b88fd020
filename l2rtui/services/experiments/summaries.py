"""Summaries of experiments from a single look at the logs of their learners."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.backends.base import Backend
from l2rtui.domain.experiments.summary import ExperimentSummary, seed_result, summarize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.services.learning import run_learning


async def experiments(
    backend: Backend, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float
) -> tuple[ExperimentSummary, ...]:
    """Return one summary for each experiment of these runs; a log that cannot be read is no error.

    Args:
        now: Seconds since the epoch.
    """
    # The learners of runs that are over, too: their last return is the result.
    learning = await run_learning(backend, snapshot, runs, now, with_ended=True)
    results = [seed_result(run, learning[run.uid].state, learning[run.uid].metrics) for run in runs]
    return summarize(results)
