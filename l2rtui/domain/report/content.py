"""Content of a report: the runs of an experiment with their records and curves, and statistics over them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from l2rtui.domain.curves.chart import ChartSettings, CurveGroup, SeedCurve, grouped
from l2rtui.domain.experiments.interval import bootstrap_interval
from l2rtui.domain.experiments.trial_results import TrialResult, TrialRun, trial_results
from l2rtui.domain.history.difference import Difference
from l2rtui.domain.history.identity import Key, variants_of
from l2rtui.domain.history.record import HistoryRecord, SourceState
from l2rtui.domain.sweeps.trial import Trial

CHARTS: Final = ChartSettings()
"""Charts of a report: over env steps, not smoothed, over the full length."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One launch of a run.

    Attributes:
        state: Outcome, or current state.
        is_newest: No later launch has its name, or its seed and its spec. Earlier launches are listed, but not part
            of curves and means.
        trial: Trial of a sweep to which it belongs; None outside of a sweep.
        differences: Differences from the spec, code and versions that the report shows in full.
    """

    record: HistoryRecord
    curve: SeedCurve
    state: str
    is_newest: bool = True
    trial: Trial | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def identity(self) -> Key:
        """Identity of its experiment: name, place and spec."""
        return self.record.entry.experiment, self.curve.place, self.curve.spec_id


@dataclass(frozen=True, slots=True)
class ReturnSummary:
    """Mean of the final returns over the newest launches, with the limits of its 95 % bootstrap interval.

    Attributes:
        variant: Spec or place, if the page has runs of several; otherwise empty.
    """

    num: int
    mean: float
    limits: tuple[float, float] | None
    variant: str = ""


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """All data about one experiment that a page shows.

    Attributes:
        made: Time of the report, in seconds since the epoch. program: Name and version of the program that made it.
        runs: By seed and name; the newest launch of a run comes before earlier ones. At least one.
        spec: Resolved spec of the first run as YAML; empty if unknown.
        notes: Sentences on missing parts of the report.
    """

    title: str
    made: float
    program: str
    runs: tuple[ReportedRun, ...]
    spec: str = ""
    notes: tuple[str, ...] = ()

    @property
    def newest(self) -> tuple[ReportedRun, ...]:
        """The newest launch of each run."""
        return tuple(run for run in self.runs if run.is_newest)

    @property
    def states(self) -> tuple[tuple[str, int], ...]:
        """Number of runs by state, the most frequent first."""
        return tuple(Counter(run.state for run in self.newest).most_common())

    @property
    def final_returns(self) -> tuple[ReturnSummary, ...]:
        """Mean of the final returns for each spec and place; empty if no run has a return."""
        members: dict[Key, list[float]] = {}
        for run in self.newest:
            value = run.record.entry.final_return
            if value is not None and math.isfinite(value):
                members.setdefault(run.identity, []).append(value)
        variants = variants_of(members)
        return tuple(
            ReturnSummary(len(own), math.fsum(own) / len(own), bootstrap_interval(tuple(own)), variants[key])
            for key, own in members.items()
        )

    @property
    def final_return(self) -> ReturnSummary | None:
        """Mean of the final returns; None if no run has one, or if the runs have several specs or places."""
        own = self.final_returns
        return own[0] if len(own) == 1 else None

    @property
    def repeated_seeds(self) -> tuple[int, ...]:
        """Seeds shared by several launches of one spec and place."""
        counts = Counter((run.record.entry.seed, *run.identity) for run in self.runs)
        return tuple(sorted({int(seed) for (seed, *_), number in counts.items() if number > 1}))

    @property
    def trials(self) -> tuple[TrialResult, ...]:
        """Results of the trials of a sweep, the best first; empty if no run belongs to a trial."""
        return trial_results(
            TrialRun(
                run.record.entry.run, run.trial, run.record.entry.seed, run.state, run.record.entry.final_return
            )
            for run in self.newest
            if run.trial is not None
        )

    @property
    def charts(self) -> tuple[tuple[str, Sequence[CurveGroup]], ...]:
        """Charts with their titles: the mean over seeds and, if there are several runs, each run separately."""
        seeds = [run.curve for run in self.newest if run.curve.curve.num_records]
        if not seeds:
            return ()
        mean = grouped(seeds, by_experiment=True)
        if len(mean) == len(seeds):
            return (("", mean),)
        return (("Mean over seeds", mean), ("Each run", grouped(seeds, by_experiment=False)))

    @property
    def sources(self) -> tuple[tuple[SourceState, int], ...]:
        """Source trees of the newest launches with their number of runs, including trees without a commit."""
        return tuple(Counter(run.record.launch.source for run in self.newest).items())

    @property
    def versions(self) -> tuple[tuple[str, int], ...]:
        """Programs with their versions, and the number of newest launches that had them."""
        pairs = (f"{name} {version}" for run in self.newest for name, version in run.record.launch.versions)
        return tuple(Counter(pairs).items())
