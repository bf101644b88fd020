"""Runs as rows: how they stand and how they learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Level, Status
from l2rtui.ui.text import NOTHING, Span, Tone, age, count, decimal, plural, sparkline, status_text, tone_of
from l2rtui.ui.values import Learning
from l2rtui.ui.widgets.rows import Column, Row
from l2rtui.ui.widgets.virtual_table import VirtualTable

TREND_COLUMNS: Final = 16
COLUMNS: Final = (
    Column("run", "run", most=40),
    Column("state", "state", most=16),
    Column("ready", "ready", most=7, right=True),
    Column("seed", "seed", most=6, right=True, rank=3),
    Column("owner", "owner", most=12, rank=7),
    Column("steps", "env steps", most=14, right=True, rank=3),
    Column("rate", "steps/s", most=8, right=True, rank=1),
    Column("updates", "updates/s", most=9, right=True, rank=4),
    Column("policy", "policy", most=8, right=True, rank=5),
    Column("lag", "lag", most=6, right=True, rank=6),
    Column("return", "return", most=8, right=True, rank=1),
    Column("trend", "return over time", most=TREND_COLUMNS, rank=2),
    Column("age", "age", most=6, right=True, rank=3),
)


class RunTable(VirtualTable):
    """All runs."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(COLUMNS, empty="No runs yet. L launches one.", id=id)


def wanted(run: RunView) -> int:
    """How many pods a run should have."""
    return sum(one.replicas for one in run.sets)


def run_status(run: RunView, pods: Sequence[PodView]) -> Status:
    """Word, level and sentence of a run, from its own reason and from its pods."""
    if run.is_terminating:
        return Status("Terminating", Level.WAIT, f"is being destroyed, {plural(len(pods), 'pod')} left")
    if run.reason:
        return Status(run.reason, Level.WARN, run.message or run.reason)
    failing = [pod for pod in pods if pod.is_failing]
    if failing:
        others = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        return Status("Degraded", Level.BAD, f"{failing[0].name} {failing[0].status.sentence}{others}")
    ready = sum(pod.ready for pod in pods)
    if ready >= wanted(run) > 0:
        return Status("Running", Level.OK, f"all {ready} pods run")
    if pods and all(pod.phase.is_over for pod in pods):
        return Status("Completed", Level.DONE, "has finished")
    return Status("Starting", Level.WAIT, f"{ready} of {plural(wanted(run), 'pod')} ready")


def run_row(run: RunView, pods: Sequence[PodView], metrics: Learning | None, now: float) -> Row:
    """One run at a time, seconds since the epoch."""
    status = run_status(run, pods)
    ready, since = sum(pod.ready for pod in pods), now - run.created if run.created else 0.0
    numbers = _numbers(metrics)
    cells = (
        Span(sanitize(run.name), Tone.STRONG),
        Span(status_text(sanitize(status.word), status.level), tone_of(status.level)),
        Span(f"{ready}/{wanted(run)}", Tone.PLAIN if ready >= wanted(run) else Tone.WARN),
        Span(str(run.seed), Tone.DIM),
        Span(sanitize(run.owner) or NOTHING, Tone.DIM),
        *(Span(text, Tone.PLAIN if text != NOTHING else Tone.DIM) for text, _ in numbers),
        Span(sparkline(metrics.returns, TREND_COLUMNS) if metrics else "", Tone.ACCENT),
        Span(age(since) if run.created else NOTHING, Tone.DIM),
    )
    returned = numbers[-1][1]
    sort = (
        run.name,
        status.word,
        ready,
        run.seed,
        run.owner,
        *(value for _, value in numbers),
        returned,
        -run.created,  # as ages go, but it stands still
    )
    return Row(run.uid, cells, sort, is_fault=status.level in (Level.BAD, Level.WARN))


def shown_return(metrics: Learning) -> float | None:
    """The evaluator's return where there is one, else that of the training episodes."""
    return metrics.mean_return if metrics.eval_return is None else metrics.eval_return


def _numbers(metrics: Learning | None) -> list[tuple[str, float]]:
    """Texts and sort values of the learner's numbers; a run without numbers sorts below all others."""
    if metrics is None:
        return [(NOTHING, float("-inf"))] * 6
    values: list[tuple[str, float | None]] = [
        (count(metrics.env_steps), metrics.env_steps),
        (count(round(metrics.env_steps_per_second)), metrics.env_steps_per_second),
        (decimal(metrics.updates_per_second), metrics.updates_per_second),
        (f"v{metrics.policy_version}", metrics.policy_version),
        (decimal(metrics.policy_lag), metrics.policy_lag),
        (decimal(shown_return(metrics)), shown_return(metrics)),
    ]
    return [(text, float("-inf") if value is None else float(value)) for text, value in values]
