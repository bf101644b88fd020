"""Status of a run and state of its learning, each as a word and a sentence. Used by the app and the commands.

The status describes the pods: are they running? The learning state describes the work: does it make progress, and
if not, why, and what is the next step? Both are derived only from pods, metric records and the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from l2rtui.domain.kinds import DECISIVE_ROLES
from l2rtui.domain.metrics import MOST_PEERS, LearnerProgress, PodMetrics, RunMetrics
from l2rtui.domain.quantity import age, counted
from l2rtui.domain.snapshot import LOST, SCALED, PodView, RunView, has_finished
from l2rtui.domain.status import EVICTIONS, QUEUED, STOPPED, Level, Phase, Status
from l2rtui.domain.workload import Kind, Role
from runtime.base.alert_rules import FALLEN_SECONDS
from runtime.base.contract import EXIT_ENVIRONMENT, EXIT_NOT_FINITE
from runtime.base.limits import ENDED_BY


def replicas_of_run(run: RunView) -> int:
    """Total number of replicas of a run."""
    return sum(worker_set.replicas for worker_set in run.sets)


def run_status(run: RunView, pods: Sequence[PodView]) -> Status:
    """Derive the status from a run's own reason and the states of its pods.

    Args:
        pods: Pods of the run.
    """
    if run.is_terminating:
        return Status("Terminating", Level.WAIT, f"stopping, {counted(len(pods), 'pod')} left")
    if run.reason == QUEUED:
        return Status(QUEUED, Level.WAIT, run.message)
    # The backend's own reason, such as Unsupervised, explains more than the state of the pods.
    if run.reason and run.reason != SCALED:
        level = Level.BAD if run.reason == LOST else Level.WARN
        return Status(run.reason, level, run.message or run.reason)
    # A controller keeps an evicted pod in addition to its replacement.
    alive = {(pod.set_name, pod.index) for pod in pods if not pod.phase.is_over}
    failing = [
        pod
        for pod in pods
        if (pod.is_failing or pod.reason == STOPPED)
        and not (pod.reason in EVICTIONS and (pod.set_name, pod.index) in alive)
    ]
    if failing:
        others = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        return Status("Degraded", Level.BAD, f"{_state_of(failing[0])}{others}")
    ready, replicas = sum(pod.ready for pod in pods), replicas_of_run(run)
    # Workers that wait for a learner that has succeeded are not missing: the run is complete.
    over = sum(pod.phase.is_over for pod in pods)
    is_complete = has_finished(run, pods) or (pods and over == len(pods))
    if run.reason == SCALED and not is_complete:
        return Status(SCALED, Level.WARN, f"{run.message}; {_pods_run(ready)}")
    if ready >= replicas > 0:
        return Status("Running", Level.OK, f"{ready}/{ready} running")
    return (
        Status("Completed", Level.DONE, "has finished") if is_complete else _incomplete(replicas, ready, over, pods)
    )


def _incomplete(replicas: int, ready: int, over: int, pods: Sequence[PodView]) -> Status:
    """Return the status of a run that lacks ready pods, and has not finished.

    Args:
        ready: Number of ready pods. over: Number of pods that have ended.
    """
    if unknown := [pod for pod in pods if pod.phase is Phase.UNKNOWN]:
        others = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        return Status("Unknown", Level.WARN, f"{_state_of(unknown[0])}{others}")
    if ready + over >= replicas > 0:
        return Status("Running", Level.OK, f"{_pods_run(ready)}, {over} {'has' if over == 1 else 'have'} finished")
    sentence = f"{ready} of {counted(replicas, 'pod')} ready"
    stuck = next((pod for pod in pods if pod.phase is Phase.PENDING and pod.status.level is Level.WARN), None)
    if stuck is None:
        return Status("Starting", Level.WAIT, sentence)
    # It may wait forever: for a missing image, or a node that never joins.
    return Status(
        "Starting",
        Level.WARN,
        f"{sentence}; {stuck.name} waits: {stuck.reason}{': ' if stuck.message else ''}{stuck.message}",
    )


# --- learning --------------------------------------------------------------------------------------------------
LEARNS: Final = "learns"
"""Reason of a live run that needs no attention."""
STARTING_SECONDS: Final = 300.0
"""Time after its start within which a learner may have no update: it loads, compiles and fills its replay."""
SILENT_SECONDS: Final = 15.0
"""Minimum time without a record or progress that counts as silence; slow writers get more time, by their own
pace.
"""
_INTERVALS: Final = 5.0
"""Number of usual intervals without progress that count as silence."""
PEER_SILENT_SECONDS: Final = 60.0
"""The same for elastic nodes and parameter servers, which evaluate and save between two records."""
RESTARTED_SECONDS: Final = 30.0
"""Time for which a restart of a simulator is reported: several records, long enough to be noticed."""
LATE_WORKER_SECONDS: Final = 12.5
"""Age of a worker's record that counts as silence while its learner waits: a worker writes every ten seconds."""
MUTE_WORKER_SECONDS: Final = 90.0
"""Time after its start within which a worker may have no record: a simulator may take a minute to start."""
_EVALUATOR_INTERVALS: Final = 3.0
"""Time without a record of an evaluator that counts, in its own intervals: an evaluation may take minutes."""
FRESH_SECONDS: Final = 8.0
"""Age up to which a learner's record proves that it waits now. An older record may come from a learner that
stopped. Its workers then stop too, and their next records, which come every ten seconds, would look like the cause.
"""
SLOW_STEP_SECONDS: Final = 5.0
"""Duration of an environment's step that is shown where its learner waits."""
HUNG_STEP_SECONDS: Final = 60.0
_HUNG_STEPS: Final = 5.0
"""Factor of a worker's own longest step after which the current step counts as hung."""
_MOST_NAMED: Final = 3
"""Maximum number of culprits named in a sentence; the others are counted."""


