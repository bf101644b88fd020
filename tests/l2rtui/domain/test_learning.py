"""State of learning: each state and transition from pods, records and time; and real runs, which raise no alarm."""

from __future__ import annotations

import json
from itertools import cycle, pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from l2rtui.domain.metrics import (
    MOST_PEERS,
    ExchangeFigures,
    LearnerFigures,
    LearnerProgress,
    PodMetrics,
    ProgressHistory,
    ReturnTrend,
    RunMetrics,
)
from l2rtui.domain.runstatus import NO_REPORTS, Learning, LearningState, RunReports, learning_state, lost_pod
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import CRASH_LOOP, QUEUED, STOPPED, Phase
from l2rtui.domain.workload import Kind, Role

RECORDS = Path(__file__).parent / "learner_records"
START = 1_000_000.0
NOW = START + 1_000.0
SETS = (SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, 2))
RUN = RunView("u", "r", "r", kind=Kind.LEARNER_WORKERS, sets=SETS, created=START)
LEARNER = PodView("l", "r-l", role=Role.LEARNER, run="r", phase=Phase.RUNNING, ready=True, started=START)
W0, W1 = (
    replace(LEARNER, uid=f"w{index}", name=f"r-w-{index}", set_name="w", role=Role.WORKER) for index in range(2)
)
PODS = (LEARNER, W0, W1)
STEADY = LearnerProgress(
    interval_seconds=2.0, update_gap_seconds=2.0, updated_at=NOW, stepped_at=NOW, idle_share=0.1
)
WAITS = replace(STEADY, idle_share=0.83, waits_since=NOW - 30)
NEVER = replace(STEADY, updated_at=0.0, update_gap_seconds=0.0)
UP = PodMetrics("worker", rate=100.0)
SEE = "see `l2rtui logs r/w`"


def of(progress=STEADY, *, age=0.0, pods=PODS, records=None, ages=None, run=RUN, now=NOW, before=None):
    """State of a learner whose newest record is `age` old."""
    metrics = RunMetrics("r", env_steps=1200, time=now - age, progress=progress)
    return learning_state(run, pods, RunReports(metrics, age, records or {}, ages or {}), now, before)


def test_a_log_that_is_still_being_read_is_not_one_that_could_not_be_read():
    loading, unread = (
        learning_state(RUN, PODS, RunReports(is_learner_read=is_read), NOW) for is_read in (False, True)
    )
    assert (loading.word, loading.reason) == ("loading", "loading metric records")
    assert unread.word == "unknown"
    assert unread.reason.startswith("no metric record of its learner could be read: see `l2rtui logs")


@pytest.mark.parametrize(
    ("run", "pods", "reports", "state", "reason"),
    [
        (RUN, PODS, RunReports(unseen="refused", unseen_seconds=20), Learning.UNKNOWN, "cannot be seen: refused"),
        (replace(RUN, is_terminating=True), PODS, NO_REPORTS, Learning.UNKNOWN, "stopping"),
        (replace(RUN, reason=QUEUED, message="waits"), (), NO_REPORTS, Learning.STARTING, "waits"),
        (replace(RUN, reason="Unsupervised"), PODS, NO_REPORTS, Learning.UNKNOWN, "Unsupervised"),
        (replace(RUN, reason="X", message="nobody"), PODS, NO_REPORTS, Learning.UNKNOWN, "nobody"),
        (replace(RUN, reason="Warning"), (W0,), NO_REPORTS, Learning.STARTING, "has no pod that learns yet"),
        (RUN, (), NO_REPORTS, Learning.STARTING, "has no pod that learns yet"),
        (RUN, (replace(LEARNER, phase=Phase.PENDING, ready=False),), NO_REPORTS, Learning.STARTING, "r-l waits to"),
        (RUN, (replace(LEARNER, phase=Phase.UNKNOWN, ready=False),), NO_REPORTS, Learning.UNKNOWN, "r-l is in an"),
        (RUN, (replace(LEARNER, reason=STOPPED, ready=False),), NO_REPORTS, Learning.STALLED, "r-l running"),
        (
            RUN,
            (replace(LEARNER, phase=Phase.SUCCEEDED, ready=False), W0),
            NO_REPORTS,
            Learning.DONE,
            "has finished",
        ),
        (
            RUN,
            (replace(LEARNER, reason=CRASH_LOOP, exit_code=65),),
            NO_REPORTS,
            Learning.DIVERGED,
            "its numbers are no longer finite: lower the learning rate, or bound the rewards; r-l crash-looping",
        ),
        (
            RUN,
            (replace(LEARNER, phase=Phase.FAILED, exit_code=1), W0),
            NO_REPORTS,
            Learning.FAILED,
            "r-l failed with exit 1: see `l2rtui logs r-l`",
        ),
        (RUN, (replace(LEARNER, reason=CRASH_LOOP),), NO_REPORTS, Learning.FAILED, "r-l crash-looping"),
        (RUN, PODS, NO_REPORTS, Learning.UNKNOWN, "no metric record of its learner could be read"),
        (
            RUN,
            (replace(LEARNER, started=NOW - 9),),
            NO_REPORTS,
            Learning.STARTING,
            "has printed no metric record yet",
        ),
        (RUN, (replace(LEARNER, started=None),), NO_REPORTS, Learning.STARTING, "has printed no metric record yet"),
        (
            RUN,
            (replace(LEARNER, started=NOW - 9, restarts=1, message="exit 2: no track"),),
            NO_REPORTS,
            Learning.STARTING,
            "yet; it starts again after: exit 2: no track",
        ),
    ],
)
def test_what_the_pods_alone_say(run, pods, reports, state, reason):
    learning = learning_state(run, pods, reports, NOW)
    assert learning.state is state
    assert reason in learning.reason


