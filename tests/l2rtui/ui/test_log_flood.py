"""Pods that write without a pause, some of it without an end, while somebody presses keys."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2rtui.backends.fake import FakeBackend
from l2rtui.domain.log import LogLine
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.log_ring import LogFilter, LogRing, LogStore
from l2rtui.ui.widgets.log_search import LogSearch
from tests.l2rtui.ui.conftest import DEADLINE_SECONDS
from tests.l2rtui.ui.test_fast_keys import strike
from tests.l2rtui.ui.test_widgets import stage

ENDLESS = "0123456789" * 100_000
LINES, CHARACTERS = 2_000, 200_000
TEXTS = (
    "INFO step reward=1.5 loss=0.03",
    "\x1b[31mERROR\x1b[0m of a library",
    '{"l2r":"worker","time":1.5,"env_steps":7610}',
    "語" * 60,
)


async def without_a_pause(_backend, pod, query):
    """Lines that are there already, however many are read."""
    if query.seam:
        yield LogLine(0.0, pod.name, "", is_seam=True)
    for number in itertools.count() if query.follow else range(200):
        text = TEXTS[number % len(TEXTS)] if number % 100 else ENDLESS
        yield LogLine(float(number), pod.name, text)


@pytest.fixture
def flood(monkeypatch):
    monkeypatch.setattr(FakeBackend, "logs", without_a_pause)


async def come_true(condition, what):
    """Wait without the pilot, which waits for a pause in the work that a flood never makes."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_keys_are_answered_and_memory_is_bounded_while_every_pod_floods_the_log(desk, flood):
    async with desk() as one:
        panes, pane = one.cluster.panes, one.cluster.panes.log_pane
        pane.ring, pane.store = LogRing(LINES, CHARACTERS), LogStore(LINES, CHARACTERS)
        pods = {pod.name for pod in panes.logs.active.selection.pods}
        await come_true(lambda: pods == set(pane.hues), "lines of each pod")
        await come_true(lambda: pane.dropped > 2 * LINES, "many more lines than are kept")
        for keys, is_so in (
            (("4",), lambda: one.app.focused is panes.nodes),
            (("5", "k", "k"), lambda: not pane.is_following),
            (("f",), lambda: pane.is_following),
            (("w",), lambda: pane.is_wrapping),
            (("ampersand", *"reward", "enter"), lambda: pane.hidden and "hidden" in str(pane.border_title)),
            (("slash", *"loss", "enter"), lambda: pane.search_fact.startswith("/loss, ")),
            # The key behind it closes the log that has the focus.
            (("vertical_line",), lambda: one.app.focused in [log.pane for log in panes.logs.controllers[1:]]),
            (("x",), lambda: [log.pane for log in panes.logs.controllers] == [pane]),
        ):
            received = pane.received
            strike(one, *keys)
            await come_true(is_so, " ".join(keys))
            await come_true(lambda received=received: pane.received > received, "the flood goes on")
        for lines in (pane.store, [*pane.ring]):
            assert len(lines) <= LINES
            assert sum(len(line.text) for line in lines) <= CHARACTERS
        assert one.fault is None


def lines(texts: list[str]) -> list[LogLine]:
    return [LogLine(float(number), "p", text) for number, text in enumerate(texts)]


def test_long_lines_are_kept_for_as_many_characters_and_leave_with_their_text():
    ring, store = LogRing(capacity=100, most_characters=1_000), LogStore(capacity=100, most_characters=1_000)
    for number in range(50):
        batch = lines([f"{number:04} {'x' * 95}"] * 3)
        ring.extend(batch)
        store.extend(batch)
    assert (len(ring), len(store), ring.dropped) == (10, 10, 140)
    assert [entry.text[:4] for entry in ring] == [line.text[:4] for line in store]
    assert sum(len(line.text) for line in ring._entries) == 1_000, "nothing is kept of what was dropped"
    ring.wrap(50)
    assert ring.rows == 20
    ring.extend(lines(["short"] * 40))
    assert [entry.text for entry in ring][-41:] == [f"0049 {'x' * 95}", *["short"] * 40]
    assert ring.at(ring.rows - 1) == (len(ring) - 1, 0)


def test_what_takes_more_memory_than_ascii_is_kept_for_fewer_characters():
    ring, store = LogRing(capacity=100, most_characters=1_000), LogStore(capacity=100, most_characters=1_000)
    batch = lines([f"{'x' * 24}\N{ROCKET}"] * 30)
    ring.extend(batch)
    store.extend(batch)
    assert (len(ring), len(store)) == (10, 10)
    ring.drop_newest()
    store.drop_newest()
    store.extend(batch[:1])
    assert (len(ring), len(store)) == (9, 10), "the dropped line counts no more"


def test_the_lines_that_patterns_hide_are_counted_as_they_come_and_go():
    store = LogStore(capacity=10)
    store.extend(lines(["a", "b"] * 5))
    assert store.hidden == 0
    store.narrow(LogFilter("a"))
    assert store.hidden == 5
    store.extend(lines(["b"] * 4))
    assert (len(store), store.hidden) == (10, 7)
    store.extend(lines(["a"] * 10))
    assert store.hidden == 0
    store.narrow(LogFilter())
    assert store.hidden == 0


@given(
    texts=st.lists(st.text("ab", max_size=4), max_size=30),
    words=st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from([1, -1]), max_size=8),
    capacity=st.integers(1, 30),
)
def test_a_search_finds_the_same_lines_as_a_look_at_each(texts, words, steps, capacity):
    ring, search = LogRing(capacity=capacity), LogSearch()
    ring.extend(lines(texts))
    for end in range(1, len(words) + 1):  # letter by letter, as it is typed
        text = "".join(words[:end])
        search = LogSearch(text, search)
        assert search.count(ring, "")
        assert search.position(ring, "")[1] == sum(entry.text.count(text) for entry in ring)
    places = [(number, start) for number, entry in enumerate(ring) for start in starts(entry.text, text)]
    at = len(places)  # a new search begins behind the newest
    for by in [-1, *steps]:
        assert search.step(ring, "", by) == bool(places)
        if places:
            at = (at + by) % len(places)
            assert (search.line, search.match.start) == places[at]


