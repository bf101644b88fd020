"""Experiments: how many runs learn, stall or have ended, and the return over the seeds. Trials of sweeps likewise.

The interval of a mean over few seeds is the percentile bootstrap: B. Efron, "Bootstrap methods: another look at
the jackknife", Annals of Statistics 7 (1979); B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap"
(1993), section 13.3, who take at least 1,000 resamples for an interval. The returns of seeds are seldom normal:
some learn, others do not, so no t-interval is used.

For up to seven values all possible resamples are counted, each with its probability; there are fewer of them than
would be drawn.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, combinations_with_replacement
from math import factorial, prod
from typing import Final

from msgspec import Struct

from l2rtui.domain.history import newest_by_seed, variants_of
from l2rtui.domain.metrics import RunMetrics
from l2rtui.domain.runstatus import Learning, LearningState
from l2rtui.domain.snapshot import RunView
from l2rtui.domain.status import QUEUED
from l2rtui.domain.sweeps import Trial

_LIVE: Final = frozenset((Learning.STARTING, Learning.LIVE, Learning.SLOW, Learning.STARVED))
"""States of a run that makes progress, however slow."""
_STALLED: Final = frozenset((Learning.STALLED, Learning.DIVERGED))
"""States of a run that occupies slots without progress."""


class SeedResult(Struct, frozen=True):
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


class ExperimentSummary(Struct, frozen=True):
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


RESAMPLES: Final = 2_000
CONFIDENCE: Final = 0.95
_SEED: Final = 1979
_TAIL: Final = round(RESAMPLES * (1.0 - CONFIDENCE) / 2.0)
"""Resampled means outside of the interval at each end."""
MOST_EXACT: Final = 7


@lru_cache(maxsize=8192)  # charts ask for each column, and most columns stay as they are
def bootstrap_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Return the limits of the 95 % interval of the mean; None for fewer than two values.

    The same values in the same order always give the same interval.
    """
    if len(values) < 2:
        return None
    number, value_at = len(values), values.__getitem__
    if number <= MOST_EXACT:
        tail = (1.0 - CONFIDENCE) / 2.0
        outcomes = sorted((sum(map(value_at, drawn)) / number, share) for drawn, share in _outcomes(number))
        return _first_beyond(outcomes, tail), _first_beyond(outcomes[::-1], tail)
    means = sorted(sum(map(value_at, resample)) / number for resample in _resamples(number))
    return means[_TAIL - 1], means[RESAMPLES - _TAIL - 1]


def _first_beyond(outcomes: Sequence[tuple[float, float]], tail: float) -> float:
    """Return the first mean at which the sum of the probabilities exceeds a tail."""
    passed = accumulate(share for _, share in outcomes)
    return next(mean for (mean, _), share in zip(outcomes, passed, strict=True) if share > tail)


@lru_cache(maxsize=16)
def _outcomes(number: int) -> Sequence[tuple[tuple[int, ...], float]]:
    """Return all resamples of ``number`` values as positions in ascending order, each with its probability."""
    resamples = combinations_with_replacement(range(number), number)
    orders = ((drawn, prod(map(factorial, Counter(drawn).values()))) for drawn in resamples)
    return [(drawn, factorial(number) / repeats / number**number) for drawn, repeats in orders]


# Drawing costs five times as much as averaging, and experiments have few different sizes: positions are drawn once
# per size.
@lru_cache(maxsize=16)
def _resamples(number: int) -> Sequence[array[int]]:
    """Return the positions that each resample of ``number`` values draws, with replacement."""
    generator = random.Random(_SEED)  # noqa: S311  (statistics, and the same at every look)
    positions = range(number)
    return [array("I", generator.choices(positions, k=number)) for _ in range(RESAMPLES)]


class TrialRun(Struct, frozen=True):
    """One run of a trial.

    Attributes:
        state: As in the history (``done``, ``running``, …), or ``queued``.
        final_return: The newest return that it has reported. best_return: The greatest. Both are None before the
            first.
    """

    run: str
    trial: Trial
    seed: int
    state: str
    final_return: float | None = None
    best_return: float | None = None
    env_steps: float | None = None


class TrialResult(Struct, frozen=True):
    """One trial over its seeds.

    Attributes:
        states: Number of its runs by state.
        mean_return: Mean of the final returns of its runs; None if no run has reported one.
        low, high: Limits of the 95 % bootstrap interval of that mean; None for fewer than two returns.
        best_return: Greatest return of any of its runs at any time.
        env_steps: Env steps of all of its runs.
    """

    trial: Trial
    runs: int
    states: tuple[tuple[str, int], ...]
    mean_return: float | None = None
    low: float | None = None
    high: float | None = None
    best_return: float | None = None
    env_steps: float = 0.0


def trial_results(runs: Iterable[TrialRun]) -> tuple[TrialResult, ...]:
    """Return one result for each trial, the best mean first; trials without a return come last, by number."""
    members: dict[Trial, list[TrialRun]] = {}
    for run in runs:
        members.setdefault(run.trial, []).append(run)
    results = [_result(trial, own) for trial, own in members.items()]
    return tuple(sorted(results, key=_rank))


def _rank(result: TrialResult) -> tuple[bool, float, int]:
    mean = result.mean_return
    return mean is None, -(mean or 0.0), result.trial.number


def _result(trial: Trial, runs: list[TrialRun]) -> TrialResult:
    # Sorted by seed, so that the interval does not depend on the order in which runs are listed.
    ordered = sorted(runs, key=lambda run: run.seed)
    finals = _numbers(run.final_return for run in ordered)
    low, high = bootstrap_interval(finals) or (None, None)
    return TrialResult(
        trial,
        len(runs),
        tuple(sorted(Counter(run.state for run in runs).items())),
        math.fsum(finals) / len(finals) if finals else None,
        low,
        high,
        max(_numbers(run.best_return for run in runs), default=None),
        math.fsum(_numbers(run.env_steps for run in runs)),
    )


def _numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None and math.isfinite(value))
