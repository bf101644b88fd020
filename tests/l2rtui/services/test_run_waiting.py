"""Waiting until runs reach a condition: the verdict on each state, and the waiter over the in-memory cluster."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.snapshot import PodView, RunView, SetView
from l2rtui.domain.status import CRASH_LOOP, Phase
from l2rtui.domain.workload import Role
from l2rtui.services.run_waiting import Goal, ReturnReading, RunWaiter, WaitCondition, WaitOutcome, judge

DEADLINE_SECONDS = 60.0
RUN = RunView(
    "u", "r", "r", kind="learner-workers", sets=(SetView("learner", Role.LEARNER, 1), SetView("w", Role.WORKER, 1))
)
LEARNER = PodView(
    "a", "r-learner-0", "n", run="r", set_name="learner", role=Role.LEARNER, phase=Phase.RUNNING, ready=True
)
WORKER = replace(LEARNER, uid="b", name="r-w-0", set_name="w", role=Role.WORKER)
WAITING = replace(WORKER, phase=Phase.PENDING, ready=False)
OVER = replace(LEARNER, phase=Phase.SUCCEEDED, ready=False, exit_code=0)
FAILED = replace(LEARNER, phase=Phase.FAILED, ready=False, exit_code=1)
CRASHES = replace(LEARNER, reason=CRASH_LOOP, ready=False, exit_code=1, restarts=1)
READ = ReturnReading(newest=40.0, best=50.0, is_read=True)

REACHED, OUT, WAITS = WaitOutcome.REACHED, WaitOutcome.OUT_OF_REACH, WaitOutcome.WAITING


@pytest.mark.parametrize(
    ("condition", "pods", "outcome", "reason"),
    [
        ("running", (LEARNER, WORKER), REACHED, "2/2 running"),
        ("running", (LEARNER, WAITING), WAITS, "1 of 2 pods ready"),
        ("running", (LEARNER, replace(WORKER, is_terminating=True)), WAITS, "2/2 running"),
        ("running", (OVER, WORKER), REACHED, "has finished"),
        ("running", (FAILED, WORKER), OUT, "r-learner-0 failed with exit 1"),
        ("running", (CRASHES, WORKER), WAITS, "r-learner-0 crash-looping"),
        ("running", (replace(CRASHES, restarts=3), WORKER), OUT, "r-learner-0 crash-looping, 3 restarts"),
        ("done", (LEARNER, WORKER), WAITS, "2/2 running"),
        ("done", (OVER, WORKER), REACHED, "has finished"),
        ("done", (FAILED, WORKER), OUT, "r-learner-0 failed with exit 1"),
        ("failed", (FAILED, WORKER), REACHED, "r-learner-0 failed with exit 1"),
        ("failed", (LEARNER, replace(WORKER, phase=Phase.FAILED, ready=False)), WAITS, "r-w-0 failed"),
        ("failed", (OVER, WORKER), OUT, "has finished"),
        ("learned", (LEARNER, WORKER), WAITS, "2/2 running, return 40 of 60"),
        ("learned", (OVER, WORKER), OUT, "has finished with a best return of 50"),
        ("learned", (FAILED, WORKER), OUT, "r-learner-0 failed with exit 1"),
        ("gone", (LEARNER, WORKER), WAITS, "2/2 running"),
    ],
)
def test_each_state_has_a_verdict_with_a_reason(condition, pods, outcome, reason):
    reading = READ if condition == "learned" else ReturnReading()
    verdict = judge(Goal(WaitCondition(condition), 60.0), RUN, pods, reading, 1000.0)
    assert verdict.outcome is outcome
    assert verdict.reason.startswith(reason)


def test_a_run_that_is_done_is_judged_by_its_last_record():
    goal, unread = Goal(WaitCondition.LEARNED, 60.0), dataclasses.replace(READ, is_read=False)
    assert judge(goal, RUN, (OVER, WORKER), unread, 1000.0).outcome is WAITS
    unread.add(61.0)
    assert judge(goal, RUN, (OVER, WORKER), unread, 1000.0) == (REACHED, "mean return reached 61")
    assert (READ.newest, unread.newest, unread.best) == (40.0, 61.0, 61.0)


@pytest.mark.parametrize("condition", ["running", "done", "failed", "learned"])
def test_a_run_that_was_destroyed_comes_to_nothing_more(condition):
    assert judge(Goal(WaitCondition(condition)), None, (), ReturnReading(), 1000.0) == (OUT, "was destroyed")


def test_a_run_is_gone_with_its_last_pod():
    goal = Goal(WaitCondition.GONE)
    assert judge(goal, None, (WORKER,), ReturnReading(), 1000.0) == (WAITS, "1 pod left")
    assert judge(goal, None, (), ReturnReading(), 1000.0) == (REACHED, "is gone")


# --- over a backend --------------------------------------------------------------------------------------------
async def decided(waiter, count=1):
    """Wait until this many verdicts are decided."""
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(waiter.verdicts()) as looks:
        async for verdicts in looks:
            final = [verdict for verdict in verdicts.values() if verdict.outcome is not WAITS]
            if len(final) >= count:
                return verdicts
    raise AssertionError


@pytest.fixture
def backend():
    return FakeBackend()


async def run_of(backend, name):
    run = (await backend.snapshot()).run_named(name)
    assert run is not None
    return run


async def test_a_return_that_was_printed_counts(backend):
    run = await run_of(backend, "lidar-ppo")
    verdicts = await decided(RunWaiter(backend, [run], Goal(WaitCondition.LEARNED, -1e9)))
    assert verdicts[run.uid].outcome is REACHED


async def test_runs_settle_before_they_count_as_running(backend):
    run = await run_of(backend, "racing-sac-s0")
    waiter = RunWaiter(backend, [run], Goal(WaitCondition.RUNNING), settle_seconds=0.3)
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(waiter.verdicts()) as looks:
        first = (await anext(looks))[run.uid]
        assert first == (WAITS, "its pods have only just started")
        async for verdicts in looks:
            if verdicts[run.uid].outcome is REACHED:
                break


async def test_a_destroy_ends_the_wait_for_gone_and_makes_the_others_hopeless(backend):
    run, other = await run_of(backend, "racing-sac-s0"), await run_of(backend, "racing-sac-s1")
    gone = asyncio.ensure_future(decided(RunWaiter(backend, [run, other], Goal(WaitCondition.GONE))))
    done = asyncio.ensure_future(decided(RunWaiter(backend, [run], Goal(WaitCondition.DONE))))

    async def clock():
        while True:
            backend.advance(1)
            await asyncio.sleep(0.01)

    ticking = asyncio.ensure_future(clock())
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(backend.destroy(run)) as items:
        async for _ in items:
            pass
    ticking.cancel()
    verdicts = await gone
    assert (verdicts[run.uid].outcome, verdicts[other.uid].outcome) == (REACHED, WAITS)
    assert (await done)[run.uid] == (OUT, "was destroyed")


async def test_an_outage_is_waited_through(backend):
    run = await run_of(backend, "racing-sac-s0")
    waiter = RunWaiter(backend, [run], Goal(WaitCondition.DONE))
    async with asyncio.timeout(DEADLINE_SECONDS), aclosing(waiter.verdicts()) as looks:
        await anext(looks)
        backend.outage = "the cable is out"
        backend.advance(1)
        async for verdicts in looks:
            assert verdicts[run.uid].outcome is WAITS
            if "the cable is out" in waiter.monitor.error:
                break
        backend.outage = ""
        backend.advance(1)
        async for _ in looks:
            if not waiter.monitor.error:
                break
