"""Summaries of experiments from the logs of their learners."""

from __future__ import annotations

from collections.abc import Sequence

from l2rtui.domain.experiments.summary import ExperimentSummary, seed_result, summarize
from l2rtui.domain.snapshot import ClusterSnapshot, RunView
from l2rtui.services.learning import LearningReader


async def experiments(
    reader: LearningReader, snapshot: ClusterSnapshot, runs: Sequence[RunView], now: float
) -> tuple[ExperimentSummary, ...]:
    """Return one summary for each experiment of these runs; a log that cannot be read is not an error.

    Args:
        reader: A reader that also reads the logs of ended learners: their last return is the result.
        now: Seconds since the epoch.
    """
    learning = await reader.look(snapshot, runs, now)
    results = [seed_result(run, learning[run.uid].state, learning[run.uid].metrics) for run in runs]
    return summarize(results)
