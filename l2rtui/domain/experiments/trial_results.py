"""Results of the trials of a sweep over their seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from l2rtui.domain.experiments.interval import bootstrap_interval
from l2rtui.domain.sweeps.trial import Trial


@dataclass(frozen=True, slots=True)
class TrialRun:
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


@dataclass(frozen=True, slots=True)
class TrialResult:
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
