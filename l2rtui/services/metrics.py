"""The learner's numbers, read from its log: what works wherever logs can be read.

A metric record is one JSON line on standard output (``runtime.contract``). Records come from inside the run and are
not trusted: a field of another type than agreed is passed over.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from l2rtui.backends.base import Backend, LogQuery
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import Role
from l2rtui.errors import NotFoundError
from runtime.contract import METRIC_PREFIX

HISTORY = 240
"""Points that are kept of each series."""
_MAX_RECORD = 65_536


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Where the training of one run stands.

    Attributes:
        policy_lag, policy_lag_max: Versions between the policy that collected a sample and the newest one.
        mean_return, eval_return, eval_progress: None until an episode, or an evaluation, has ended.
        time: Of the record, seconds since the epoch.
        returns, rates: The latest points of eval (or training) return and of env steps a second, oldest first.
        update_rates, lags: The same of updates a second and of the policy lag.
    """

    run: str
    env_steps: int = 0
    updates: int = 0
    policy_version: int = 0
    policy_lag: float = 0.0
    policy_lag_max: float = 0.0
    mean_return: float | None = None
    eval_return: float | None = None
    eval_progress: float | None = None
    env_steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    workers: int = 0
    time: float = 0.0
    returns: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    update_rates: tuple[float, ...] = ()
    lags: tuple[float, ...] = ()


def parse_record(line: str) -> dict[str, Any] | None:
    """Give the metric record that a line holds, or None when it is another line."""
    if not line.startswith(METRIC_PREFIX) or len(line) > _MAX_RECORD:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("l2r"), str) else None


class Series:
    """Learner records in, RunMetrics out, with the history that sparklines need."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._returns: deque[float] = deque(maxlen=HISTORY)
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._update_rates: deque[float] = deque(maxlen=HISTORY)
        self._lags: deque[float] = deque(maxlen=HISTORY)

    def take(self, line: str) -> RunMetrics | None:
        """Read one line of a log; None when it is no learner's record."""
        record = parse_record(line)
        return self.add(record) if record is not None and record["l2r"] == Role.LEARNER else None

    def add(self, record: Mapping[str, Any]) -> RunMetrics:
        """Take one learner record."""
        lag = record.get("policy_lag")
        lags = [_number(one) or 0.0 for one in lag] if isinstance(lag, list) and len(lag) == 3 else [0.0, 0.0, 0.0]
        mean_return, eval_return = _number(record.get("mean_return")), _number(record.get("eval_return"))
        latest = mean_return if eval_return is None else eval_return
        if latest is not None:
            self._returns.append(latest)
        rate = _number(record.get("env_steps_per_second")) or 0.0
        self._rates.append(rate)
        self._lags.append(lags[1])
        self._update_rates.append(_number(record.get("updates_per_second")) or 0.0)
        return RunMetrics(
            self._run,
            env_steps=int(_number(record.get("env_steps")) or 0),
            updates=int(_number(record.get("updates")) or 0),
            policy_version=int(_number(record.get("policy_version")) or 0),
            policy_lag=lags[1],
            policy_lag_max=lags[2],
            mean_return=mean_return,
            eval_return=eval_return,
            eval_progress=_number(record.get("eval_progress")),
            env_steps_per_second=rate,
            updates_per_second=self._update_rates[-1],
            workers=int(_number(record.get("workers")) or 0),
            time=_number(record.get("time")) or 0.0,
            returns=tuple(self._returns),
            rates=tuple(self._rates),
            update_rates=tuple(self._update_rates),
            lags=tuple(self._lags),
        )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number and math.isfinite(value) else None


async def latest(backend: Backend, run: str) -> RunMetrics:
    """Read where a run stands now.

    Raises:
        NotFoundError: there is no such run, it has no learner, or that has printed no record yet.
    """
    snapshot = await backend.snapshot()
    if snapshot.run_named(run) is None:
        raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.")
    series, found = Series(run), None
    async for line in backend.logs(learner_of(snapshot, run), LogQuery(tail=2 * HISTORY)):
        found = series.take(line.text) or found
    if found is None:
        raise NotFoundError(
            f"The learner of {run} has printed no metric record yet.", f"See `l2rtui logs {run}/learner`."
        )
    return found


def has_learner(snapshot: ClusterSnapshot, run: str) -> bool:
    """Whether the metrics of a run are those of a learner; so it is said of a run that is not there, too."""
    view = snapshot.run_named(run)
    return view is None or any(one.role is Role.LEARNER for one in view.sets)


def learner_of(snapshot: ClusterSnapshot, run: str) -> PodView:
    """Give the pod that prints the metric records of a run.

    Raises:
        NotFoundError: the run has none, as every job.
    """
    learner = next((pod for pod in snapshot.pods_of(run) if pod.role is Role.LEARNER), None)
    if learner is None:
        raise NotFoundError(
            f"{run} has no learner whose records could be followed.", f"See `l2rtui metrics {run}`."
        )
    return learner


async def follow(backend: Backend, run: RunView, pod: PodView) -> AsyncGenerator[RunMetrics, None]:
    """Give the metrics after each record of a run's learner pod, until the pod is gone."""
    series = Series(run.name)
    async with aclosing(backend.logs(pod, LogQuery(follow=True, tail=2 * HISTORY))) as lines:
        async for line in lines:
            if metrics := series.take(line.text):
                yield metrics