class Learning(StrEnum):
    """State of the learning of a run."""

    STARTING = "starting"
    LIVE = "live"
    SLOW = "slow"
    STARVED = "starved"
    STALLED = "stalled"
    DIVERGED = "diverged"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"


_LEARNING_LEVELS: Final = {
    Learning.STARTING: Level.WAIT,
    Learning.LIVE: Level.OK,
    Learning.SLOW: Level.WARN,
    Learning.STARVED: Level.WARN,
    Learning.STALLED: Level.BAD,
    Learning.DIVERGED: Level.BAD,
    Learning.DONE: Level.DONE,
    Learning.FAILED: Level.BAD,
    Learning.UNKNOWN: Level.WAIT,
}


LOADING: Final = "loading metric records"
"""Reason of an unknown state while the log of a learner is read for the first time."""


class LearningState(Struct, frozen=True):
    """State of the learning of a run, with its cause.

    Attributes:
        since: Seconds since the epoch; 0 if unknown.
        reason: One sentence with cause and next step, without the name of the run.
    """

    state: Learning
    since: float
    reason: str

    @property
    def level(self) -> Level:
        """Meaning for colour and glyph."""
        return _LEARNING_LEVELS[self.state]

    @property
    def word(self) -> str:
        """Its word on a screen: what is unknown only because records are still being read is ``loading``."""
        return "loading" if self.reason == LOADING else str(self.state)

    @property
    def is_worth_explaining(self) -> bool:
        """True where the records of other pods may name the cause."""
        return self.state in (Learning.STARTING, Learning.LIVE, Learning.SLOW, Learning.STARVED)

    @property
    def is_fault(self) -> bool:
        """True if the run needs attention."""
        return self.level in (Level.WARN, Level.BAD)

    @property
    def has_stopped(self) -> bool:
        """True if the run does not learn although its pods run; a slow run still learns."""
        return self.state in (Learning.STALLED, Learning.STARVED, Learning.DIVERGED)


class RunReports(Struct, frozen=True):
    """Metric records of a run, as far as they could be read.

    Attributes:
        learner: Of its learner; None without a record. learner_age: seconds since the newest arrived.
        pods: Newest record of its pods by uid. ages: seconds since these arrived.
        unseen: Reason why the current state is unknown, such as a lost connection; empty where it is.
        unseen_seconds: Time for which.
        read_pods: Uids of pods whose log was read: without a record there, they have printed none.
        is_learner_read: False while the log of its learner is still being read for the first time.
    """

    learner: RunMetrics | None = None
    learner_age: float = 0.0
    pods: Mapping[str, PodMetrics] = field(default_factory=lambda: MappingProxyType({}))
    ages: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    unseen: str = ""
    unseen_seconds: float = 0.0
    read_pods: AbstractSet[str] = frozenset()
    is_learner_read: bool = True


