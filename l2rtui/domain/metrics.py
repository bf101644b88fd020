"""Metrics of runs and pods, decoded from metric records (``runtime.base.contract``), and progress over time.

``domain.runstatus`` derives the state of a run's learning from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from msgspec import Struct

from runtime.base.alert_rules import ReturnTrend

OLD_SECONDS: Final = 15.0
"""Age from which a record no longer describes the current state, unless its writer has a longer interval."""
_OLD_INTERVALS: Final = 3.0


def is_old(age_seconds: float, interval_seconds: float = 0.0) -> bool:
    """Return True if a record is older than ``OLD_SECONDS`` and than three of its writer's intervals."""
    return age_seconds > max(OLD_SECONDS, _OLD_INTERVALS * interval_seconds)


WORKERS_BOUND: Final = "workers"
"""``RunMetrics.bound_by`` of a learner that waits for data."""


# --- progress over time ----------------------------------------------------------------------------------------
WAITS_SHARE: Final = 0.5
"""Idle share from which a learner counts as waiting for data: it could learn twice as fast."""
_WAITS_NO_MORE: Final = 0.4
"""Idle share below which it no longer waits. Lower than ``WAITS_SHARE`` (hysteresis), so that the state does not
flap.
"""
_SLOW: Final = 0.5
"""Fraction of its own median below which a rate is slow; ``_SLOW_NO_MORE`` ends that state."""
_SLOW_NO_MORE: Final = 0.7
_RECENT: Final = 5
"""Records whose median is the current rate: on-policy methods write in bursts, where single records are not
typical.
"""
_IDLE_RECORDS: Final = 3
_USUAL: Final = 150
"""Records whose median is the usual rate: five minutes of a learner, which writes every two seconds."""
_LEAST_USUAL: Final = 30
"""Records that are needed before the usual rate is known."""
_GAPS: Final = 9
_MEDIANS: Final = 5.0
"""Median intervals without a record that count as silence."""
_LONGEST: Final = 3.0
"""The same, in units of the longest recent interval, so that silence of a regular writer is detected earlier. With
this limit only, detection would take minutes after each outage.
"""


class LearnerProgress(Struct, frozen=True):
    """Learner's progress over its latest records. All times come from its records; 0 means never.

    Attributes:
        interval_seconds: Median time between two records. longest_seconds: Longest recent time between two records.
        update_gap_seconds: Median time between two records with more updates than the one before.
        updated_at, stepped_at: Time of the newest record that reports more updates, and more env steps, than
            before.
        idle_share: Mean share of time spent waiting for data, over three records; None if unknown.
        waits_since: Time since which it waits for data.
        usual_rate: Median of its env steps per second while it learns; None until it has written enough records.
        slow_since: Time since which the rate is far below the usual rate.
        trend: Trend of its return; None before the first return.
        broken: Names of figures that are not finite. broken_since: Time since which they are not.
    """

    interval_seconds: float = 0.0
    update_gap_seconds: float = 0.0
    updated_at: float = 0.0
    stepped_at: float = 0.0
    idle_share: float | None = None
    waits_since: float = 0.0
    rate: float = 0.0
    usual_rate: float | None = None
    slow_since: float = 0.0
    trend: ReturnTrend | None = None
    broken: tuple[str, ...] = ()
    broken_since: float = 0.0
    longest_seconds: float = 0.0

    @property
    def silence_seconds(self) -> float:
        """Time without a record, if it is too long for the writer's pace; 0 before its second record."""
        return min(_MEDIANS * self.interval_seconds, _LONGEST * self.longest_seconds)


class LearnerFigures(Struct, frozen=True):
    """Figures of one learner record from which its progress is derived.

    Attributes:
        mean_return: Return of training episodes, which are more frequent and vary less than evaluations.
        broken: Names of figures that are not finite.
    """

    time: float
    env_steps: int
    updates: int
    rate: float
    idle_share: float | None = None
    mean_return: float | None = None
    broken: tuple[str, ...] = ()


