"""Liveness in virtual time: silence is reported soon enough, never without cause, and its end immediately."""

from __future__ import annotations

import asyncio
import random

import pytest

from l2rtui.backends.common.liveness import Liveness
from tests.fakes.virtual_time import run_virtually

EPOCH = 1_700_000_000.0


class Server:
    """Server that hangs during some time spans, and the check of it.

    Attributes:
        reports: (time, silent_since) of each change, in seconds since the start.
        questions: Times of all requests.
    """

    def __init__(self, hangs=(), is_refusing=False, latency=0.01):
        self.hangs, self.is_refusing, self.latency = hangs, is_refusing, latency
        self.reports, self.questions = [], []
        self.liveness = Liveness(self.ask, self.changed, clock=lambda: EPOCH + self.now)

    @property
    def now(self):
        return asyncio.get_running_loop().time()

    @property
    def is_hanging(self):
        return any(start <= self.now < end for start, end in self.hangs)

    async def ask(self, seconds):
        self.questions.append(self.now)
        end = self.now + seconds
        if self.is_hanging and self.is_refusing:
            return False
        await asyncio.sleep(self.latency)
        while self.is_hanging and self.now < end:
            await asyncio.sleep(0.1)
        return self.now < end

    def changed(self):
        since = self.liveness.silent_since
        self.reports.append((self.now, None if since is None else since - EPOCH))

    async def go(self, seconds, events=()):
        task = asyncio.create_task(self.liveness.run())
        for moment in events:
            await asyncio.sleep(moment - self.now)
            if not self.is_hanging:
                self.liveness.hear()
        await asyncio.sleep(seconds - self.now)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return self


@pytest.mark.parametrize("is_refusing", [False, True])
@pytest.mark.parametrize("start", [10.0, 11.3, 12.9, 14.1, 15.7, 3601.2])
def test_silence_is_reported_within_15_seconds_and_its_end_within_5(start, is_refusing):
    server = run_virtually(Server([(start, start + 60)], is_refusing).go(start + 70))
    (said, since), (back, after) = server.reports
    assert start + 5 < said <= start + 15
    assert start - 5 <= since <= start
    assert after is None
    assert start + 60 <= back <= start + 65


@pytest.mark.slow
def test_fifty_rounds_at_random_moments_and_of_any_length_keep_both_limits():
    chance = random.Random(16)
    hangs, end = [], 0.0
    for _ in range(50):
        start = end + chance.uniform(6.0, 40.0)
        end = start + chance.uniform(15.0, 300.0)
        hangs.append((start, end))
    reports = run_virtually(Server(hangs).go(end + 10)).reports
    assert len(reports) == 100
    for (start, end), (said, since), (back, after) in zip(hangs, reports[::2], reports[1::2], strict=True):
        assert start - 5 <= since <= start
        assert said <= start + 15
        assert (after, end <= back <= end + 5) == (None, True)


def test_a_watch_that_brings_something_ends_the_silence_at_once():
    server = run_virtually(Server([(10.0, 60.0)]).go(100.0, [*range(1, 10), 60.05]))
    assert [moment for moment, _ in server.reports][1] == pytest.approx(60.05, abs=0.11)


def test_a_process_that_was_stopped_and_finds_the_server_well_reports_that_silence_and_its_end():
    async def stop_and_go_on():
        server = Server()
        task = asyncio.create_task(server.go(200.0))
        await asyncio.sleep(21.0)
        asyncio.get_running_loop().stop_for(120.0)
        return await task

    (said, since), (back, after) = run_virtually(stop_and_go_on()).reports
    assert 16.0 <= since <= 21.0
    assert 141.0 <= said < back < 142.0
    assert after is None


def test_a_day_without_a_fault_reports_nothing_and_a_slow_server_is_not_silent():
    day = run_virtually(Server(latency=3.5).go(86400.0))
    assert day.reports == []
    assert len(day.questions) < 86400 / 7


def test_short_hangs_are_no_silence():
    assert run_virtually(Server([(start, start + 5.0) for start in range(10, 1000, 31)]).go(1010.0)).reports == []


def test_no_request_is_sent_while_a_watch_brings_something():
    busy = run_virtually(Server().go(600.0, [number * 3.0 for number in range(1, 200)]))
    assert busy.questions == []
