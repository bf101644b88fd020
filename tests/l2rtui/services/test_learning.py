"""State of learning from one look at the logs: the learners' first, the workers' if they explain it."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from msgspec.structs import replace

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import LogLine
from l2rtui.domain.runstatus import Learning
from l2rtui.domain.workload import Kind, Role
from l2rtui.errors import BackendError
from l2rtui.services import learning, pod_records
from l2rtui.services.metrics import Series


async def look(backend, later=0.0):
    snapshot = await backend.snapshot()
    runs = sorted(snapshot.runs.values(), key=lambda run: run.name)
    states = await learning.run_learning(backend, snapshot, runs, backend.now() + later)
    return {run.name: states[run.uid].state for run in runs}


@pytest.fixture
def backend():
    return FakeBackend(owner="me")


async def test_runs_that_learn_are_live_and_a_worker_that_fails_is_named(backend):
    states = await look(backend)
    assert {state.state for state in states.values()} == {Learning.LIVE}
    assert states["racing-sac-s0"].reason == "learns"
    assert "1 of 4 workers sends nothing (racing-sac-s1-w-3 crash-looping" in states["racing-sac-s1"].reason


async def test_records_that_are_old_stall_every_run(backend):
    states = await look(backend, later=120.0)
    assert {state.state for state in states.values()} == {Learning.STALLED}


async def test_logs_that_cannot_be_read_in_time_or_at_all_are_no_error(backend, monkeypatch):
    async def refused(pod, query):
        raise BackendError("no log")
        yield

    backend.logs = refused
    assert {state.state for state in (await look(backend)).values()} == {Learning.UNKNOWN}

    async def silent(pod, query):
        await asyncio.Event().wait()  # like a node that does not answer
        yield

    backend.logs = silent
    monkeypatch.setattr(learning, "LIMIT_SECONDS", 0.05)
    assert {state.state for state in (await look(backend)).values()} == {Learning.UNKNOWN}


async def test_a_backend_that_does_not_answer_says_nothing_of_the_present(backend):
    backend.silent_since = backend.now() - 30.0
    states = await look(backend)
    assert {state.reason for state in states.values()} == {"cannot be seen: nothing answers"}


async def test_a_log_is_read_once_a_period_and_then_only_what_is_new(backend, monkeypatch):
    asked, yielded, logs = [], [], backend.logs

    async def counted(pod, query):
        asked.append((pod.name, query.since))
        async for log_line in logs(pod, query):
            yielded.append(log_line)
            yield log_line

    backend.logs = counted
    monkeypatch.setattr(learning, "REREAD_SECONDS", 1e9)  # longer than any machine's uptime: one period
    reader = learning.LearningReader(backend)
    snapshot = await backend.snapshot()
    runs = sorted(snapshot.runs.values(), key=lambda run: run.name)

    async def newest():
        own = await reader.look(snapshot, runs, backend.now())
        assert {one.state.state for one in own.values()} == {Learning.LIVE}
        return own[runs[0].uid].metrics

    first, num_first = await newest(), len(yielded)
    assert {since for _, since in asked} == {None}
    names = {name for name, _ in asked}
    backend.advance(4.0)
    asked.clear()
    assert await newest() is first
    assert not asked, "of a log that was read in this period"
    monkeypatch.setattr(learning, "REREAD_SECONDS", 1e-9)
    yielded.clear()
    second = await newest()
    assert second.env_steps > first.env_steps
    shifts = (second.returns[:-num] == first.returns[num:] for num in range(1, 20))
    assert any(shifts), "the history goes on"
    assert {name for name, _ in asked} == names
    assert len(yielded) < num_first / 4


async def test_a_learner_that_was_replaced_begins_anew(backend):
    reader = learning.LearningReader(backend)
    snapshot = await backend.snapshot()
    (run,) = snapshot.runs_matching("racing-sac-s0")
    before = (await reader.look(snapshot, [run], backend.now()))[run.uid].metrics
    old = next(pod for pod in snapshot.pods_of(run.name) if pod.role is Role.LEARNER)
    new = replace(old, uid="new", started=backend.now() - 10.0)
    pods = {uid: pod for uid, pod in snapshot.pods.items() if pod is not old} | {new.uid: new}
    after = (await reader.look(dataclasses.replace(snapshot, pods=pods), [run], backend.now()))[run.uid].metrics
    assert after.env_steps < before.env_steps
    assert len(after.returns) < len(before.returns)


def line(**fields):
    return json.dumps(
        {"l2r": "learner", "time": 1.0, "env_steps": 1, "updates": 1, **fields}, separators=(",", ":")
    )


def test_a_figure_that_was_a_number_and_is_null_is_not_finite():
    series = Series("r")
    first = series.read_line(line(critic_loss=None, mean_return=None, gpu_percent=None, alpha=None, entropy=1.0))
    assert first.progress.broken == ("critic_loss",)
    second = series.read_line(line(critic_loss=0.5, entropy=None, alpha=None))
    assert second.progress.broken == ("entropy",)


@pytest.mark.parametrize(
    ("fields", "has_steps"), [({"step": 3}, True), ({"global_step": 3}, True), ({"state": "waiting"}, False)]
)
def test_a_process_that_counts_steps_reports_regularly(fields, has_steps):
    record = pod_records.read(json.dumps({"l2r": "elastic", "time": 1.0, **fields}, separators=(",", ":")))
    assert record.has_steps is has_steps


@pytest.mark.parametrize(
    ("ages", "state", "num_read"),
    [
        ([5.0, 900.0, 900.0], Learning.LIVE, 1),
        ([900.0, 900.0, 5.0], Learning.LIVE, 3),
        ([900.0, 900.0, 900.0], Learning.STALLED, 3),
        ([None, 900.0, 900.0], Learning.LIVE, 1),  # a set whose first pod writes no records
    ],
)
async def test_of_a_run_without_a_learner_further_logs_are_read_only_if_the_first_are_old(
    backend, ages, state, num_read
):
    snapshot = await backend.snapshot()
    (whole,) = snapshot.runs_matching("racing-sac-s0")
    run = replace(whole, kind=Kind.ELASTIC)
    worker = next(pod for pod in snapshot.pods_of(run.name) if pod.role is Role.WORKER and pod.ready)
    members = [
        replace(worker, uid=f"member-{rank}", name=f"member-{rank}", index=rank) for rank in range(len(ages))
    ]
    read = []

    async def logs(pod, query):
        read.append(pod.name)
        if (age := ages[pod.index]) is not None:
            record = {"l2r": "elastic", "time": backend.now() - age, "step": 3}
            yield LogLine(backend.now() - age, pod.name, json.dumps(record, separators=(",", ":")))

    backend.logs = logs
    shown = dataclasses.replace(snapshot, runs={run.uid: run}, pods={pod.uid: pod for pod in members})
    looked = await learning.run_learning(backend, shown, [run], backend.now())
    assert (looked[run.uid].state.state, len(read)) == (state, num_read)
