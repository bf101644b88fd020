"""The matrix of seeds and sets: a row for each run, how it stands and learns, and a cell for each of its sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from l2rtui.domain.runstatus import run_status, wanted_pods
from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Level
from l2rtui.domain.workload import Role
from l2rtui.ui.text import GLYPHS, NOTHING, Span, Tone, count, decimal, sparkline, status_text, tone_of
from l2rtui.ui.values import Learning, PodRecord
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

TREND_COLUMNS: Final = 12
MOST_SETS: Final = 64
CELL: Final = "set:"
"""What the keys of set columns begin with."""
_BEFORE: Final = (
    Column("run", "run", most=40),
    Column("state", "state", most=16),
    Column("seed", "seed", most=6, right=True, rank=8),
)
_AT: Final = Column("at", "at", most=28, rank=1)
"""What the processes of a run are at, where some run says so: steps of a job, ranks that work together."""
_AFTER: Final = (
    Column("ready", "ready", most=7, right=True, rank=9),
    Column("rate", "steps/s", most=8, right=True, rank=2),
    Column("updates", "updates/s", most=9, right=True, rank=5),
    Column("return", "return", most=8, right=True, rank=1),
    Column("trend", "over time", most=TREND_COLUMNS, rank=3),
    Column("policy", "policy", most=8, right=True, rank=6),
    Column("lag", "lag", most=6, right=True, rank=7),
    Column("steps", "env steps", most=14, right=True, rank=10),
    Column("owner", "owner", most=12, rank=11),
    Column("age", "age", most=6, right=True, rank=4, is_age=True),
)


class RunTable(VirtualTable):
    """All runs."""

    def __init__(self, *, clock: Callable[[], float] = time.time, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(columns_for(()), empty="No runs yet. L launches one, P places one.", clock=clock, id=id)

    @property
    def cursor_set(self) -> str:
        """Name of the set under the cursor; empty while the cursor means the whole run."""
        return (self.cursor_cell or "").removeprefix(CELL)


class RunRows:
    """Makes the rows of runs. Those of a large cluster's first look can be made ahead, in a thread."""

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[Sequence[PodView], tuple[str, ...], Row]] = {}

    def make_ahead(self, runs: Iterable[RunView], pods_of: Callable[[str], Sequence[PodView]]) -> None:
        """Make the rows of these runs, before anything is known of their metrics."""
        ordered = in_order(runs)
        sets = sets_of(ordered)
        pods = {run.uid: pods_of(run.name) for run in ordered}
        self._ahead = {run.uid: (pods[run.uid], sets, run_row(run, pods[run.uid], None, sets)) for run in ordered}

    def row(
        self,
        run: RunView,
        pods: Sequence[PodView],
        metrics: Learning | None,
        sets: tuple[str, ...],
        at: str | None = None,
    ) -> Row:
        """As ``run_row``; once from what was made ahead, where it was made of the same."""
        ahead = self._ahead.pop(run.uid, None)
        if ahead is not None and ahead[0] is pods and ahead[1] == sets and metrics is None and at is None:
            return ahead[2]
        return run_row(run, pods, metrics, sets, at)


def in_order(runs: Iterable[RunView]) -> list[RunView]:
    """Oldest first, as the letters of the slots go, then by seed."""
    return sorted(runs, key=lambda run: (run.created, run.experiment, run.seed, run.name))


def sets_of(runs: Iterable[RunView]) -> tuple[str, ...]:
    """Names of all sets in the order in which they are met, learners first."""
    learners: dict[str, None] = {}
    others: dict[str, None] = {}
    for run in runs:
        for one in run.sets:
            (learners if one.role is Role.LEARNER else others)[one.name] = None
    return tuple({**learners, **others})[:MOST_SETS]


def at_of(pods: Sequence[PodView], records: Mapping[str, PodRecord]) -> str:
    """What the processes of a run are at: how many work together, and the steps they are at."""
    told = [records[pod.uid] for pod in pods if pod.uid in records]
    worlds = [one.world_size for one in told if one.world_size is not None]
    steps = list(dict.fromkeys(one.step for one in told if one.step))
    ranks = f"{max(worlds)} rank{'s' if max(worlds) != 1 else ''}" if worlds else ""
    return sanitize("  ".join(filter(None, (ranks, ", ".join(steps[:4])))))