NO_REPORTS: Final = RunReports()


def learning_state(
    run: RunView, pods: Sequence[PodView], reports: RunReports, now: float, before: LearningState | None = None
) -> LearningState:
    """Derive the state of the learning of a run from its pods, its records and the time.

    Args:
        pods: Pods of the run.
        now: Seconds since the epoch.
        before: The previous state; its ``since`` is kept as long as the state does not change.
    """
    state = _by_pods(run, pods, reports, now) or _by_records(run, pods, reports, now)
    if state.state is Learning.STARTING:  # a restarted learner looks new even if it has just failed
        state = _not_finite(_centre(run, pods), now) or state
    if before is not None and before.state is state.state:
        return replace(state, since=before.since)
    return state


def _by_pods(run: RunView, pods: Sequence[PodView], reports: RunReports, now: float) -> LearningState | None:
    """Return the state if the pods determine it; None if the records are needed."""
    if reports.unseen:
        sentence = f"cannot be seen: {reports.unseen}"
        return LearningState(Learning.UNKNOWN, now - reports.unseen_seconds, sentence)
    if run.is_terminating:
        return LearningState(Learning.UNKNOWN, now, "stopping")
    if run.reason == QUEUED:
        return LearningState(Learning.STARTING, run.created or now, run.message)
    if has_finished(run, pods) or (pods and all(pod.phase is Phase.SUCCEEDED for pod in pods)):
        return LearningState(Learning.DONE, now, "has finished" + _limit_reached(run, pods, reports))
    centre = _centre(run, pods)
    if (failed := _failed(run, pods, centre, now)) is not None:
        return failed
    # Its records would seem to stop as well: if they are not stored, the learner is not to blame.
    if run.reason and run.reason not in _HARMLESS:
        return LearningState(Learning.UNKNOWN, run.silent_since or now, run.message or run.reason)
    if any(pod.ready for pod in centre):
        return None
    lost = next((pod for pod in centre if pod.phase is Phase.UNKNOWN), None)
    if lost is not None:
        return LearningState(Learning.UNKNOWN, now, f"{_state_of(lost)}: see `l2rtui nodes`")
    first = next((pod for pod in centre if not pod.phase.is_over), None)
    sentence = (
        f"{first.name} {first.status.sentence}"
        if first is not None
        else run.message or "has no pod that learns yet"
    )
    if first is not None and first.reason == STOPPED:
        return LearningState(Learning.STALLED, now, sentence)
    return LearningState(Learning.STARTING, run.created or now, sentence)


def _failed(run: RunView, pods: Sequence[PodView], centre: Sequence[PodView], now: float) -> LearningState | None:
    """Return the state of a run that cannot learn any further; otherwise None."""
    failing = [pod for pod in centre if pod.is_failing]
    # A group continues with the remaining pods; if a learner or a step fails, its run ends.
    if failing and (run.kind not in _GROUPS or len(failing) == len(centre)):
        return _not_finite(failing[:1], now) or LearningState(Learning.FAILED, now, _ended(failing[0]))
    if run.reason == LOST:
        return LearningState(Learning.FAILED, now, run.message)
    if run.kind is Kind.LEARNER_WORKERS and (pod := _with_environment_fault(pods)) is not None:
        return LearningState(Learning.FAILED, now, f"its environment is at fault: {_ended(pod)}")
    return None


def _not_finite(centre: Sequence[PodView], now: float) -> LearningState | None:
    """Return the state of a run whose learner ended with non-finite numbers; otherwise None."""
    pod = next((pod for pod in centre if pod.exit_code == EXIT_NOT_FINITE), None)
    if pod is None:
        return None
    sentence = "its numbers are no longer finite: lower the learning rate, or bound the rewards"
    return LearningState(Learning.DIVERGED, now, f"{sentence}; {_ended(pod)}")


def _with_environment_fault(pods: Sequence[PodView]) -> PodView | None:
    """Return a pod whose environment breaks its interface: restarts cannot help until its code changes."""
    return next((pod for pod in pods if pod.exit_code == EXIT_ENVIRONMENT and not pod.is_terminating), None)


def _ended(pod: PodView) -> str:
    return f"{_state_of(pod)}: see `l2rtui logs {pod.name}`"


