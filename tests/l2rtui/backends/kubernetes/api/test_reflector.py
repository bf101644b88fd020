"""The reflector against a server that misbehaves by script: its reported objects, and its request rate."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.backoff import ProbeResult, ServerGate, Timing
from l2rtui.backends.kubernetes.api.list_pages import Scope
from l2rtui.backends.kubernetes.api.reflector import Reflector, probe
from l2rtui.backends.kubernetes.api.structs import ConfigMapStruct
from tests.fakes.virtual_time import run_virtually
from tests.l2rtui.backends.kubernetes.api_server import (
    Server,
    config_map,
    cut,
    event,
    refusal,
    send,
    serving,
    status,
    stay,
)

# A fortieth of the real delays.
FAST = Timing(
    first=0.02, longest=0.75, calm=0.1, healthy=0.05, relist=0.25, short=0.1, forbidden=1.5, probe=0.105,
    refused=0.03, denied=0.02, patience=0.75, quiet=1.9, dead=2.2, watch=7.5, page=5.0,
)  # fmt: skip


class Told:
    """Changes reported by a reflector, and a way to wait for them."""

    def __init__(self):
        self.changes = []
        self.news = asyncio.Condition()

    def __call__(self, old, new):
        name = (new or old).metadata.name
        self.changes.append((name, bool(old), bool(new)))


@asynccontextmanager
async def following(server, timing=FAST, *, streams_lists=False):
    api = server.followed_by = server.api()
    api.server_version = (1, 33) if streams_lists else (1, 20)
    reported = Told()
    gate = ServerGate(lambda: probe(api), timing)
    reflector = Reflector(api, Scope("ConfigMap"), ConfigMapStruct, reported, gate, timing)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, reported.changes
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def until(is_so, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.005)


def names(reflector):
    return sorted(item.metadata.name for item in reflector.items.values())


async def test_it_lists_once_then_follows_what_changes():
    first, other = config_map("a", 3, x="1"), config_map("b", 12)
    changed, gone = config_map("a", 13, x="2"), config_map("b", 14)
    events = [event("ADDED", other), event("MODIFIED", changed), event("DELETED", gone)]
    server = Server([first], on_watch=[send(*events)])
    async with serving(server), following(server) as (reflector, changes):
        await until(lambda: len(changes) == 4)
        assert changes == [("a", False, True), ("b", False, True), ("a", True, True), ("b", True, False)]
        assert reflector.items["ml/a"].data == {"x": "2"}
        assert (len(server.lists), len(server.watches)) == (1, 1)
        assert server.watches[0]["resourceVersion"] == "10"
        assert server.watches[0]["allowWatchBookmarks"] == "true"
        assert 7 <= int(server.watches[0]["timeoutSeconds"]) <= 15
        assert reflector.stale_seconds == 0.0


async def test_a_list_comes_in_pages_at_one_revision():
    pages = [
        {"metadata": {"resourceVersion": "10", "continue": "more"}, "items": [config_map("a", 1)]},
        {"metadata": {"resourceVersion": "10"}, "items": [config_map("b", 2)]},
    ]
    server = Server(on_list=[refusal(504, "Timeout", "Too large resource version: 9, current: 3"), *pages])
    async with serving(server), following(server) as (reflector, _):
        await reflector.settled.wait()
        assert names(reflector) == ["a", "b"]
        assert [query.get("continue") for query in server.lists] == [None, None, "more"]
        assert [query.get("limit") for query in server.lists] == [None, "500", "500"]
        assert [query.get("resourceVersion") for query in server.lists] == ["0", None, None]


async def test_a_page_that_has_expired_begins_the_list_anew_in_one_piece_and_nothing_half_is_shown():
    server = Server(
        [config_map("c", 4)],
        on_list=[
            refusal(410, "Expired"),
            {"metadata": {"resourceVersion": "10", "continue": "more"}, "items": [config_map("a", 1)]},
            refusal(410, "Expired"),
        ],
    )
    async with serving(server), following(server) as (reflector, changes):
        await reflector.settled.wait()
        assert (names(reflector), changes) == (["c"], [("c", False, True)])
        assert "limit" not in server.lists[3]


async def test_a_watch_that_ends_goes_on_from_its_last_revision():
    newer, bookmark = config_map("b", 12), config_map("", 17)

    async def later(server, request, response):
        await asyncio.sleep(0.12)  # longer than the failure threshold

    acts = [send(event("ADDED", newer), then=later), send(event("BOOKMARK", bookmark), then=later), stay]
    server = Server([config_map("a", 3)], on_watch=acts)
    async with serving(server), following(server) as (_, changes):
        await until(lambda: len(server.watches) == 3)
        assert [query["resourceVersion"] for query in server.watches] == ["10", "12", "17"]
        assert len(server.lists) == 1
        assert len(changes) == 2


@pytest.mark.parametrize("is_event", [True, False])
async def test_a_revision_that_is_gone_costs_one_list_and_only_differences_are_told(is_event):
    gone = send(event("ERROR", status(410, "Expired")), then=None) if is_event else refusal(410, "Expired")
    server = Server([config_map("a", 3), config_map("b", 4), config_map("c", 5)], on_watch=[gone, stay])
    async with serving(server), following(server) as (reflector, changes):
        await reflector.settled.wait()
        server.objects = [config_map("a", 3), config_map("b", 21), config_map("d", 22)]
        server.version = 30
        await until(lambda: len(server.watches) == 2)
        assert [query["resourceVersion"] for query in server.lists] == ["0", "10"]
        assert server.watches[1]["resourceVersion"] == "30"
        assert sorted(changes[3:]) == [("b", True, True), ("c", True, False), ("d", False, True)]


async def test_a_revision_that_is_always_gone_is_not_asked_for_in_a_loop():
    server = Server([config_map("a", 3)], on_watch=[refusal(410, "Expired")])
    async with serving(server), following(server) as (reflector, changes):
        await asyncio.sleep(0.75)  # thirty seconds of the real timing
        assert len(server.watches) <= 8
        assert names(reflector) == ["a"]
        assert len(changes) == 1


async def test_revisions_that_are_gone_now_and_then_are_listed_again_without_growing_pauses():
    async def well(server, request, response):
        await asyncio.sleep(2 * FAST.healthy)
        await response.write(json.dumps(event("ERROR", status(410, "Expired"))).encode() + b"\n")

    server = Server([config_map("a", 3)], on_watch=[well] * 6 + [stay])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: len(server.watches) == 7)
        assert reflector.back_off.pause() <= 4 * FAST.first


async def test_an_object_that_takes_the_name_of_another_is_another():
    server = Server([config_map("a", 3)], on_watch=[send(event("ADDED", config_map("a", 12, "other")))])
    async with serving(server), following(server) as (reflector, changes):
        await until(lambda: len(changes) == 3)
        assert changes[1:] == [("a", True, False), ("a", False, True)]
        assert reflector.items["ml/a"].metadata.uid == "other"


async def test_a_late_deletion_of_the_one_before_does_not_remove_the_new_one():
    events = [event("ADDED", config_map("a", 12, "new")), event("DELETED", config_map("a", 13, "uid-a"))]
    server = Server([config_map("a", 3)], on_watch=[send(*events, event("ADDED", config_map("z", 14)))])
    async with serving(server), following(server) as (reflector, changes):
        await until(lambda: ("z", False, True) in changes)
        assert names(reflector) == ["a", "z"]


@pytest.mark.parametrize("requested", ["list", "watch"])
async def test_too_many_requests_are_obeyed_without_another_list(requested):
    busy = refusal(429, "TooManyRequests", Retry_After="0.4")
    server = Server([config_map("a", 3)])
    if requested == "list":
        server.on_list = [busy]
    else:
        server.on_watch = [busy, stay]
    async with serving(server), following(server):
        await until(lambda: len(server.watches) == (1 if requested == "list" else 2))
        (before, _), (after, _) = server.requests[-3:-1] if requested == "list" else server.requests[-2:]
        assert after - before >= 0.4
        assert len(server.lists) == (2 if requested == "list" else 1)
        assert server.watches[-1]["resourceVersion"] == "10"


@pytest.mark.parametrize("failure", ["closes", "cuts", "refuses", "errors"])
async def test_an_outage_costs_at_most_eight_requests_in_thirty_seconds_and_the_last_state_stays(failure):
    act = {
        "closes": send(then=None),
        "cuts": cut,
        "refuses": refusal(503, "ServiceUnavailable"),
        "errors": send(event("ERROR", status(500, "InternalError")), then=None),
    }[failure]
    server = Server([config_map("a", 3)], on_watch=[act], is_well=failure in ("closes", "cuts"))
    async with serving(server), following(server) as (reflector, changes):
        await reflector.settled.wait()
        await asyncio.sleep(0.75)
        assert 1 <= len(server.watches) <= 8
        assert server.probes <= 8
        assert len(server.lists) == 1
        assert (names(reflector), len(changes)) == (["a"], 1)


async def test_it_comes_back_soon_after_a_server_that_was_ill_and_knows_how_stale_it_was():
    server = Server([config_map("a", 3)], on_watch=[send(then=cut), refusal(500, "InternalError")], is_well=False)
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: reflector.error is not None)
        await asyncio.sleep(0.5)
        assert reflector.stale_seconds >= 0.5
        assert "did not read" in reflector.error.message
        server.on_watch, server.is_well = [stay], True
        await until(lambda: reflector.error is None, seconds=0.3)
        assert reflector.stale_seconds == 0.0


async def test_it_comes_back_after_a_server_that_was_away():
    server = Server([config_map("a", 3)], on_watch=[send(then=cut)])
    async with following_restart(server) as (reflector, port):
        await until(lambda: reflector.error is not None and reflector.error.is_refused)
        before = len(server.requests)
        await asyncio.sleep(0.3)
        assert len(server.requests) == before
        server.on_watch, server.objects = [send(event("ADDED", config_map("b", 12)))], []
        async with serving(server, port):
            await until(lambda: names(reflector) == ["a", "b"], seconds=1.0)
            assert len(server.lists) == 1


async def test_watches_that_are_cut_at_once_do_not_sit_out_a_pause_while_the_server_comes_and_goes():
    timing = replace(FAST, first=60.0, longest=60.0, probe=0.01, refused=0.01, short=60.0)
    probes = replace(timing, first=0.01)
    server = Server([config_map("a", 3)], on_watch=[*[send(then=cut), refusal(500, "InternalError")] * 4, stay])
    pulses = iter([ProbeResult.UNHEALTHY, ProbeResult.HEALTHY] * 4)

    async def ask():
        return next(pulses)

    async with serving(server):
        api = server.api()
        reflector = Reflector(api, Scope("ConfigMap"), ConfigMapStruct, Told(), ServerGate(ask, probes), timing)
        task = asyncio.create_task(reflector.run())
        await until(lambda: len(server.watches) == 9)  # a single pause would be a minute
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


@asynccontextmanager
async def following_restart(server):
    """Follow a server that goes away once it has been listed."""
    stopped = asyncio.Event()

    async def serve():
        async with serving(server):
            await stopped.wait()

    serves = asyncio.create_task(serve())
    await until(lambda: server.base)
    async with following(server) as (reflector, _):
        await reflector.settled.wait()
        # The session is imported now. A connection that is made while the server stops would get no answer.
        await until(lambda: server.watches)
        stopped.set()
        await serves
        yield reflector, int(server.base.rpartition(":")[2])


async def test_a_watch_whose_connection_we_close_ourselves_goes_on_with_another():
    server = Server([config_map("a", 3)])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: len(server.watches) == 1 and reflector.stale_seconds == 0.0)
        await server.followed_by.session.close_clients()  # as for a client certificate that has been renewed
        await until(lambda: len(server.watches) == 2)
        assert len(server.lists) == 1


async def test_a_connection_that_falls_silent_is_noticed_by_the_bookmarks_that_do_not_come():
    timing = replace(FAST, quiet=0.2, dead=0.4)
    server = Server(on_watch=[send(event("BOOKMARK", config_map("", 11))), stay])
    async with serving(server), following(server, timing) as (reflector, _):
        await until(lambda: reflector.stale_seconds > 0.2)
        await until(lambda: len(server.watches) == 2, seconds=1.0)
        assert server.watches[1]["resourceVersion"] == "11"
        assert len(server.lists) == 1


@pytest.mark.parametrize(
    "line", [b"not json\n", b'{"type":"ADDED","object":[1]}\n', b"\xff\xfe\n", b'{"type":"ADDED","obj\n']
)
async def test_a_line_that_cannot_be_read_is_counted_and_what_it_may_have_said_is_looked_up(line):
    server = Server([config_map("a", 3)], on_watch=[send(line), send(event("ADDED", config_map("c", 31)))])
    async with serving(server), following(server) as (reflector, changes):
        await reflector.settled.wait()
        server.objects, server.version = [config_map("a", 3), config_map("b", 20)], 30
        await until(lambda: names(reflector) == ["a", "b", "c"])
        assert reflector.garbage == 1
        assert len(changes) == 3


async def test_empty_lines_odd_bookmarks_and_huge_objects_do_not_stop_it():
    huge = config_map("huge", 12, x="y" * (3 << 20))
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {}}}
    server = Server(on_watch=[send(b"\n", b" \n", bookmark, event("ADDED", huge))])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: names(reflector) == ["huge"])
        assert len(reflector.items["ml/huge"].data["x"]) == 3 << 20
        assert reflector.garbage == 0


async def test_a_line_that_a_cut_has_halved_comes_again_whole():
    complete = json.dumps(event("ADDED", config_map("b", 12))).encode()

    async def half(server, request, response):
        await response.write(complete[:40])
        await asyncio.sleep(0.12)
        request.transport.abort()

    server = Server(on_watch=[half, send(complete + b"\n")])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: names(reflector) == ["b"])
        assert (reflector.garbage, len(server.lists)) == (0, 1)


async def test_one_malformed_object_is_set_aside_and_the_others_are_shown():
    odd = {**config_map("odd", 4), "data": [1, 2]}
    server = Server([config_map("a", 3), odd, config_map("b", 5)])
    async with serving(server), following(server) as (reflector, _):
        await reflector.settled.wait()
        assert names(reflector) == ["a", "b"]
        assert list(reflector.undecoded) == ["ml/odd"]
        assert "got `array` - at `$.data`" in reflector.undecoded["ml/odd"].error


async def test_an_object_that_becomes_malformed_keeps_its_last_good_version_until_it_is_gone():
    odd = {**config_map("a", 12), "data": 7}
    steps = [event("MODIFIED", odd), event("ADDED", config_map("b", 13)), event("DELETED", {**odd})]
    server = Server([config_map("a", 3)], on_watch=[send(*steps[:2]), stay])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: names(reflector) == ["a", "b"] and reflector.undecoded)
    server = Server([config_map("a", 3)], on_watch=[send(*steps)])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: names(reflector) == ["b"])
        assert not reflector.undecoded


async def test_items_that_are_null_are_none():
    server = Server(on_list=[{"metadata": {"resourceVersion": "9"}, "items": None}])
    async with serving(server), following(server) as (reflector, _):
        await reflector.settled.wait()
        assert reflector.items == {}


async def test_a_missing_right_is_told_and_asked_for_seldom():
    server = Server(on_list=[refusal(403, "Forbidden", 'cannot list resource "configmaps"')] * 50)
    async with serving(server), following(server, replace(FAST, forbidden=0.6)) as (reflector, _):
        await reflector.settled.wait()
        assert not reflector.is_listed
        assert "cannot list" in reflector.error.detail
        await asyncio.sleep(0.3)
        assert len(server.lists) == 1
        server.on_list = []
        await until(lambda: reflector.is_listed, seconds=3)


async def test_a_server_that_has_just_started_and_does_not_know_its_rules_yet_is_asked_again_soon():
    server = Server([config_map("a", 3)], on_watch=[send(then=cut), refusal(403, "Forbidden"), stay])
    seldom = replace(FAST, forbidden=60.0)
    async with serving(server), following(server, seldom) as (reflector, _):
        await until(lambda: len(server.watches) == 3 and reflector.error is None)


async def test_a_streamed_list_is_taken_over_when_it_is_complete():
    end = config_map("", 20)
    end["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    begun = asyncio.Event()

    async def finish(server, request, response):
        await begun.wait()
        for item in (event("BOOKMARK", end), event("ADDED", config_map("c", 21))):
            await response.write(json.dumps(item).encode() + b"\n")
        await asyncio.Event().wait()

    first = [event("ADDED", config_map("a", 9)), event("ADDED", config_map("b", 3))]
    server = Server(on_watch=[send(*first, then=finish)])
    async with serving(server), following(server, streams_lists=True) as (reflector, changes):
        await until(lambda: len(server.watches) == 1)
        await asyncio.sleep(0.05)
        assert changes == []
        begun.set()
        await until(lambda: names(reflector) == ["a", "b", "c"])
        assert server.lists == []
        assert server.watches[0]["sendInitialEvents"] == "true"
        assert server.watches[0]["resourceVersionMatch"] == "NotOlderThan"


@pytest.mark.parametrize("code", [400, 422])
async def test_a_server_that_does_not_stream_lists_is_asked_so_once(code):
    server = Server([config_map("a", 3)], on_watch=[refusal(code, "Invalid"), stay])
    async with serving(server), following(server, streams_lists=True) as (reflector, _):
        await until(lambda: len(server.watches) == 2)
        assert names(reflector) == ["a"]
        assert len(server.lists) == 1
        assert "sendInitialEvents" not in server.watches[1]


async def test_a_list_that_is_no_list_is_an_error_and_no_end():
    server = Server([config_map("a", 3)], on_list=[web.Response(text="<html>log in</html>")])
    async with serving(server), following(server) as (reflector, _):
        await until(lambda: reflector.error is not None)
        await until(lambda: names(reflector) == ["a"])


@pytest.mark.slow
def test_five_hours_of_refusals_take_no_memory_and_a_request_a_second_at_most_and_then_it_comes_back():
    run_virtually(refused_for_five_hours())


async def refused_for_five_hours():
    loop, timing, hour, probes = asyncio.get_running_loop(), Timing(), 3600.0, itertools.count()
    server = Server([config_map("a", 3)])
    async with serving(server):
        api = server.api()

        async def count_and_probe():
            next(probes)
            return await probe(api)

        gate = ServerGate(count_and_probe, timing, loop.time)
        reflector = Reflector(api, Scope("ConfigMap"), ConfigMapStruct, Told(), gate, timing, loop.time)
        task = asyncio.create_task(reflector.run())
        await until(lambda: server.watches)
    await asyncio.sleep(2 * hour)  # until yarl's caches of 128 URLs are full
    memory, tasks = allocated_blocks(), len(asyncio.all_tasks())
    await asyncio.sleep(3 * hour)
    assert allocated_blocks() - memory < 200, "after more than 5,000 refusals"
    assert len(asyncio.all_tasks()) == tasks
    assert 3 * hour < next(probes) + reflector.watches < 5 * hour
    assert reflector.error.is_refused
    assert names(reflector) == ["a"]
    assert 5 * hour <= reflector.stale_seconds < 5 * hour + 60.0
    server.on_watch = [send(event("ADDED", config_map("b", 12)))]
    async with serving(server, int(server.base.rpartition(":")[2])):
        await until(lambda: names(reflector) == ["a", "b"], seconds=5.0)
        assert (reflector.error, reflector.stale_seconds, len(server.lists)) == (None, 0.0, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


def allocated_blocks():
    gc.collect()
    return sys.getallocatedblocks()