def columns_for(sets: Sequence[str], *, has_at: bool = False) -> tuple[Column, ...]:
    """The columns of a matrix with these sets."""
    cells = (Column(f"{CELL}{name}", sanitize(name), most=14, is_cell=True) for name in sets)
    return (*_BEFORE, *cells, *((_AT,) if has_at else ()), *_AFTER)


def run_row(
    run: RunView,
    pods: Sequence[PodView],
    metrics: Learning | None,
    sets: Sequence[str] = (),
    at: str | None = None,
) -> Row:
    """One run, with a cell for each of these sets, and what it is at where the table has a column for it."""
    status = run_status(run, pods)
    by_set: dict[str, list[PodView]] = {}
    failing = set()
    for pod in pods:
        by_set.setdefault(pod.set_name, []).append(pod)
        if pod.is_failing:
            failing.add(pod.set_name)
    counts = {name: sum([pod.ready for pod in own]) for name, own in by_set.items()}
    ready = sum(counts.values())
    numbers = _numbers(metrics)
    rate, updates, returned, policy, lag, steps = (_span(text) for text, _ in numbers)
    cells = (
        Span(sanitize(run.name), Tone.STRONG),
        Span(status_text(sanitize(status.word), status.level), tone_of(status.level)),
        Span(str(run.seed), Tone.DIM),
        *(_set_cell(run, name, by_set.get(name, ()), counts.get(name, 0), name in failing) for name in sets),
        *(() if at is None else (_span(at or NOTHING),)),
        Span(f"{ready}/{wanted_pods(run)}", Tone.PLAIN if ready >= wanted_pods(run) else Tone.WARN),
        rate,
        updates,
        returned,
        Span(sparkline(metrics.returns, TREND_COLUMNS) if metrics else "", Tone.ACCENT),
        policy,
        lag,
        steps,
        Span(sanitize(run.owner) or NOTHING, Tone.DIM),
        Span("", Tone.DIM),
    )
    values = [value for _, value in numbers]
    sort = (
        run.name,
        status.word,
        run.seed,
        *(counts.get(name, 0) for name in sets),
        *(() if at is None else (at,)),
        ready,
        *values[:3],
        values[2],
        *values[3:],
        run.owner,
        -run.created,  # as ages go, but it stands still
    )
    return Row(run.uid, cells, sort, is_fault=status.level in (Level.BAD, Level.WARN))


def _set_cell(run: RunView, name: str, own: Sequence[PodView], ready: int, is_failing: bool) -> Span:
    """``4/4``, with a glyph where a pod fails or is not there yet; nothing where the run has no such set."""
    one = next((one for one in run.sets if one.name == name), None)
    if one is None:
        return Span("")
    text = f"{ready}/{one.replicas}"
    if is_failing:
        return Span(f"{text} {GLYPHS[Level.BAD]}", Tone.BAD)
    if ready >= one.replicas:
        return Span(text, Tone.OK if ready else Tone.DIM)
    if own and all(pod.phase.is_over for pod in own):
        return Span(f"{text} {GLYPHS[Level.DONE]}", Tone.DONE)
    return Span(f"{text} {GLYPHS[Level.WAIT]}", Tone.WAIT)


def shown_return(metrics: Learning) -> float | None:
    """The evaluator's return where there is one, else that of the training episodes."""
    return metrics.mean_return if metrics.eval_return is None else metrics.eval_return


def _span(text: str) -> Span:
    return Span(text, Tone.PLAIN if text != NOTHING else Tone.DIM)


def _numbers(metrics: Learning | None) -> list[tuple[str, float]]:
    """Texts and sort values of the learner's numbers; a run without numbers sorts below all others."""
    if metrics is None:
        return [(NOTHING, float("-inf"))] * 6
    values: list[tuple[str, float | None]] = [
        (count(round(metrics.env_steps_per_second)), metrics.env_steps_per_second),
        (decimal(metrics.updates_per_second), metrics.updates_per_second),
        (decimal(shown_return(metrics)), shown_return(metrics)),
        (f"v{metrics.policy_version}", metrics.policy_version),
        (decimal(metrics.policy_lag), metrics.policy_lag),
        (count(metrics.env_steps), metrics.env_steps),
    ]
    return [(text, float("-inf") if value is None else float(value)) for text, value in values]