@pytest.mark.parametrize(
    ("progress", "age", "state", "reason", "since"),
    [
        (STEADY, 0.0, Learning.LIVE, "learns", START),
        (STEADY, 15.0, Learning.LIVE, "learns", START),
        (STEADY, 16.0, Learning.STALLED, "its learner has had no output for 10s", NOW - 16),
        # A learner that writes every ten seconds is not silent after fifteen.
        (replace(STEADY, interval_seconds=10.0, longest_seconds=11.0), 32.0, Learning.LIVE, "learns", START),
        (replace(STEADY, interval_seconds=10.0, longest_seconds=11.0), 34.0, Learning.STALLED, "for 30s", NOW - 34),
        # Nor is one that pauses occasionally; a single long outage does not extend its deadline.
        (replace(STEADY, interval_seconds=5.0, longest_seconds=60.0), 24.0, Learning.LIVE, "learns", START),
        (replace(STEADY, interval_seconds=5.0, longest_seconds=60.0), 26.0, Learning.STALLED, "20s", NOW - 26),
        # A learner that writes every five seconds regularly is reported as early as one that writes every two.
        (replace(STEADY, interval_seconds=5.0, longest_seconds=5.0), 16.0, Learning.STALLED, "for 10s", NOW - 16),
        (replace(STEADY, updated_at=NOW - 20), 0.0, Learning.STALLED, "no update for 20s though", NOW - 20),
        (replace(STEADY, updated_at=NOW - 20, update_gap_seconds=9.0), 0.0, Learning.LIVE, "learns", START),
        (NEVER, 0.0, Learning.STARTING, "collects its first data: 1,200 env steps, no update yet", START),
        (replace(NEVER, stepped_at=NOW - 60), 0.0, Learning.STALLED, "has made no update for 16m", START),
        (WAITS, 0.0, Learning.LIVE, "learns; waits for data 83% of its time: more workers", START),
        (
            replace(WAITS, updated_at=NOW - 20),
            0.0,
            Learning.STARVED,
            f"waits for data 83% of its time: its workers send little or none; {SEE}",
            NOW - 30,
        ),
        (replace(WAITS, slow_since=NOW - 9, rate=1.0, usual_rate=9.0), 0.0, Learning.STARVED, "little", NOW - 30),
        (
            replace(STEADY, slow_since=NOW - 9, rate=400.0, usual_rate=1000.0),
            0.0,
            Learning.SLOW,
            "400 of its usual 1,000 env steps/s: see its workers",
            NOW - 9,
        ),
        (
            replace(STEADY, broken=("critic_loss",), broken_since=NOW - 4),
            2.0,
            Learning.DIVERGED,
            "critic_loss is not a finite number: lower the learning rate",
            NOW - 4,
        ),
        (
            replace(STEADY, trend=ReturnTrend(20.0, START, NOW, 1.0, 10.0, 500.0, NOW - 121)),
            0.0,
            Learning.DIVERGED,
            "its return fell from 500 to 20",
            NOW - 121,
        ),
        (
            replace(STEADY, trend=ReturnTrend(20.0, START, NOW, 1.0, 10.0, 500.0, NOW - 119)),
            0.0,
            Learning.LIVE,
            "learns",
            START,
        ),
        (replace(STEADY, trend=ReturnTrend(20.0, START, NOW)), 0.0, Learning.LIVE, "learns", START),
    ],
)
def test_what_the_learners_records_say(progress, age, state, reason, since):
    learning = of(progress, age=age)
    assert learning.state is state
    assert reason in learning.reason
    assert learning.since == pytest.approx(since)


