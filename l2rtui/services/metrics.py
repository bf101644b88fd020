"""Metrics of a learner, read from its log: this works wherever logs can be read.

``runtime.base.metrics`` parses the lines; a field of a wrong type counts as missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from l2rtui.backends.base import Backend
from l2rtui.domain.log import LogQuery
from l2rtui.domain.metrics import MOST_PEERS, ExchangeFigures, LearnerFigures, ProgressHistory, RunMetrics
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import NotFoundError
from l2rtui.services.logs import ReadingTurns
from runtime.base.metrics import MAX_COUNT, integer, number, parse_record, text

_GPU_FIGURES: Final = ("gpu_percent", "gpu_memory_bytes", "gpu_reserved_bytes")
HISTORY = 240
"""Points of each series."""

_RATES: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out")
_NULLABLE: Final = frozenset(("mean_return", "eval_return", "eval_progress", *_GPU_FIGURES))
"""Figures of a learner's record that are null while they are unknown."""
_MOST_FIGURES: Final = 200


class Series:
    """Learner records in, RunMetrics with the history for sparklines out.

    Args:
        observe: Called with each record.
    """

    def __init__(self, run: str, observe: Callable[[Mapping[str, Any]], object] | None = None) -> None:
        self._run = run
        self._observe = observe
        self._returns: deque[float] = deque(maxlen=HISTORY)
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._time = 0.0
        self._history = ProgressHistory()
        self._exchange = ExchangeFigures()
        self._finite: set[str] = set()
        """Names of figures that have been numbers."""

    def read_line(self, line: str) -> RunMetrics | None:
        """Read one line of a log; None if it is not a learner's record."""
        record = parse_record(line)
        return self.add(record) if record is not None and record["l2r"] == Role.LEARNER else None

    def add(self, record: Mapping[str, Any]) -> RunMetrics:
        """Add one learner record."""
        if self._observe is not None:
            self._observe(record)
        # [min, mean, max] since the last record.
        lag = record.get("policy_lag")
        lags = [number(value) or 0.0 for value in (lag if isinstance(lag, list) and len(lag) == 3 else (0, 0, 0))]
        mean_return, eval_return = number(record.get("mean_return")), number(record.get("eval_return"))
        # Evaluation without exploration gives the better curve, if there is one.
        latest = mean_return if eval_return is None else eval_return
        if latest is not None:
            self._returns.append(latest)
        rate = number(record.get("env_steps_per_second")) or 0.0
        before, self._time = self._time, number(record.get("time")) or 0.0
        self._rates.append(rate)
        return RunMetrics(
            self._run,
            env_steps=integer(record.get("env_steps")) or 0,
            updates=integer(record.get("updates")) or 0,
            policy_version=integer(record.get("policy_version")) or 0,
            policy_lag=lags[1],
            policy_lag_max=lags[2],
            mean_return=mean_return,
            eval_return=eval_return,
            eval_progress=number(record.get("eval_progress")),
            env_steps_per_second=rate,
            updates_per_second=number(record.get("updates_per_second")) or 0.0,
            workers=integer(record.get("workers")) or 0,
            time=self._time,
            interval_seconds=max(0.0, self._time - before) if before else 0.0,
            device=text(record.get("device")),
            gpu_percent=number(record.get("gpu_percent"), MAX_COUNT),
            gpu_memory_bytes=number(record.get("gpu_memory_bytes"), MAX_COUNT),
            gpu_reserved_bytes=number(record.get("gpu_reserved_bytes"), MAX_COUNT),
            returns=tuple(self._returns),
            rates=tuple(self._rates),
            progress=self._history.add(self._figures(record, rate)),
            limit=text(record.get("limit")),
            checkpoint_error=text(record.get("checkpoint_error")),
            exchange=self._exchange_figures(record),
            bound_by=text(record.get("bound_by")),
            bound_share=number(record.get("bound_share")) or 0.0,
        )

    def _exchange_figures(self, record: Mapping[str, Any]) -> ExchangeFigures:
        before = self._exchange
        rates = [number(record.get(f"{name}_per_second"), MAX_COUNT) for name in _RATES]
        messages_in, bytes_in, messages_out, bytes_out = (rate or 0.0 for rate in rates)
        # Written after changes and at intervals: between two such records they are the same.
        listens, peers = _texts(record.get("listens")), _texts(record.get("peers"))
        self._exchange = ExchangeFigures(
            messages_in,
            bytes_in,
            messages_out,
            bytes_out,
            replay=_count(record, "replay"),
            inflight=_count(record, "inflight_transitions"),
            stale=_count(record, "stale"),
            evaluators=_count(record, "evaluators"),
            listens=before.listens if listens is None else listens,
            peers=before.peers if peers is None else peers,
            is_recorded=None not in rates,
        )
        return self._exchange

    def _figures(self, record: Mapping[str, Any], rate: float) -> LearnerFigures:
        # JSON has no NaN: a figure that was a number and is now null, or a loss that is null, is not finite.
        empty = [name for name, value in record.items() if value is None and name not in _NULLABLE]
        broken = tuple(name for name in empty if name in self._finite or name.endswith("_loss"))
        if len(self._finite) < _MOST_FIGURES:  # names come from inside the run: a hostile log may have millions
            self._finite.update(name for name, value in record.items() if number(value) is not None)
        mean_return, eval_return = number(record.get("mean_return")), number(record.get("eval_return"))
        return LearnerFigures(
            self._time,
            integer(record.get("env_steps")) or 0,
            integer(record.get("updates")) or 0,
            rate,
            number(record.get("idle_share")),
            eval_return if mean_return is None else mean_return,
            broken,
        )


