"""Summary of an experiment: how many of its runs learn, stall or have ended, and the return over its seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.experiments.interval import bootstrap_interval
from l2rtui.domain.history.identity import newest_by_seed, variants_of
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import RunView
from l2rtui.domain.status import QUEUED

_LIVE: Final = frozenset((Learning.STARTING, Learning.LIVE, Learning.SLOW, Learning.STARVED))
"""States of a run that makes progress, however slow."""
_STALLED: Final = frozenset((Learning.STALLED, Learning.DIVERGED))
"""States of a run that occupies slots without progress."""


@dataclass(frozen=True, slots=True)
class SeedResult:
    """State of one run, and the newest return that it has reported (None before the first).

    Attributes:
        is_queued: It waits for slots; its state is then not counted.
        spec_id, place: See ``RunView``. started: Seconds since the epoch.
    """

    run: str
    experiment: str
    seed: int
    state: Learning
    latest_return: float | None = None
    is_queued: bool = False
    spec_id: str = ""
    place: str = ""
    started: float = 0.0


def seed_result(run: RunView, state: LearningState, metrics: RunMetrics | None) -> SeedResult:
    """Return the facts about a run that count in its experiment."""
    latest_return = metrics.reported_return if metrics is not None else None
    is_queued = run.reason == QUEUED
    about = (run.name, run.experiment, run.seed, state.state, latest_return, is_queued)
    return SeedResult(*about, run.spec_id, run.place, run.created)


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """One experiment over its seeds: runs of one name, one spec and one place.

    Attributes:
        runs: Number of its runs, including queued ones.
        queued, live, stalled, done, failed: Runs by state. A run in an unknown state is in none of these.
        mean_return: Mean of the newest returns of all runs that have reported one; None without any.
        low, high: Limits of its 95 % bootstrap interval; None for fewer than two returns.
        best_seed, worst_seed: Seeds of the highest and the lowest return; the lower seed where several share it.
        variant: Distinguishes it from experiments of the same name by spec or place; empty if the name is unique.
        repeated_seeds: Seeds that several runs have; only the newest run of each counts in the statistics.
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
    variant: str = ""
    spec_id: str = ""
    place: str = ""
    repeated_seeds: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """Name, and its variant if other experiments have the same name."""
        return f"{self.experiment} ({self.variant})" if self.variant else self.experiment

    @property
    def unknown(self) -> int:
        """Number of runs whose current state is unknown."""
        return self.runs - self.queued - self.live - self.stalled - self.done - self.failed

    @property
    def is_fault(self) -> bool:
        """True if one of its runs needs attention."""
        return bool(self.stalled or self.failed)


def summarize(results: Iterable[SeedResult]) -> tuple[ExperimentSummary, ...]:
    """Return one summary for each experiment, sorted by name, then by launch. Specs and places are kept apart."""
    members: dict[tuple[str, str, str], list[SeedResult]] = {}
    for result in results:
        members.setdefault((result.experiment, result.place, result.spec_id), []).append(result)
    variants = variants_of(members)
    # Among experiments of the same name, the one that was launched first comes first.
    order = sorted(members, key=lambda key: (key[0], min(result.started for result in members[key]), key))
    return tuple(_summary(key, members[key], variants[key]) for key in order)


def _summary(key: tuple[str, str, str], results: list[SeedResult], variant: str) -> ExperimentSummary:
    name, place, spec = key
    states = Counter(result.state for result in results if not result.is_queued)
    # Sorted by seed, so that the interval does not depend on the order in which runs are listed.
    counting, repeated = newest_by_seed(
        results, lambda result: result.seed, lambda result: (result.started, result.run)
    )
    returns = [
        (result.seed, result.latest_return)
        for result in counting
        if result.latest_return is not None and math.isfinite(result.latest_return)
    ]
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
        variant,
        spec,
        place,
        repeated,
    )
