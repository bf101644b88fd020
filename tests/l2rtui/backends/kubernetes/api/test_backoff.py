"""Pauses of one watch, and the shared probe during an outage."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.backoff import BackOff, ProbeResult, ServerGate, Timing

FAST = Timing(first=0.02, longest=0.75, patience=0.75)


def test_pauses_grow_up_to_the_longest_and_begin_anew_after_a_watch_that_was_well():
    back_off = BackOff(FAST, chance=lambda: 0.5)
    assert [back_off.pause() for _ in range(7)] == pytest.approx([0.03, 0.06, 0.12, 0.24, 0.48, 0.96, 1.125])
    back_off.reset()
    assert back_off.pause() == pytest.approx(0.03)


def test_pauses_shrink_again_by_themselves_but_not_while_they_last():
    now = [100.0]
    timing = replace(FAST, first=1.0, longest=30.0, calm=4.0)
    back_off = BackOff(timing, chance=lambda: 0.0, clock=lambda: now[0])
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0):
        assert back_off.pause() == pause
        now[0] += pause  # fails again immediately
    now[0] += 9.0  # no failure in between
    assert back_off.pause() == 30.0 / 4
    now[0] += 3600.0
    assert back_off.pause() == 1.0


async def test_a_server_that_has_just_begun_to_listen_is_asked_again_as_soon_as_before():
    reported = [ProbeResult.REFUSED, *[ProbeResult.UNHEALTHY] * 6, ProbeResult.HEALTHY]
    timing = replace(FAST, first=0.5, probe=60.0, patience=60.0)

    async def ask():
        return reported.pop(0)

    async with asyncio.timeout(20):  # with a server that is only slow it would have waited half a minute by then
        assert await ServerGate(ask, timing).wait(), "it had been away"
    assert reported == []


async def test_a_server_that_is_well_at_the_first_question_has_not_been_away():
    async def ask():
        return ProbeResult.HEALTHY

    async with asyncio.timeout(20):
        assert not await ServerGate(ask, FAST).wait()


async def test_one_probe_serves_all_watches_that_wait():
    probes = []

    async def probe():
        probes.append(len(probes))
        return ProbeResult.HEALTHY if len(probes) == 3 else ProbeResult.UNHEALTHY

    gate = ServerGate(probe, replace(FAST, first=0.001, probe=0.002, patience=60.0))
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(gate.wait() for _ in range(10))) == [True] * 10
    assert len(probes) == 3


async def test_a_watch_tries_by_itself_when_the_probe_never_succeeds():
    async def probe():
        return ProbeResult.UNHEALTHY

    async with asyncio.timeout(20):
        assert not await ServerGate(probe, replace(FAST, patience=0.02)).wait()