def _state_of(pod: PodView) -> str:
    """Return name and state of a pod as a clause, to which more can be added."""
    return f"{pod.name} {pod.status.sentence}".rstrip(".")


def _limit_reached(run: RunView, pods: Sequence[PodView], reports: RunReports) -> str:
    """Return the limit that has ended a run, after a comma; empty without one, or if no report names it."""
    notes = [pod.message for pod in _centre(run, pods)]
    if reports.learner is not None:
        notes.append(reports.learner.limit)
    return next((f", {note}" for note in notes if note.startswith(ENDED_BY)), "")


_HARMLESS: Final = frozenset(("Warning", SCALED))
"""Reasons of a run that is visible and supervised nevertheless."""
_GROUPS: Final = frozenset((Kind.ELASTIC, Kind.PARAMETER_SERVER))


def _centre(run: RunView, pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods that learn; in a job all pods do."""
    roles = {role for kind, role in DECISIVE_ROLES.items() if kind == run.kind}
    return [pod for pod in pods if not roles or pod.role in roles]


LOST_RESTARTS: Final = 3
"""Number of restarts after which a repeatedly failing pod is not expected to recover."""


def lost_pod(run: RunView, pods: Sequence[PodView]) -> PodView | None:
    """Return the pod because of which a run can no longer finish; None while it can.

    That is a pod that learns, has failed permanently, and has no successor: a group is lost with the last of them.
    One whose environment breaks its interface is lost whatever its role.
    """
    if run.kind is Kind.LEARNER_WORKERS and (pod := _with_environment_fault(pods)) is not None:
        return pod
    centre = _centre(run, pods)
    # A controller may leave a failed pod behind after replacing it.
    alive = {(pod.set_name, pod.index) for pod in centre if not _has_failed_for_good(pod)}
    lost = [pod for pod in centre if (pod.set_name, pod.index) not in alive]
    if not lost or (run.kind in _GROUPS and len(lost) < len(centre)):
        return None
    return lost[0]


def _has_failed_for_good(pod: PodView) -> bool:
    return pod.is_failing and (pod.phase is Phase.FAILED or pod.restarts >= LOST_RESTARTS)


def _by_records(run: RunView, pods: Sequence[PodView], reports: RunReports, now: float) -> LearningState:
    learner = next((pod for pod in pods if pod.role is Role.LEARNER and pod.ready), None)
    if learner is None:
        return _of_peers(run, pods, reports, now)
    running = now - (learner.started or now)
    metrics = reports.learner
    if metrics is None:
        if running < STARTING_SECONDS:
            sentence = "its learner has printed no metric record yet"
            if learner.restarts and learner.message:  # what ended it may end it again
                sentence = f"{sentence}; it starts again after: {learner.message}"
            return LearningState(Learning.STARTING, now - running, sentence)
        if not reports.is_learner_read:
            return LearningState(Learning.UNKNOWN, now - running, LOADING)
        sentence = f"no metric record of its learner could be read: see `l2rtui logs {learner.name}`"
        return LearningState(Learning.UNKNOWN, now - running, sentence)
    return _of_learner(run, learner, _Look(metrics, reports.learner_age, running, now), pods, reports)


class _Look(Struct, frozen=True):
    """Learner's metrics at one moment; ``at`` converts times of its clock to this machine's clock."""

    metrics: RunMetrics
    age: float
    running: float
    now: float

    @property
    def progress(self) -> LearnerProgress:
        return self.metrics.progress

    @property
    def patience(self) -> float:
        """Seconds without progress that count as silence for this learner."""
        gap = max(self.progress.interval_seconds, self.progress.update_gap_seconds)
        return max(SILENT_SECONDS, _INTERVALS * gap)

    @property
    def waits(self) -> bool:
        """True if a recent record says that it waits for data."""
        is_fresh = self.age <= max(FRESH_SECONDS, 1.5 * self.progress.interval_seconds)
        return is_fresh and bool(self.progress.waits_since)

    def at(self, time: float) -> float:
        """Convert a time of its records to this machine's clock."""
        return self.now - self.age - (self.metrics.time - time)

    @property
    def has_updated(self) -> bool:
        """True if there was an update since its pod started."""
        return bool(self.progress.updated_at) and self.at(self.progress.updated_at) > self.now - self.running


def _of_learner(
    run: RunView, learner: PodView, look: _Look, pods: Sequence[PodView], reports: RunReports
) -> LearningState:
    progress, now = look.progress, look.now
    if progress.broken:
        names = ", ".join(progress.broken[:_MOST_NAMED])
        sentence = f"{names} is not a finite number: lower the learning rate and launch it again"
        return LearningState(Learning.DIVERGED, look.at(progress.broken_since), sentence)
    if look.age > max(SILENT_SECONDS, progress.silence_seconds):
        if not look.has_updated and look.running < STARTING_SECONDS:
            return LearningState(Learning.STARTING, now - look.running, "its learner has made no update yet")
        sentence = f"its learner has had no output for {age(look.age)}: see its log; once killed, it resumes"
        return LearningState(Learning.STALLED, now - look.age, sentence)
    if not look.has_updated and _is_starting(look):
        sentence = f"collects its first data: {look.metrics.env_steps:,} env steps, no update yet"
        _, named = _culprits(pods, reports, now, is_waiting=False)
        workers = [pod for pod in pods if pod.role is Role.WORKER]
        if workers and all(_fails_again(pod, reports) for pod in workers):
            see = f"see `l2rtui logs {run.name}/{_workers_of(run)}`"
            return LearningState(Learning.STARVED, now - look.running, f"gets no data: {named}; {see}")
        slow = f"; {named}" if named and _slow_workers(pods, reports) else ""
        return LearningState(Learning.STARTING, now - look.running, sentence + slow)
    idle = now - look.at(progress.updated_at) if look.has_updated else look.running
    culprits = _culprits(pods, reports, now, is_waiting=look.waits)
    if (progress.waits_since or idle > look.patience) and _slow_workers(pods, reports):
        sentence = f"{culprits[1]}; its environment sets the pace, and nothing is lost"
        return LearningState(Learning.SLOW, now - idle, sentence)
    return _of_pace(
        run, learner, look, idle, culprits, _silent_evaluator(pods, reports, now) or _restarted(pods, reports)
    )


def _is_starting(look: _Look) -> bool:
    """True while a learner without an update is young or still collects: filling a large replay may take an
    hour.
    """
    is_collecting = look.now - look.at(look.progress.stepped_at) <= look.patience
    return look.running < STARTING_SECONDS or is_collecting


def _of_pace(
    run: RunView,
    learner: PodView,
    look: _Look,
    idle: float,
    culprits: tuple[str, str],
    blemish: str,
) -> LearningState:
    """Return the state of a learner that reports, judged by its pace.

    Args:
        idle: Seconds since its last update.
        culprits: Number of workers that send nothing as text, and their names with causes; empty texts for none.
        blemish: Sentence about a silent evaluator or a restarted simulator; empty without one.
    """
    progress = look.progress
    is_slow, has_stopped = bool(progress.slow_since), idle > look.patience
    counted_culprits, named = culprits
    see = f"see `l2rtui logs {run.name}/{_workers_of(run)}`"
    waits = f"waits for data {round(100 * (progress.idle_share or 0.0))}% of its time"
    # A fast learner with few workers always waits: this is not a fault.
    if progress.waits_since and (named or has_stopped or is_slow):
        cause = f"{counted_culprits} ({named})" if named else "its workers send little or none"
        return LearningState(Learning.STARVED, look.at(progress.waits_since), f"{waits}: {cause}; {see}")
    if has_stopped:
        sentence = f"has made no update for {age(idle)} though it reports: see `l2rtui logs {learner.name}`"
        return LearningState(Learning.STALLED, look.now - idle, sentence)
    trend = progress.trend
    if trend is not None and trend.fallen_since and look.metrics.time - trend.fallen_since >= FALLEN_SECONDS:
        sentence = (
            f"its return fell from {trend.best or 0.0:.4g} to {trend.level:.4g}: resume an earlier checkpoint"
        )
        return LearningState(Learning.DIVERGED, look.at(trend.fallen_since), sentence)
    if is_slow:
        cause = f"{counted_culprits} ({named}); {see}" if named else "see its workers, and other load on its node"
        usual = f"{round(progress.rate):,} of its usual {round(progress.usual_rate or 0):,} env steps/s"
        return LearningState(Learning.SLOW, look.at(progress.slow_since), f"{usual}: {cause}")
    error = look.metrics.checkpoint_error
    lost = f"its last checkpoint could not be written ({error}): free room, it is tried again" if error else ""
    culprit = f"{counted_culprits} ({named}): {see}" if named else ""
    # The worst first. Waiting comes last: with few workers a learner always waits.
    if fault := lost or culprit or blemish:
        live = f"learns, but {fault}"
    else:
        live = f"learns; {waits}: more workers would speed it up" if progress.waits_since else LEARNS
    if look.metrics.limit:
        live = f"{look.metrics.limit}; {live}"
    return LearningState(Learning.LIVE, look.now - look.running, live)


def _workers_of(run: RunView) -> str:
    """Name of the run's first set of workers."""
    return next((view.name for view in run.sets if view.role is Role.WORKER), "")


def _culprits(pods: Sequence[PodView], reports: RunReports, now: float, *, is_waiting: bool) -> tuple[str, str]:
    """Return the number of workers that send nothing, and their names with the cause; empty texts for none."""
    workers = [pod for pod in pods if pod.role is Role.WORKER]
    causes = [(pod.name, cause) for pod in workers if (cause := _cause(pod, reports, now, is_waiting=is_waiting))]
    if not causes:
        return "", ""
    named = ", ".join(f"{name} {cause}" for name, cause in causes[:_MOST_NAMED])
    more = f", and {len(causes) - _MOST_NAMED} more" if len(causes) > _MOST_NAMED else ""
    verb = "sends" if len(causes) == 1 else "send"
    return f"{len(causes)} of {counted(len(workers), 'worker')} {verb} nothing", named + more


def _cause(pod: PodView, reports: RunReports, now: float, *, is_waiting: bool) -> str:
    """Return why a worker sends nothing; empty if it sends, or if the cause is unknown.

    Args:
        is_waiting: Its learner waits, so that signs count that otherwise mean nothing: a worker that a full replay
            holds back has no rate either.
    """
    if _fails_again(pod, reports) or pod.reason == STOPPED or (is_waiting and not pod.ready):
        return pod.status.sentence
    record, seconds = reports.pods.get(pod.uid), reports.ages.get(pod.uid, 0.0)
    if not pod.ready:
        return ""
    if record is None:
        patience = LATE_WORKER_SECONDS if is_waiting else MUTE_WORKER_SECONDS
        is_late = pod.started is not None and now - pod.started > patience
        return "has no output yet" if is_late and pod.uid in reports.read_pods else ""
    if slow := _slow_step(record, seconds):
        return slow
    if record.simulator in ("lost", "given up"):
        return f"its simulator is {record.simulator}, {counted(record.simulator_restarts, 'restart')}"
    if seconds > (LATE_WORKER_SECONDS if is_waiting else SILENT_SECONDS):
        return f"has had no output for {age(seconds)}"
    if _is_cut_off(pod, reports, now):
        # It may be disconnected or blocked within a step: its records are too rare to distinguish the two by
        # silence.
        environment = "simulator" if record.simulator else "environment"
        return f"is not connected to its learner: its {environment} hangs, or its network is cut"
    if not is_waiting:
        return ""
    if record.simulator == "starting":
        return f"starts its simulator, {counted(record.simulator_restarts, 'restart')}"
    return "has no env step" if record.rate == 0 else ""


def _fails_again(pod: PodView, reports: RunReports) -> bool:
    """True for a pod that fails, or has failed and has not written a record since it began again."""
    if pod.is_failing:
        return True
    has_failed = bool(pod.restarts) and pod.exit_code != 0 and not pod.is_terminating
    record = reports.pods.get(pod.uid)
    return has_failed and (record is None or record.time < (pod.started or 0.0))


def _slow_step(record: PodMetrics, seconds: float) -> str:
    """Return a sentence about an environment whose steps take long, judged by its own past; empty for none.

    Args:
        seconds: Age of the record.
    """
    present = record.stepping_seconds + seconds if record.stepping_seconds else 0.0
    if present > max(HUNG_STEP_SECONDS, _HUNG_STEPS * record.longest_step_seconds):
        before = f", the longest before {record.longest_step_seconds:.0f} s" if record.longest_step_seconds else ""
        return f"hangs: the current step of its environment has taken {age(present)}{before}"
    if record.step_seconds >= SLOW_STEP_SECONDS:
        return f"slow: last step took {record.step_seconds:.0f} s"
    return f"slow: its present step has taken {present:.0f} s" if present >= SLOW_STEP_SECONDS else ""


def _slow_workers(pods: Sequence[PodView], reports: RunReports) -> bool:
    """True where all workers that run are slow, and none hangs."""
    workers = [pod for pod in pods if pod.role is Role.WORKER and pod.ready]
    sentences = [
        _slow_step(reports.pods[pod.uid], reports.ages.get(pod.uid, 0.0))
        for pod in workers
        if pod.uid in reports.pods
    ]
    return bool(sentences) and len(sentences) == len(workers) and all(text.startswith("slow") for text in sentences)


def _is_cut_off(pod: PodView, reports: RunReports, now: float) -> bool:
    """True if the learner's record names all its peers without this one, which had time to join."""
    peers = reports.learner.exchange.peers if reports.learner is not None else None
    if peers is None or len(peers) >= MOST_PEERS:  # more peers may be connected than are named
        return False
    return pod.name not in peers and now - (pod.started or now) > LATE_WORKER_SECONDS


def _silent_evaluator(pods: Sequence[PodView], reports: RunReports, now: float) -> str:
    """Return a sentence about the first evaluator that has stopped reporting; empty if all report.

    An evaluator also answers its learner during each evaluation, so a learner that misses it is the earliest sign.
    The interval between evaluations is set by the run, so one record alone proves nothing. While the learner
    continues to publish weights, an evaluator without news of them has stopped or lost its connection.
    """
    for pod in pods:
        record = reports.pods.get(pod.uid)
        if pod.role is Role.EVALUATOR and pod.reason == STOPPED:
            return f"its evaluator {pod.name} does not answer its learner: {pod.status.sentence}"
        if pod.role is not Role.EVALUATOR or record is None or not pod.ready:
            continue
        see = f"see `l2rtui logs {pod.name}`"
        if _is_cut_off(pod, reports, now):
            return f"its evaluator {pod.name} does not answer its learner: {see}"
        seconds = reports.ages.get(pod.uid, 0.0)
        if record.interval_seconds and seconds > max(
            SILENT_SECONDS, _EVALUATOR_INTERVALS * record.interval_seconds
        ):
            return f"its evaluator {pod.name} has had no output for {age(seconds)}: {see}"
    return ""


def _restarted(pods: Sequence[PodView], reports: RunReports) -> str:
    """Return a sentence about a recently restarted simulator; empty without one."""
    for pod in pods:
        record = reports.pods.get(pod.uid)
        if record is None or not record.simulator_restarted:
            continue
        if record.time - record.simulator_restarted + reports.ages.get(pod.uid, 0.0) < RESTARTED_SECONDS:
            cause = f": {record.simulator_error}" if record.simulator_error else ""
            return f"the simulator of {pod.name} was restarted{cause}"
    return ""


def _of_peers(run: RunView, pods: Sequence[PodView], reports: RunReports, now: float) -> LearningState:
    """Return the state of a run without a learner: elastic nodes, parameter servers, steps of a job."""
    running = [pod for pod in _centre(run, pods) if pod.ready]
    since = min(pod.started or now for pod in running)
    # Only a process that counts steps writes regularly; a working job step may be silent for hours.
    ages = [reports.ages.get(pod.uid, 0.0) for pod in running if _counts_steps(reports.pods.get(pod.uid))]
    if ages and min(ages) > PEER_SILENT_SECONDS:
        sentence = f"no process has reported a step for {age(min(ages))}: see `l2rtui logs {run.name}`"
        return LearningState(Learning.STALLED, now - min(ages), sentence)
    failing = [pod for pod in pods if pod.is_failing]
    if failing:
        sentence = f"goes on, but {failing[0].name} {failing[0].status.sentence}"
        return LearningState(Learning.LIVE, since, f"{sentence}: see `l2rtui logs {failing[0].name}`")
    return LearningState(Learning.LIVE, since, _pods_run(len(running)))


def _pods_run(number: int) -> str:
    return f"{counted(number, 'pod')} running"


def _counts_steps(record: PodMetrics | None) -> bool:
    return record is not None and record.has_steps