class ProgressHistory:
    """Derives the progress of a learner from its records, in bounded memory."""

    def __init__(self) -> None:
        self._progress = LearnerProgress()
        self._before: LearnerFigures | None = None
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._update_gaps: deque[float] = deque(maxlen=_GAPS)
        self._idle: deque[float] = deque(maxlen=_IDLE_RECORDS)
        self._rates: deque[float] = deque(maxlen=_USUAL)

    def add(self, figures: LearnerFigures) -> LearnerProgress:
        """Add one record and return the progress."""
        before, old, now = self._before, self._progress, figures.time
        self._before = figures
        updated_at, stepped_at = old.updated_at, old.stepped_at
        if before is not None and now > before.time:
            self._gaps.append(now - before.time)
            if figures.env_steps > before.env_steps:
                stepped_at = now
            if figures.updates > before.updates:
                if updated_at:
                    self._update_gaps.append(now - updated_at)
                updated_at = now
                # Before its first update a learner collects at full speed: that is not its usual rate.
                self._rates.append(figures.rate)
        idle, waits_since = self._waiting(figures)
        rate, usual, slow_since = self._speed(figures)
        self._progress = LearnerProgress(
            _median(self._gaps) if self._gaps else 0.0,
            _median(self._update_gaps) if self._update_gaps else 0.0,
            updated_at,
            stepped_at,
            idle,
            waits_since,
            rate,
            usual,
            slow_since,
            _trend(old.trend, figures),
            figures.broken,
            (old.broken_since or now) if figures.broken else 0.0,
            max(self._gaps, default=0.0),
        )
        return self._progress

    def _waiting(self, figures: LearnerFigures) -> tuple[float | None, float]:
        if figures.idle_share is None:
            return None, 0.0
        self._idle.append(figures.idle_share)
        share = sum(self._idle) / len(self._idle)
        since = self._progress.waits_since
        is_waiting = share >= (_WAITS_NO_MORE if since else WAITS_SHARE)
        return share, (since or figures.time) if is_waiting else 0.0

    def _speed(self, figures: LearnerFigures) -> tuple[float, float | None, float]:
        recent = [self._rates[-number] for number in range(1, min(_RECENT, len(self._rates)) + 1)]
        if len(self._rates) < _LEAST_USUAL:
            return figures.rate, None, 0.0
        rate, usual, since = _median(recent), _median(self._rates), self._progress.slow_since
        is_slow = rate < usual * (_SLOW_NO_MORE if since else _SLOW)
        return rate, usual, (since or figures.time) if is_slow else 0.0


def _median(values: Collection[float]) -> float:
    """Return the median. Importing ``statistics`` would delay the first frame by ten milliseconds."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _trend(before: ReturnTrend | None, figures: LearnerFigures) -> ReturnTrend | None:
    value = figures.mean_return
    if value is None:
        return before
    return before.after(value, figures.time) if before else ReturnTrend(value, figures.time, figures.time)


MOST_PEERS: Final = 256
"""Maximum number of peers named in a learner record."""


class ExchangeFigures(Struct, frozen=True):
    """Exchange figures of a learner with its peers, from its newest record.

    Attributes:
        messages_in, bytes_in, messages_out, bytes_out: Per second.
        replay: Transitions in its store. inflight: Transitions granted to workers that have not arrived.
        stale: Total number of segments that arrived too old to be used.
        evaluators: Number that is connected now.
        listens: Addresses of its sockets, data and model; empty if unknown.
        peers: Names of the connected pods, sorted; None if unknown.
        is_recorded: The record has exchange figures; records of earlier runtimes have none.
    """

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0
    replay: int = 0
    inflight: int = 0
    stale: int = 0
    evaluators: int = 0
    listens: tuple[str, ...] = ()
    peers: tuple[str, ...] | None = None
    is_recorded: bool = False


class RunMetrics(Struct, frozen=True):
    """Learning state of one run, with the history that sparklines draw.

    Attributes:
        policy_lag, policy_lag_max: Versions between the policy that collected a sample and the newest one.
        mean_return, eval_return, eval_progress: None until an episode, or an evaluation, has ended.
        time: Time of the record, seconds since the epoch. interval_seconds: Time since the previous record; 0 for
            the first.
        device: Where it computes (``cpu``, ``cuda:0 NVIDIA H100 80GB HBM3``); empty if unknown.
        gpu_percent, gpu_memory_bytes: Utilisation of that GPU, and its memory in use by all processes; None if
            unknown.
        gpu_reserved_bytes: Memory of that GPU that the learner itself has reserved; None if unknown.
        returns, rates: The latest points of eval (or training) return and of env steps per second, oldest first.
        progress: Progress over the latest records.
        limit: Sentence on a limit of the run that is near or reached; otherwise empty.
        checkpoint_error: Why the latest checkpoint could not be written; empty once a checkpoint was written.
        exchange: Figures of its exchange with workers and evaluators.
        bound_by: What its time mostly goes to (``runtime.rl.roles.metrics_log.bound_by``); empty if unknown.
            bound_share: That share of it.
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
    interval_seconds: float = 0.0
    device: str = ""
    gpu_percent: float | None = None
    gpu_memory_bytes: float | None = None
    gpu_reserved_bytes: float | None = None
    returns: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    progress: LearnerProgress = LearnerProgress()
    limit: str = ""
    checkpoint_error: str = ""
    exchange: ExchangeFigures = ExchangeFigures()
    bound_by: str = ""
    bound_share: float = 0.0

    @property
    def reported_return(self) -> float | None:
        """Evaluation return if there is one, otherwise the mean return of training episodes."""
        return self.mean_return if self.eval_return is None else self.eval_return