def test_a_learner_that_ended_with_numbers_that_are_not_finite_runs_again_and_is_no_new_one_until_it_updates():
    again = replace(LEARNER, started=NOW - 9, restarts=1, exit_code=65)
    before = replace(again, ready=False)  # between its end and its next start
    for pods, reports in (
        ((before, W0), NO_REPORTS),
        ((again, W0), NO_REPORTS),
        ((again, W0), RunReports(RunMetrics("r", time=NOW, progress=NEVER))),
    ):
        state = learning_state(RUN, pods, reports, NOW)
        assert state.state is Learning.DIVERGED
        assert state.reason == (
            "its numbers are no longer finite: lower the learning rate, or bound the rewards; "
            "r-l running, 1 restart, last ended with exit 65: see `l2rtui logs r-l`"
        )
    assert of(STEADY, pods=(again, W0, W1)).reason == "learns"
    assert of(NEVER, pods=(replace(again, exit_code=137), W0)).state is Learning.STARTING


def test_a_learner_that_compiles_is_silent_before_its_first_update_and_starts():
    young = (replace(LEARNER, started=NOW - 60), W0, W1)
    assert of(NEVER, age=40.0, pods=young).state is Learning.STARTING
    # An update of the previous process does not count for this one, whose state was resumed.
    assert of(replace(STEADY, updated_at=NOW - 90), age=40.0, pods=young).state is Learning.STARTING
    assert of(NEVER, age=400.0).state is Learning.STALLED
    learning = of(replace(WAITS, updated_at=0.0, stepped_at=0.0), pods=young)
    assert learning.state is Learning.STARTING


@pytest.mark.parametrize(
    ("pod", "record", "age", "cause"),
    [
        (W1, None, 0.0, ""),
        (W1, UP, 5.0, ""),
        (W1, UP, 13.0, "r-w-1 has had no output for 10s"),
        (W1, replace(UP, rate=0.0), 5.0, "r-w-1 has no env step"),
        (W1, replace(UP, rate=None), 5.0, ""),
        (
            W1,
            replace(UP, simulator="starting", simulator_restarts=3),
            1.0,
            "r-w-1 starts its simulator, 3 restarts",
        ),
        (W1, replace(UP, simulator="given up"), 1.0, "r-w-1 its simulator is given up"),
        (replace(W1, phase=Phase.PENDING, ready=False), UP, 1.0, "r-w-1 waits to start"),
        (replace(W1, reason=CRASH_LOOP), UP, 1.0, "r-w-1 crash-looping"),
    ],
)
def test_a_learner_that_waits_names_the_workers_that_send_nothing(pod, record, age, cause):
    records, ages = {W0.uid: UP} | ({pod.uid: record} if record else {}), {W0.uid: 1.0, pod.uid: age}
    learning = of(WAITS, pods=(LEARNER, W0, pod), records=records, ages=ages)
    assert learning.state is (Learning.STARVED if cause else Learning.LIVE)
    assert (
        f"1 of 2 workers sends nothing ({cause}" in learning.reason if cause else "more workers" in learning.reason
    )


def test_a_learner_that_does_not_wait_learns_and_names_a_worker_that_is_gone():
    records = {W0.uid: UP, W1.uid: UP}
    assert of(records=records, ages={W1.uid: 14.0}).reason == "learns"
    learning = of(records=records, ages={W1.uid: 21.0})
    assert learning.state is Learning.LIVE
    assert learning.reason == f"learns, but 1 of 2 workers sends nothing (r-w-1 has had no output for 20s): {SEE}"
    # A full replay slows workers down, and a new worker has not started yet: neither is a fault.
    assert of(records={W1.uid: replace(UP, rate=0.0)}).reason == "learns"
    assert of(pods=(LEARNER, W0, replace(W1, ready=False, phase=Phase.PENDING))).reason == "learns"
    stopped = of(pods=(LEARNER, W0, replace(W1, ready=False, reason=STOPPED)), records=records)
    assert stopped.reason.startswith("learns, but 1 of 2 workers sends nothing (r-w-1 running")
    slow = of(replace(STEADY, slow_since=NOW - 9, rate=4.0, usual_rate=9.0), records=records, ages={W1.uid: 21.0})
    assert slow.reason.startswith("4 of its usual 9 env steps/s: 1 of 2 workers sends nothing (r-w-1")


