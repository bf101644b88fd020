"""Summary of an experiment: how many of its runs learn, stall and end, and the return over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.experiments.interval import bootstrap_interval
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.queue.tickets import QUEUED
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import RunView

_LIVE: Final = frozenset((Learning.STARTING, Learning.LIVE, Learning.SLOW, Learning.STARVED))
"""States of a run that goes on, be it slowly."""
_STALLED: Final = frozenset((Learning.STALLED, Learning.DIVERGED))
"""States of a run that uses its slots and gets nowhere."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """State of one run, and the newest return that it has reported; None before the first.

    Attributes:
        is_queued: It waits for slots; then its state counts nowhere.
    """

    run: str
    experiment: str
    seed: int
    state: Learning
    latest_return: float | None = None
    is_queued: bool = False


def seed_result(run: RunView, state: LearningState, metrics: RunMetrics | None) -> SeedResult:
    """Return what counts of a run in its experiment."""
    latest_return = metrics.reported_return if metrics is not None else None
    return SeedResult(run.name, run.experiment, run.seed, state.state, latest_return, run.reason == QUEUED)


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """One experiment over its seeds.

    Attributes:
        runs: All of them, those that wait in a queue included.
        queued, live, stalled, done, failed: Runs by state; those of which nothing is known are in none of these.
        mean_return: Mean of the newest returns of all runs that have reported one; None where none has.
        low, high: Limits of its 95 % bootstrap interval; None for fewer than two returns.
        best_seed, worst_seed: Seeds of the highest and the lowest return; the lower seed where several share it.
    """

    experiment: str
    runs: int
    queued: int = 0
    live: int = 0
    stalled: int = 0
    done: int = 0
    failed: int = 0
    mean_return: float | None = None
    low: float | None = None
    high: float | None = None
    best_seed: int | None = None
    worst_seed: int | None = None

    @property
    def unknown(self) -> int:
        """Runs of which nothing of the present is known."""
        return self.runs - self.queued - self.live - self.stalled - self.done - self.failed

    @property
    def is_fault(self) -> bool:
        """True where somebody should look at one of its runs."""
        return bool(self.stalled or self.failed)


def summarize(results: Iterable[SeedResult]) -> tuple[ExperimentSummary, ...]:
    """Return one summary for each experiment, by name."""
    members: dict[str, list[SeedResult]] = {}
    for result in results:
        members.setdefault(result.experiment, []).append(result)
    return tuple(_summary(name, members[name]) for name in sorted(members))


def _summary(name: str, results: list[SeedResult]) -> ExperimentSummary:
    states = Counter(result.state for result in results if not result.is_queued)
    # By seed, so that the interval does not change with the order in which runs are listed.
    returns = sorted(
        (result.seed, result.latest_return)
        for result in results
        if result.latest_return is not None and math.isfinite(result.latest_return)
    )
    values = tuple(value for _, value in returns)
    low, high = bootstrap_interval(values) or (None, None)
    return ExperimentSummary(
        name,
        len(results),
        sum(result.is_queued for result in results),
        sum(states[state] for state in _LIVE),
        sum(states[state] for state in _STALLED),
        states[Learning.DONE],
        states[Learning.FAILED],
        math.fsum(values) / len(values) if values else None,
        low,
        high,
        # max() and min() return the first of equals, which is the lowest seed.
        max(returns, key=lambda pair: pair[1])[0] if returns else None,
        min(returns, key=lambda pair: pair[1])[0] if returns else None,
    )