def _count(record: Mapping[str, Any], name: str) -> int:
    return integer(record.get(name), MAX_COUNT) or 0


def _texts(value: object) -> tuple[str, ...] | None:
    return tuple(text(item) for item in value[:MOST_PEERS]) if isinstance(value, list) else None


async def newest(backend: Backend, run: str, learner: PodView) -> RunMetrics | None:
    """Return the newest metrics in the log of a run's learner; None if it has printed no record."""
    series, metrics = Series(run), None
    async with aclosing(backend.logs(learner, LogQuery(tail=2 * HISTORY))) as lines:
        async for line in lines:
            metrics = series.read_line(line.text) or metrics
    return metrics


def has_learner(snapshot: ClusterSnapshot, run: str) -> bool:
    """Return True if a run has a learner, which writes its metrics; also for an unknown run."""
    view = snapshot.run_named(run)
    return view is None or any(worker_set.role is Role.LEARNER for worker_set in view.sets)


def learner_of(snapshot: ClusterSnapshot, run: str) -> PodView:
    """Return the pod that prints the metric records of a run.

    Raises:
        NotFoundError: the run has no learner.
    """
    learner = next((pod for pod in snapshot.pods_of(run) if pod.role is Role.LEARNER), None)
    if learner is None:
        sentence = f"{run} has no learner whose records could be followed."
        raise NotFoundError(sentence, f"See `l2rtui metrics {run}`.")
    return learner


async def follow(
    backend: Backend,
    run: RunView,
    pod: PodView,
    observe: Callable[[Mapping[str, Any]], object] | None = None,
    turns: ReadingTurns | None = None,
    *,
    has_backlog: bool = True,
    at_present: Callable[[], object] | None = None,
) -> AsyncGenerator[RunMetrics, None]:
    """Yield the metrics after each record of a run's learner, until its pod is deleted.

    Args:
        observe: Called with each record.
        turns: Shared with the other streams of the program; None without other streams.
        has_backlog: Yield each record of the backlog, and not its newest alone. To whoever asks what is so now, one
            in the middle of a slow backlog looks like a stalled learner.
        at_present: Called once the backlog has been read, with or without a record.
    """
    series, turns = Series(run.name, observe), turns or ReadingTurns()
    lines_of_pod = backend.logs(pod, LogQuery(follow=True, tail=2 * HISTORY, seam=True))
    newest: RunMetrics | None = None
    is_live = has_backlog
    async with aclosing(turns.paced(lines_of_pod)) as lines:
        async for line in lines:
            if line.is_seam:
                if at_present is not None:
                    at_present()
                if newest is not None and not is_live:
                    yield newest
                is_live = True
            elif metrics := series.read_line(line.text):
                newest = metrics
                if is_live:
                    yield newest
    if newest is not None and not is_live:  # the log ended before it could be followed
        yield newest