@pytest.mark.parametrize(
    ("age", "state"), [(8.0, Learning.STARVED), (8.5, Learning.LIVE), (16.0, Learning.STALLED)]
)
def test_workers_that_stand_still_are_no_cause_once_the_learner_itself_is_late(age, state):
    still = {uid: PodMetrics("worker", rate=0.0) for uid in ("w0", "w1")}
    assert of(WAITS, age=age, records=still, ages=dict.fromkeys(still, 1.0)).state is state


@pytest.mark.parametrize(
    ("started", "read", "sentence"),
    [
        (NOW - 13, {"w0", "w1"}, "1 of 2 workers sends nothing (r-w-1 has no output yet)"),
        (NOW - 12, {"w0", "w1"}, "more workers would speed it up"),  # its first record is not due yet
        (NOW - 13, {"w0"}, "more workers would speed it up"),  # its log was not read
        (None, {"w0", "w1"}, "more workers would speed it up"),
    ],
)
def test_a_worker_that_never_printed_a_record_is_named_once_its_log_was_read(started, read, sentence):
    metrics = RunMetrics("r", env_steps=1200, time=NOW, progress=WAITS)
    reports = RunReports(metrics, 0.0, {W0.uid: UP}, {W0.uid: 1.0}, read_pods=read)
    learning = learning_state(RUN, (LEARNER, W0, replace(W1, started=started)), reports, NOW)
    assert sentence in learning.reason


@pytest.mark.parametrize(
    ("started", "reason"),
    [
        (NOW - 91, f"learns, but 1 of 2 workers sends nothing (r-w-1 has no output yet): {SEE}"),
        (NOW - 89, "learns"),
    ],
)
def test_a_worker_that_never_printed_a_record_is_named_later_where_its_learner_does_not_wait(started, reason):
    pods, records = (LEARNER, W0, replace(W1, started=started)), {W0.uid: UP}
    reports = RunReports(
        RunMetrics("r", env_steps=1200, time=NOW, progress=STEADY),
        0.0,
        records,
        {W0.uid: 1.0},
        read_pods={"w0", "w1"},
    )
    assert learning_state(RUN, pods, reports, NOW).reason == reason


def test_more_culprits_than_fit_are_counted():
    workers = [replace(W0, uid=f"w{n}", name=f"r-w-{n}", reason=CRASH_LOOP) for n in range(5)]
    reason = of(WAITS, pods=(LEARNER, *workers)).reason
    assert "5 of 5 workers send nothing" in reason
    assert "r-w-2" in reason
    assert "and 2 more" in reason
    assert "r-w-3" not in reason


def test_a_state_lasts_since_it_began_and_its_level_says_who_should_look():
    first = of(age=16.0)
    assert of(age=16.0, now=NOW + 5, before=first).since == first.since
    assert of(now=NOW + 5, before=first).since == START
    assert first.is_fault
    assert first.has_stopped
    assert not first.is_worth_explaining
    assert not of().is_fault
    assert not of().has_stopped
    assert of().is_worth_explaining
    assert {LearningState(state, 0.0, "").level.value for state in Learning} == {
        "ok",
        "wait",
        "warn",
        "bad",
        "done",
    }


NODES = tuple(replace(W0, uid=f"n{index}", name=f"r-n-{index}") for index in range(2))
STEPS = PodMetrics("elastic", has_steps=True)