class PodMetrics(Struct, frozen=True):
    """Newest metric record of one pod.

    Attributes:
        kind: Kind of the record: ``worker``, ``evaluator``, ``elastic``, ``ps``, ``step``, ``fetch``, or another.
        rate: Environment steps per second; None if the record has no rate.
        simulator: State of its worst simulator; empty if it drives none.
        simulator_restarts, simulator_fps, simulator_error: Over all its simulators.
        simulator_restarted: Time of the first record that counts the latest restart; 0 if no restart was seen.
        rank, world_size: Of the process group, as in ``torch.distributed``; None outside of a group.
        gpu_percent: Utilisation of its GPU; None if unknown. gpu_memory_bytes: Memory in use on that GPU.
        step: Current activity: state of a job step or of an elastic process; empty if unknown.
        round: Number of the rendezvous round of an elastic job; None elsewhere.
        has_steps: It counts steps of training, so that its writer writes regularly.
        interval_seconds: Time between two records of its writer, the longest of the latest; 0 after the first.
        step_seconds: Time of the last step of its environment; all three are 0 while steps take less than a second.
        longest_step_seconds: Of the longest. stepping_seconds: of the current one so far.
        environment_share: Share of a worker's time in its environment. waiting_share: without credit or policy.
            None if its record has none.
    """

    kind: str
    time: float = 0.0
    rate: float | None = None
    simulator: str = ""
    simulator_restarts: int = 0
    simulator_fps: float = 0.0
    simulator_error: str = ""
    simulator_restarted: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    step: str = ""
    gpu_percent: float | None = None
    gpu_memory_bytes: float | None = None
    round: int | None = None
    has_steps: bool = False
    interval_seconds: float = 0.0
    step_seconds: float = 0.0
    longest_step_seconds: float = 0.0
    stepping_seconds: float = 0.0
    environment_share: float | None = None
    waiting_share: float | None = None

    @property
    def is_worth_following(self) -> bool:
        """True if screens show later records of this pod, so that an open log stream is worthwhile."""
        return bool(self.simulator or self.step) or self.rank is not None or self.gpu_percent is not None


class RunBound(Struct, frozen=True):
    """Part that bounds the speed of a run, and its share of time: of the learner, or of the workers it waits for.

    Attributes:
        part: ``update``, ``network thread``, ``workers``, ``environment``, or ``link``.
    """

    part: str
    share: float

    @classmethod
    def of(cls, learner: RunMetrics | None, pods: Iterable[PodMetrics]) -> RunBound | None:
        """Derive it from the newest records of a run; None if its learner's record does not say it."""
        if learner is None or not learner.bound_by:
            return None
        if learner.bound_by != WORKERS_BOUND:
            return cls(learner.bound_by, learner.bound_share)
        shares = [(pod.environment_share, pod.waiting_share) for pod in pods]
        complete = [(steps, waits) for steps, waits in shares if steps is not None and waits is not None]
        if not complete:
            return cls(WORKERS_BOUND, learner.bound_share)
        environment, waiting = (sum(column) / len(complete) for column in zip(*complete, strict=True))
        # The learner waits for them and they for it: the time goes to what is between them.
        parts = {"link": waiting, "environment": environment, WORKERS_BOUND: max(0.0, 1.0 - waiting - environment)}
        return cls(*max(parts.items(), key=lambda item: item[1]))

    @property
    def sentence(self) -> str:
        """Say how the run would become faster."""
        percent, word = round(100 * self.share), self.part
        match self.part:
            case "update":
                return (
                    f"{word}, {percent}% of the learner's time: a faster device, or fewer updates for an env step"
                )
            case "network thread":
                return f"{word}, {percent}% of a core: longer segments, or more copies in each worker"
            case "environment":
                return f"{word}, {percent}% of the time: more workers, or a faster environment"
            case "link":
                return f"{word}, workers wait {percent}% of their time: longer segments, or a nearer learner"
            case _:
                return f"{word}, {percent}% of the time: more of them, or more copies in each"