def starts(line, text):
    at = line.find(text)
    while at >= 0:
        yield at
        at = line.find(text, at + len(text))


def test_a_search_lets_keys_pass_and_goes_on_where_it_stopped():
    ring, search = LogRing(), LogSearch("b")
    ring.extend(lines(["b"] * 5_000))
    slices = 0
    while not search.count(ring, "", 0.0):
        slices += 1
    assert slices > 10
    assert search.position(ring, "")[1] == 5_000


@pytest.mark.parametrize("size", [1, 3, 7, 40])
def test_matches_are_counted_as_lines_come_and_go(size):
    ring, search = LogRing(capacity=20), LogSearch("b")
    for start in range(0, 120, size):
        ring.extend(lines(["abba" if number % 3 else "c" for number in range(start, start + size)]))
        assert search.step(ring, "", -1) or not any("b" in entry.text for entry in ring)
        expected = sum(entry.text.count("b") for entry in ring)
        current, total = search.position(ring, "")
        assert total == expected
        assert current == (expected or 0)
        search.line = None


@given(st.lists(st.tuples(st.sampled_from(["come", "slice", "newest"]), st.integers(0, 90)), max_size=12))
def test_lines_are_wrapped_in_slices_while_others_come_and_go(events):
    ring, whole = LogRing(capacity=100), LogRing(capacity=100)
    number = 0
    for what, amount in [("come", 99), ("slice", 0), *events]:
        if what == "come":
            batch = lines([f"{number + extra} {'x' * (extra * 7 % 60)}" for extra in range(amount)])
            number += amount
            ring.extend(batch)
            whole.extend(batch)
        elif what == "newest":
            ring.drop_newest()
            whole.drop_newest()
        elif ring.wrap(20, 0.0):
            break
        else:
            assert ring.width == 0, "as before, until all lines are measured"
    while not ring.wrap(20, 0.0):
        pass
    whole.wrap(20)
    assert (ring.rows, [entry.text for entry in ring]) == (whole.rows, [entry.text for entry in whole])
    assert [ring.at(row) for row in range(ring.rows)] == [whole.at(row) for row in range(whole.rows)]
    assert ring.wrap(0, 0.0)
    assert ring.rows == len(ring)


def test_lines_are_filtered_in_slices_while_others_come_and_go():
    store = LogStore(capacity=400)
    texts = ["a" if number % 3 else "b" for number in range(400)]
    store.extend(lines(texts))
    wanted = LogFilter("a")
    slices = 0
    while not store.narrow(wanted, 0.0):
        assert store.hidden == 0, "the old patterns apply until the last line"
        slices += 1
        more = lines(["b"] * 5)
        store.extend(more)
        texts += ["b"] * 5
        store.drop_newest()
        texts.pop()
    assert slices > 10
    kept = texts[-len(store) :]
    assert len(kept) == 399
    assert [entry.text for entry in store] == kept
    assert store.hidden == kept.count("b")


async def test_keys_pass_while_a_full_log_is_wrapped_and_filtered(monkeypatch):
    monkeypatch.setattr("l2rtui.ui.widgets.log_view.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("l2rtui.ui.widgets.log_pane.SLICE_SECONDS", 0.0)
    pane = LogPane()
    async with stage(pane, size=(40, 8)) as (_, pilot):
        pane.restart(run="run", is_merged=False, empty="")
        pane.extend(lines([f"{number} {'word ' * 12}" for number in range(2_000)]))
        pane.action_wrap()
        assert pane.is_arranging
        assert pane.ring.width == 0
        await until(pilot, lambda: not pane.is_arranging)
        assert pane.ring.rows == 4_000
        pane.narrow(include="^1.*")
        assert pane.is_filtering
        assert len(pane.ring) == 2_000
        await until(pilot, lambda: not pane.is_filtering)
        assert len(pane.ring) == sum(str(number).startswith("1") for number in range(2_000))
        pane.find("word")
        await until(pilot, lambda: not pane.is_searching)
        pane.action_wrap()  # the matches are counted again, in slices too
        await until(pilot, lambda: not (pane.is_arranging or pane.is_searching))
        assert pane.hits == 12 * len(pane.ring)


async def test_slices_go_on_although_the_process_loses_its_core_again_and_again(monkeypatch):
    """Textual looks at the clock twice before it waits for a timer, and drops one whose time has passed then."""
    monkeypatch.setattr("l2rtui.ui.widgets.log_view.SLICE_SECONDS", 0.0)
    monkeypatch.setattr("l2rtui.ui.widgets.log_pane.SLICE_SECONDS", 0.0)
    pane = LogPane()
    async with stage(pane, size=(40, 8)) as (_, pilot):
        pane.restart(run="run", is_merged=False, empty="")
        pane.extend(lines([f"{number} {'word ' * 12}" for number in range(200)]))
        looks = itertools.count()
        monkeypatch.setattr("textual._time.get_time", lambda: time.monotonic() + 0.01 * next(looks))
        pane.action_wrap()
        await until(pilot, lambda: not pane.is_arranging)
        pane.narrow(include="^1.*")
        await until(pilot, lambda: not pane.is_filtering)
        pane.find("word")
        await until(pilot, lambda: not pane.is_searching)
        assert pane.hits == 12 * len(pane.ring) > 0


async def until(pilot, condition) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        await pilot.pause(0.01)