@pytest.mark.parametrize(
    ("kind", "pods", "records", "age", "state", "reason"),
    [
        (Kind.ELASTIC, NODES, {}, 0.0, Learning.LIVE, "2 pods running"),
        (Kind.ELASTIC, NODES[:1], {"n0": STEPS}, 60.0, Learning.LIVE, "1 pod running"),
        (Kind.ELASTIC, NODES, {"n0": STEPS, "n1": STEPS}, 61.0, Learning.STALLED, "no process has reported a step"),
        # A waiting agent writes exactly one record.
        (Kind.ELASTIC, NODES, {"n0": PodMetrics("elastic")}, 900.0, Learning.LIVE, "2 pods running"),
        (
            Kind.ELASTIC,
            (NODES[0], replace(NODES[1], phase=Phase.FAILED, ready=False, exit_code=1)),
            {},
            0.0,
            Learning.LIVE,
            "goes on, but r-n-1 failed with exit 1",
        ),
        (
            Kind.PARAMETER_SERVER,
            (
                replace(NODES[0], phase=Phase.FAILED, ready=False),
                replace(NODES[1], phase=Phase.FAILED, ready=False),
            ),
            {},
            0.0,
            Learning.FAILED,
            "r-n-0 failed",
        ),
        (
            Kind.JOB,
            (replace(NODES[0], role=Role.JOB),),
            {"n0": PodMetrics("step")},
            9000.0,
            Learning.LIVE,
            "1 pod running",
        ),
        (
            Kind.JOB,
            (replace(NODES[0], role=Role.JOB, phase=Phase.FAILED),),
            {},
            0.0,
            Learning.FAILED,
            "r-n-0 failed",
        ),
        (
            Kind.JOB,
            (replace(NODES[0], role=Role.JOB, phase=Phase.SUCCEEDED),),
            {},
            0.0,
            Learning.DONE,
            "has finished",
        ),
    ],
)
def test_runs_without_a_learner(kind, pods, records, age, state, reason):
    run = replace(RUN, kind=kind, sets=(SetView("w", Role.WORKER, len(pods)),))
    learning = learning_state(run, pods, RunReports(pods=records, ages=dict.fromkeys(records, age)), NOW)
    assert learning.state is state
    assert reason in learning.reason


# --- progress over time ----------------------------------------------------------------------------------------
def fold(*figures: LearnerFigures) -> LearnerProgress:
    history = ProgressHistory()
    for item in figures:
        progress = history.add(item)
    return progress


def record(number: int, **fields) -> LearnerFigures:
    values = {"env_steps": 100 * number, "updates": number, "rate": 50.0, "idle_share": 0.1} | fields
    return LearnerFigures(START + 2.0 * number, **values)


def test_gaps_are_medians_and_a_clock_that_is_set_back_is_no_progress():
    progress = fold(*(record(number) for number in range(5)))
    assert (progress.interval_seconds, progress.update_gap_seconds) == (2.0, 2.0)
    assert progress.updated_at == progress.stepped_at == START + 8.0
    progress = fold(record(3), replace(record(4), time=START))
    assert progress.updated_at == progress.interval_seconds == 0.0
    progress = fold(record(0), record(1), record(2, updates=1, env_steps=100))
    assert progress.updated_at == progress.stepped_at == START + 2.0


def test_waiting_begins_at_half_the_time_and_ends_below_that():
    shares = [0.1, 0.9, 0.9, 0.9, 0.45, 0.45, 0.45, 0.1, 0.1]
    history = ProgressHistory()
    since = [history.add(record(n, idle_share=share)).waits_since for n, share in enumerate(shares)]
    assert [bool(time) for time in since] == [False, True, True, True, True, True, True, False, False]
    assert len({time for time in since if time}) == 1
    assert fold(record(0, idle_share=None)).waits_since == 0.0


def test_a_rate_is_slow_below_half_of_its_own_median_and_no_more_at_seven_tenths():
    history = ProgressHistory()
    rates = [100.0] * 40 + [40.0] * 5 + [60.0] * 5 + [80.0] * 5
    slow = [bool(history.add(record(n, rate=rate)).slow_since) for n, rate in enumerate(rates)]
    assert not any(slow[:42])
    assert all(slow[43:50])
    assert not slow[-1]
    # Collection before the first update is fast, and no learner keeps that rate.
    history = ProgressHistory()
    rates = [(6000.0, 0)] * 50 + [(300.0, 1)] * 60
    slow = [
        history.add(record(n, rate=rate, updates=n if learns else 0)).slow_since
        for n, (rate, learns) in enumerate(rates)
    ]
    assert not any(slow)


def test_a_figure_that_is_not_finite_has_a_beginning():
    progress = fold(record(0), record(1, broken=("critic_loss",)), record(2, broken=("critic_loss",)))
    assert (progress.broken, progress.broken_since) == (("critic_loss",), START + 2.0)
    assert fold(record(0, broken=("alpha",)), record(1)).broken_since == 0.0


