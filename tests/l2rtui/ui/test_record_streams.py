"""Streams of records: workers and evaluators are watched, many take turns, the silent stay, ended ones return."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from l2rtui.domain.log import LogLine
from l2rtui.domain.metrics import PodMetrics
from l2rtui.domain.snapshot import PodView
from l2rtui.domain.status import Phase
from l2rtui.domain.workload import Role
from l2rtui.services.logs import ReadingTurns
from l2rtui.ui.state import record_streams
from l2rtui.ui.state.record_streams import PodRecordStream

DEADLINE_SECONDS = 60.0
MOST = 4
POD = PodView("w0", "r-w-0", role=Role.WORKER, run="r", phase=Phase.RUNNING, ready=True, started=1.0)
PODS = tuple(replace(POD, uid=f"w{index}", name=f"r-w-{index}") for index in range(10))


class Cluster:
    """A backend whose pods print one record and go on, until a test ends their logs."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.opened: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.text = json.dumps({"l2r": "worker", "time": 5.0, "env_steps_per_second": 1.0}, separators=(",", ":"))

    async def logs(self, pod, _query):
        self.open.append(pod.uid)
        self.opened.append(pod.uid)
        end = self.ends[pod.uid] = asyncio.Event()
        try:
            yield LogLine(1.0, pod.name, self.text)
            yield LogLine(1.0, pod.name, "", is_seam=True)
            await end.wait()
        finally:
            self.open.remove(pod.uid)


class Background:
    def start(self, work, **_):
        return asyncio.ensure_future(work)


async def until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


@pytest.fixture
async def world(monkeypatch):
    """A stream with few places, the cluster behind it, and what was reported."""
    monkeypatch.setattr(record_streams, "PERIOD_SECONDS", 0.01)
    monkeypatch.setattr(record_streams, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(record_streams, "TURN_SECONDS", 0.0)
    cluster, reported = Cluster(), {}
    ctx = SimpleNamespace(backend=cluster, background=Background(), speed=1.0, turns=ReadingTurns())
    stream = PodRecordStream(ctx, reported.update, most=MOST)
    yield stream, cluster, reported
    stream.follow(())
    await until(lambda: not cluster.open)


async def test_a_few_pods_are_all_followed_and_looked_at_once_they_were_reported(world):
    stream, cluster, reported = world
    learner = replace(POD, uid="l", role=Role.LEARNER)
    over = replace(POD, uid="o", phase=Phase.SUCCEEDED)
    stream.follow((learner, over, *PODS[:3]))
    assert not stream.looked
    await until(lambda: len(reported) == 3)
    assert stream.looked == set(cluster.open) == {"w0", "w1", "w2"}
    assert isinstance(reported["w0"], PodMetrics)
    stream.follow(PODS[:3])
    await asyncio.sleep(0)
    assert len(cluster.opened) == 3, "they stay open"
    stream.follow(PODS[:1])
    await until(lambda: cluster.open == ["w0"])
    assert stream.looked == {"w0"}


async def test_many_pods_take_turns_and_never_have_more_streams_than_there_are(world):
    stream, cluster, reported = world

    def is_everybody_reported():
        stream.follow(PODS)
        assert len(stream._workers) == MOST
        return len(reported) == len(PODS)

    await until(is_everybody_reported)
    await until(lambda: len(cluster.open) == MOST)


async def test_who_has_fallen_silent_stays_open_while_the_others_take_turns(world):
    stream, cluster, _ = world
    stream.follow(PODS)
    await until(lambda: len(stream.looked) == MOST)
    silent = cluster.open[0]
    for _ in range(5):
        stream.follow(PODS, {silent, "w9"})
        await until(lambda: len(cluster.open) == MOST)
        assert silent in cluster.open
    assert cluster.opened.count(silent) == 1


async def test_a_log_that_ends_while_its_pod_is_there_is_opened_again(world):
    stream, cluster, _ = world
    stream.follow(PODS[:1])
    await until(lambda: stream.looked == {"w0"})
    cluster.ends["w0"].set()
    await until(lambda: not stream.looked)

    def is_open_again():
        stream.follow(PODS[:1])
        return cluster.opened == ["w0", "w0"]

    await until(is_open_again)


async def test_a_pod_that_writes_no_records_is_not_opened_again(world, monkeypatch):
    stream, cluster, _ = world
    monkeypatch.setattr("l2rtui.services.pod_records.SILENT_LINES", 0)
    cluster.text = "INFO nothing to tell"
    stream.follow(PODS[:1])
    await until(lambda: not cluster.open and cluster.opened)
    for _ in range(20):
        stream.follow(PODS[:1])
        await asyncio.sleep(0.002)
    assert cluster.opened == ["w0"]
