"""Metric records: expected fields are read, everything else is ignored."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import LogLine
from l2rtui.domain.workload import Role
from l2rtui.errors import NotFoundError
from l2rtui.services import metrics
from runtime.base.metrics import parse_record

RECORD = {
    "l2r": "learner",
    "time": 12.5,
    "env_steps": 1000,
    "updates": 50,
    "policy_version": 5,
    "policy_lag": [0, 1.5, 4],
    "env_steps_per_second": 800.0,
    "updates_per_second": 40.0,
    "mean_return": 3.5,
    "eval_return": None,
    "eval_progress": None,
    "workers": 4,
}


def line(record):
    return json.dumps(record, separators=(",", ":"))


def test_a_record_becomes_numbers():
    record = parse_record(line(RECORD))
    assert record is not None
    found = metrics.Series("r").add(record)

    assert (found.run, found.env_steps, found.updates, found.policy_version) == ("r", 1000, 50, 5)
    assert (found.policy_lag, found.policy_lag_max, found.mean_return, found.workers) == (1.5, 4.0, 3.5, 4)
    assert (found.returns, found.rates) == ((3.5,), (800.0,))
    assert (found.device, found.gpu_percent, found.gpu_memory_bytes) == ("", None, None)


def test_a_record_names_the_learners_device_and_figures_of_another_type_are_unknown():
    gpu = {"device": "cuda:0 H100", "gpu_percent": 41.0, "gpu_memory_bytes": 3 << 30, "gpu_reserved_bytes": 1 << 30}
    found = metrics.Series("r").add({**RECORD, **gpu})
    assert (found.device, found.gpu_percent) == ("cuda:0 H100", 41.0)
    assert (found.gpu_memory_bytes, found.gpu_reserved_bytes) == (3 << 30, 1 << 30)
    found = metrics.Series("r").add({**RECORD, "device": 7, "gpu_percent": "all", "gpu_memory_bytes": 1e300})
    assert (found.device, found.gpu_percent, found.gpu_memory_bytes) == ("", None, None)


def test_the_evaluation_draws_the_curve_once_there_is_one():
    series = metrics.Series("r")
    series.add(RECORD)

    assert series.add({**RECORD, "eval_return": 9.0}).returns == (3.5, 9.0)


def test_history_is_bounded():
    series = metrics.Series("r")
    for number in range(metrics.HISTORY + 50):
        found = series.add({**RECORD, "mean_return": number})

    assert len(found.returns) == metrics.HISTORY
    assert found.returns[-1] == metrics.HISTORY + 49


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        '{"l2r":',
        '{"l2r":"learner"',
        '{"l2r":5}',
        '{"l2r":"x"}' + " " * 70_000,
        '{"l2r":"' + "[" * 9000,
    ],
)
def test_other_lines_are_no_records(text):
    assert parse_record(text) is None


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.dictionaries(st.sampled_from(sorted(RECORD)), VALUES | st.lists(VALUES, max_size=4)))
def test_no_record_can_break_the_reader(record):
    found = metrics.Series("r").add(record)

    assert isinstance(found.env_steps, int)
    assert all(isinstance(one, float) for one in found.returns)


async def test_the_latest_metrics_of_a_run():
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    run = next(iter(snapshot.runs.values()))

    found = await metrics.newest(backend, run.name, metrics.learner_of(snapshot, run.name))

    assert found is not None
    assert found.run == run.name
    assert found.env_steps > 0


async def test_follow_gives_one_after_each_record():
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    pod = next(pod for pod in snapshot.pods.values() if pod.role is Role.LEARNER)
    run = snapshot.run_named(pod.run)
    assert run is not None

    stream = metrics.follow(backend, run, pod)
    first = await anext(stream)
    second = await anext(stream)
    await stream.aclose()

    assert second.time > first.time


@pytest.mark.parametrize("is_followed", [True, False], ids=["live", "ended"])
async def test_without_its_backlog_a_stream_begins_with_the_newest_record(monkeypatch, is_followed):
    async def lines(_backend, pod, query):
        assert query.seam
        for second in range(5):
            yield LogLine(second, pod.name, f'{{"l2r":"learner","time":{second + 1},"env_steps":{second}}}')
        if is_followed:
            yield LogLine(5.0, "", "", is_seam=True)
            yield LogLine(6.0, pod.name, '{"l2r":"learner","time":7,"env_steps":6}')

    monkeypatch.setattr(FakeBackend, "logs", lines)
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    run = next(run for run in snapshot.runs.values() if metrics.has_learner(snapshot, run.name))
    learner = metrics.learner_of(snapshot, run.name)
    news = [found.env_steps async for found in metrics.follow(backend, run, learner, has_backlog=False)]
    assert news == ([4, 6] if is_followed else [4])
    everything = [found.env_steps async for found in metrics.follow(backend, run, learner)]
    assert everything == ([0, 1, 2, 3, 4, 6] if is_followed else [0, 1, 2, 3, 4])


async def test_a_learner_that_floods_its_log_without_a_record_stops_nobody(monkeypatch):
    async def endless(_backend, pod, _query):
        while True:
            yield LogLine(1.0, pod.name, "no record")

    monkeypatch.setattr(FakeBackend, "logs", endless)
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    run = next(run for run in snapshot.runs.values() if metrics.has_learner(snapshot, run.name))
    stream = metrics.follow(backend, run, metrics.learner_of(snapshot, run.name))
    first = asyncio.ensure_future(anext(stream))
    for _ in range(10):
        await asyncio.sleep(0)  # would never return
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_run_without_a_learner_has_no_metrics():
    backend = FakeBackend()
    snapshot = await backend.snapshot()
    pods = {uid: pod for uid, pod in snapshot.pods.items() if pod.role is not Role.LEARNER}
    with pytest.raises(NotFoundError, match="has no learner"):
        metrics.learner_of(dataclasses.replace(snapshot, pods=pods), next(iter(snapshot.runs.values())).name)


def test_peers_stay_as_they_were_named_until_they_are_named_again():
    series = metrics.Series("r")
    rates = {f"{name}_per_second": 2.0 for name in ("messages_in", "bytes_in", "messages_out", "bytes_out")}
    named = series.add({"l2r": "learner", **rates, "listens": ["tcp://h:1"], "peers": ["w-0"], "stale": 3})
    assert (named.exchange.peers, named.exchange.listens, named.exchange.stale) == (("w-0",), ("tcp://h:1",), 3)
    later = series.add({"l2r": "learner", **rates, "inflight_transitions": 7})
    assert (later.exchange.peers, later.exchange.inflight, later.exchange.is_recorded) == (("w-0",), 7, True)
    gone = series.add({"l2r": "learner", "peers": []})
    assert (gone.exchange.peers, gone.exchange.is_recorded) == ((), False)
    hostile = series.add({"l2r": "learner", "peers": {"w": 1}, "listens": [3], "bytes_in_per_second": "x"})
    assert (hostile.exchange.peers, hostile.exchange.listens, hostile.exchange.bytes_in) == ((), ("",), 0.0)