def test_a_return_collapses_against_its_own_best_and_comes_back():
    def levels(*parts):
        values = [value for level, count in parts for value in [level] * count]
        history = ProgressHistory()
        return [history.add(record(n, mean_return=value)).trend.fallen_since for n, value in enumerate(values)]

    fallen = levels((10.0, 60), (500.0, 200), (10.0, 200), (500.0, 100))
    assert not any(fallen[:260])
    assert fallen[450]
    assert not fallen[-1]
    # Noise around a level that never rose is not a collapse.
    assert not any(levels(*[(10.0, 1), (-10.0, 1)] * 300))
    trend = fold(record(0), record(1, mean_return=5.0), record(2)).trend
    assert trend == ReturnTrend(5.0, START + 2.0, START + 2.0)
    assert trend.after(9.0, START) is trend


# --- real runs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["cartpole-ppo", "racing-sac"])
def test_a_real_run_raises_no_false_alarm_at_any_second(name):
    """Records of runs on two shared cores, checked at every second; the run is done when the records end."""
    lines = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]
    history, state, states = ProgressHistory(), None, []
    learner = replace(LEARNER, started=lines[0]["time"] - 5)
    nexts = [line["time"] for line in lines[1:]] + [lines[-1]["time"] + 2]
    for line, until in zip(lines, nexts, strict=True):
        fields = ("time", "env_steps", "updates", "env_steps_per_second", "idle_share", "mean_return")
        progress = history.add(LearnerFigures(*(line[field] for field in fields)))
        metrics = RunMetrics("r", env_steps=line["env_steps"], time=line["time"], progress=progress)
        for second in range(int(until - line["time"]) + 1):
            now = line["time"] + second
            state = learning_state(RUN, (learner, W0, W1), RunReports(metrics, float(second)), now, state)
            states.append(state)
    assert states[0].state is Learning.STARTING
    assert {state.state for state in states} == {Learning.STARTING, Learning.LIVE}, [
        s for s in states if s.is_fault
    ]
    # Frozen at any of its records, it is stalled sixteen seconds later.
    assert (
        learning_state(RUN, (learner, W0, W1), RunReports(metrics, 16.0), now + 16, state).state is Learning.STALLED
    )


DAY_SECONDS = 86_400.0
FIELDS = ("env_steps_per_second", "idle_share", "mean_return")


def a_day(lines):
    """Figures of a real run, and of its second half back and forth for a day; counters continue."""
    first, half = lines[0], list(pairwise(lines))[len(lines) // 2 :]
    yield from (
        LearnerFigures(line["time"], line["env_steps"], line["updates"], *map(line.get, FIELDS)) for line in lines
    )
    time, env_steps, updates = (lines[-1][field] for field in ("time", "env_steps", "updates"))
    for earlier, line in cycle(half[::-1] + half):
        time += line["time"] - earlier["time"]
        env_steps += line["env_steps"] - earlier["env_steps"]
        updates += line["updates"] - earlier["updates"]
        if time > first["time"] + DAY_SECONDS:
            return
        yield LearnerFigures(time, env_steps, updates, *map(line.get, FIELDS))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["cartpole-ppo", "racing-sac"])
def test_a_day_of_a_real_run_raises_no_false_alarm_at_any_record(name):
    lines = [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]
    history, state = ProgressHistory(), None
    learner = replace(LEARNER, started=lines[0]["time"] - 5)
    for figures, following in pairwise(a_day(lines)):
        progress = history.add(figures)
        metrics = RunMetrics("r", env_steps=figures.env_steps, time=figures.time, progress=progress)
        for age in (0.0, following.time - figures.time):  # at its arrival, and when the next one is due
            state = learning_state(RUN, (learner, W0, W1), RunReports(metrics, age), figures.time + age, state)
            assert state.state in (Learning.STARTING, Learning.LIVE), (figures, state)
    assert figures.time > lines[0]["time"] + DAY_SECONDS - 60


EVALUATOR = replace(W0, uid="e", name="r-eval-0", set_name="eval", role=Role.EVALUATOR)
SCORES = PodMetrics("evaluator", interval_seconds=10.0)


@pytest.mark.parametrize(
    ("record", "seconds", "is_named"),
    [
        (SCORES, 29.0, False),
        (SCORES, 31.0, True),
        (replace(SCORES, interval_seconds=1.0), 14.0, False),
        (replace(SCORES, interval_seconds=1.0), 16.0, True),
        (replace(SCORES, interval_seconds=0.0), 600.0, False),
        (None, 600.0, False),
    ],
)
def test_an_evaluator_is_silent_by_its_own_interval(record, seconds, is_named):
    records = {"e": record} if record else {}
    state = of(pods=(*PODS, EVALUATOR), records=records, ages={"e": seconds})
    assert state.state is Learning.LIVE
    assert ("its evaluator r-eval-0 has had no output for" in state.reason) is is_named


