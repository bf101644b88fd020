"""State of learning from one look at the logs: of learners first, of workers where they explain it."""

from __future__ import annotations

import asyncio
import json

import pytest

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.runstatus import Learning
from l2rtui.errors import BackendError
from l2rtui.services import learning, pod_records
from l2rtui.services.metrics import Series


async def look(backend, later=0.0):
    snapshot = await backend.snapshot()
    runs = sorted(snapshot.runs.values(), key=lambda run: run.name)
    states = await learning.learning_states(backend, snapshot, runs, backend.now() + later)
    return {run.name: states[run.uid] for run in runs}


@pytest.fixture
def backend():
    return FakeBackend(owner="me")


async def test_runs_that_learn_are_live_and_a_worker_that_fails_is_named(backend):
    states = await look(backend)
    assert {state.state for state in states.values()} == {Learning.LIVE}
    assert states["racing-sac-s0"].reason == "learns"
    assert "1 of 4 workers sends nothing (racing-sac-s1-w-3 fails again" in states["racing-sac-s1"].reason


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
        await asyncio.Event().wait()  # as a node that does not answer
        yield

    backend.logs = silent
    monkeypatch.setattr(learning, "LIMIT_SECONDS", 0.05)
    assert {state.state for state in (await look(backend)).values()} == {Learning.UNKNOWN}


async def test_a_backend_that_does_not_answer_says_nothing_of_the_present(backend):
    backend.silent_since = backend.now() - 30.0
    states = await look(backend)
    assert {state.reason for state in states.values()} == {"cannot be seen: nothing answers"}


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
