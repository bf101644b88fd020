"""Successive halving of a sweep: the rungs that trials have reached, and their returns there.

L. Li et al., "A system for massively parallel hyperparameter tuning" (ASHA), MLSys 2020. Optuna decides which
trials stop (``services.sweeps.asha``), based only on the ordered reports: a keeper that takes over a sweep makes
the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from l2rtui.domain.sweeps.trial import Halving


@dataclass(frozen=True, slots=True)
class RungReport:
    """Arrival of a trial at a rung.

    Attributes:
        env_steps: Env steps of the rung.
        value: Mean return of its runs there.
    """

    trial: int
    env_steps: int
    value: float


@dataclass(frozen=True, slots=True)
class SweepWatch:
    """Sweep whose worst trials are stopped early.

    Attributes:
        runs: Id and trial of each of its runs.
        reports: In the order in which trials reached the rungs.
        stopped: Numbers of the trials that were stopped.
    """

    experiment: str
    halving: Halving
    runs: tuple[tuple[str, int], ...] = ()
    reports: tuple[RungReport, ...] = ()
    stopped: tuple[int, ...] = ()

    def runs_of(self, trials: Collection[int]) -> tuple[str, ...]:
        """Return the ids of the runs of these trials."""
        return tuple(uid for uid, trial in self.runs if trial in trials)


Points = Sequence[tuple[float, float]]
"""Env steps and return of the records of a run that have a return, in order."""


def registered(watches: Iterable[SweepWatch], added: SweepWatch) -> tuple[SweepWatch, ...]:
    """Add the runs of another launch to the watched sweeps; a sweep of the same name with another rule is
    replaced.
    """
    others: list[SweepWatch] = []
    merged = added
    for watch in watches:
        if watch.experiment != added.experiment:
            others.append(watch)
        elif watch.halving == added.halving:
            merged = replace(watch, runs=tuple(dict.fromkeys((*watch.runs, *added.runs))))
    return (*others, merged)


def next_reports(watch: SweepWatch, points: Mapping[str, Points], ended: Collection[str]) -> tuple[RungReport, ...]:
    """Return the arrivals that are not reported yet, lower rungs first.

    A trial has reached a rung when each of its runs has reached it or ended before; its value is the mean over the
    runs that reached it.

    Args:
        points: Points of each run that has records, by run id.
        ended: Ids of runs that will not write further records.
    """
    last = {report.trial: report.env_steps for report in watch.reports}
    reports: list[RungReport] = []
    for trial in dict.fromkeys(number for _, number in watch.runs):
        if trial in watch.stopped:
            continue
        rung, runs = _rung_after(watch.halving, last.get(trial, 0)), watch.runs_of((trial,))
        while (value := _value_at(rung, runs, points, ended)) is not None:
            reports.append(RungReport(trial, rung, value))
            rung *= watch.halving.factor
    return tuple(sorted(reports, key=lambda report: report.env_steps))


def _rung_after(halving: Halving, env_steps: int) -> int:
    rung = halving.min_env_steps
    while rung <= env_steps:
        rung *= halving.factor
    return rung


def _value_at(rung: int, uids: Iterable[str], points: Mapping[str, Points], ended: Collection[str]) -> float | None:
    """Return the mean return of a trial at a rung; None before it has reached the rung."""
    values = []
    for uid in uids:
        value = next((value for steps, value in points.get(uid, ()) if steps >= rung), None)
        if value is not None:
            values.append(value)
        elif uid not in ended:
            return None
    return math.fsum(values) / len(values) if values else None