def test_an_evaluator_that_its_learner_misses_is_named_before_its_own_interval_is_over():
    missed = RunMetrics("r", time=NOW, progress=STEADY, exchange=ExchangeFigures(peers=("r-w-0", "r-w-1")))
    pods = (*PODS, replace(EVALUATOR, started=NOW - 60))
    reports = RunReports(missed, 0.0, {"w0": UP, "w1": UP, "e": SCORES}, {"w0": 0.0, "w1": 0.0, "e": 9.0})
    sentence = "learns, but its evaluator r-eval-0 does not answer its learner: see `l2rtui logs r-eval-0`"
    assert learning_state(RUN, pods, reports, NOW).reason == sentence


def test_an_evaluator_that_does_not_run_is_not_called_silent():
    down = replace(EVALUATOR, ready=False)
    assert of(pods=(*PODS, down), records={"e": SCORES}, ages={"e": 60.0}).reason == "learns"
    # A stopped process runs no more than that one, but it will not come back by itself.
    stopped = replace(down, reason=STOPPED)
    sentence = "its evaluator r-eval-0 does not answer its learner: running"
    assert sentence in of(pods=(*PODS, stopped)).reason


def test_that_a_learner_waits_hides_neither_a_silent_evaluator_nor_a_lost_checkpoint():
    pods, ages = (*PODS, EVALUATOR), {"e": 60.0}
    assert (
        "its evaluator r-eval-0 has had no output for"
        in of(WAITS, pods=pods, records={"e": SCORES}, ages=ages).reason
    )
    full = RunMetrics("r", time=NOW, progress=WAITS, checkpoint_error="No space left on device")
    state = learning_state(RUN, pods, RunReports(full, 0.0, {"e": SCORES}, ages), NOW)
    assert state.state is Learning.LIVE
    assert state.reason == (
        "learns, but its last checkpoint could not be written (No space left on device): "
        "free room, it is tried again"
    )


def test_workers_that_are_silent_come_before_an_evaluator_that_is():
    records, ages = {"w0": UP, "e": SCORES}, {"w0": 60.0, "e": 60.0}
    reason = of(pods=(*PODS, EVALUATOR), records=records, ages=ages).reason
    assert "r-w-0 has had no output" in reason
    assert "evaluator" not in reason


def test_a_limit_that_is_near_stands_before_what_the_run_does():
    metrics = RunMetrics("r", env_steps=9, time=NOW, progress=STEADY, limit="limit near: 93 % of limit wall 12 h")
    state = learning_state(RUN, PODS, RunReports(metrics), NOW)
    assert (state.state, state.reason) == (Learning.LIVE, "limit near: 93 % of limit wall 12 h; learns")


@pytest.mark.parametrize(
    ("message", "limit", "reason"),
    [
        ("ended by limit wall 12 h", "", "has finished, ended by limit wall 12 h"),
        ("it was ended with its run", "ended by limit idle 30 min", "has finished, ended by limit idle 30 min"),
        ("", "limit near: 93 % of limit wall 12 h", "has finished"),
    ],
)
def test_a_run_that_a_limit_has_ended_says_so(message, limit, reason):
    pods = (replace(LEARNER, phase=Phase.SUCCEEDED, ready=False, message=message),)
    reports = RunReports(RunMetrics("r", limit=limit))
    assert learning_state(RUN, pods, reports, NOW).reason == reason


@pytest.mark.parametrize(
    ("record", "seconds", "reason"),
    [
        (
            replace(UP, simulator_restarted=NOW - 5, simulator_error="it hangs"),
            0.0,
            "learns, but the simulator of r-w-0 was restarted: it hangs",
        ),
        (replace(UP, simulator_restarted=NOW - 5), 0.0, "learns, but the simulator of r-w-0 was restarted"),
        (replace(UP, simulator_restarted=NOW - 31), 0.0, "learns"),
        (replace(UP, simulator_restarted=NOW - 25), 6.0, "learns"),
    ],
)
def test_a_simulator_that_was_restarted_is_told_for_half_a_minute(record, seconds, reason):
    state = of(records={"w0": replace(record, time=NOW)}, ages={"w0": seconds})
    assert state.state is Learning.LIVE
    assert state.reason == reason


@pytest.mark.parametrize(
    ("peers", "started", "is_named"),
    [
        (("r-w-1",), NOW - 60, True),
        (("r-w-0", "r-w-1"), NOW - 60, False),
        ((), NOW - 5, False),
        (None, NOW - 60, False),
        (tuple(f"q-w-{n}" for n in range(MOST_PEERS)), NOW - 60, False),  # there may be more than are named
    ],
)
def test_a_worker_that_works_but_is_not_connected_is_named(peers, started, is_named):
    metrics = RunMetrics("r", time=NOW, progress=STEADY, exchange=ExchangeFigures(peers=peers))
    pods = (LEARNER, replace(W0, started=started))
    state = learning_state(RUN, pods, RunReports(metrics, 0.0, {"w0": UP}, {"w0": 0.0}), NOW)
    assert state.state is Learning.LIVE
    assert ("1 of 1 worker sends nothing (r-w-0 is not connected to its learner" in state.reason) is is_named


FAULTY = replace(W0, reason=CRASH_LOOP, ready=False, restarts=1, exit_code=66, message="X-v0: info is None")
YOUNG = {"pods": (replace(LEARNER, started=NOW - 20), replace(W0, started=NOW - 15)), "now": NOW}


@pytest.mark.parametrize(
    "pod", [FAULTY, replace(FAULTY, reason="", ready=True), replace(FAULTY, role=Role.EVALUATOR)]
)
def test_an_environment_that_breaks_its_interface_fails_the_run_with_its_sentence(pod):
    learning = of(pods=(LEARNER, pod, W1))
    assert learning.state is Learning.FAILED
    assert learning.reason.startswith("its environment is at fault: r-w-0 ")
    assert "X-v0: info is None" in learning.reason
    assert lost_pod(RUN, (LEARNER, pod, W1)) is pod
    assert lost_pod(RUN, (LEARNER, replace(pod, is_terminating=True), W1)) is None


@pytest.mark.parametrize("is_running", [True, False])
def test_a_sole_worker_that_fails_again_and_again_is_named_before_the_first_update(is_running):
    learner, worker = YOUNG["pods"]
    failed = replace(worker, restarts=1, exit_code=1, message="TypeError: no wheels", started=NOW - 1)
    if not is_running:
        failed = replace(failed, reason=CRASH_LOOP, ready=False)
    learning = of(NEVER, pods=(learner, failed), now=NOW)
    assert learning.state is Learning.STARVED
    assert learning.reason.startswith("gets no data: r-w-0 ")
    assert "last ended with exit 1: TypeError: no wheels; see `l2rtui logs r/w`" in learning.reason
    # An Engine forgets the exit code when the next process runs.
    unknown = replace(failed, exit_code=None)
    assert of(NEVER, pods=(learner, unknown), now=NOW).state is Learning.STARVED
    # One that works again, and one beside others that do, is a start as any other.
    again = {failed.uid: replace(UP, time=NOW - 0.5)}
    assert not is_running or of(NEVER, pods=(learner, failed), records=again, now=NOW).state is Learning.STARTING
    both = (learner, failed, replace(W1, started=NOW - 15))
    assert of(NEVER, pods=both, now=NOW).state is Learning.STARTING


@pytest.mark.parametrize(
    ("record", "state", "reason"),
    [
        (
            replace(UP, rate=0.0, step_seconds=45, longest_step_seconds=45),
            Learning.SLOW,
            "slow: last step took 45 s",
        ),
        (replace(UP, rate=0.0, stepping_seconds=30), Learning.SLOW, "slow: its present step has taken 31 s"),
        (
            replace(UP, rate=0.0, stepping_seconds=200, step_seconds=45, longest_step_seconds=45),
            Learning.SLOW,
            "slow: last step took 45 s",
        ),
        (
            replace(UP, rate=0.0, stepping_seconds=300, step_seconds=45, longest_step_seconds=45),
            Learning.STARVED,
            "hangs: the current step of its environment has taken 5m, the longest before 45 s",
        ),
        (
            replace(UP, rate=0.0, stepping_seconds=70),
            Learning.STARVED,
            "hangs: the current step of its environment",
        ),
    ],
)
def test_a_slow_environment_is_slow_and_hangs_only_by_its_own_past(record, state, reason):
    pods = (LEARNER, W0)
    learning = of(WAITS, pods=pods, records={"w0": record}, ages={"w0": 1.0})
    assert learning.state is state
    assert reason in learning.reason
    if state is Learning.SLOW:
        learner, worker = YOUNG["pods"]
        started = of(NEVER, pods=(learner, worker), records={"w0": record}, ages={"w0": 1.0}, now=NOW)
        assert started.state is Learning.STARTING
        assert reason in started.reason
