"""What the screen shows equals what a screen shows that is given the same values for the first time.

An app lives through seeded mutations of its cluster, its metric records and the clock, and redraws only what
differs: rows by identity, lines by key, ledgers by node, states by turn. After each mutation a new screen in
another app gets copies of the final values, with nothing remembered, and every line of both is compared. What only
a user moves (cursors, sort order, the visible pane) is handed over. Logs are left out: they are streams, and have
tests of their own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from types import MappingProxyType

import pytest
from hypothesis import settings

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings
from l2rtui.domain.change import difference
from l2rtui.domain.snapshot import EMPTY_SNAPSHOT, ClusterSnapshot
from l2rtui.ui.app import L2RApp
from l2rtui.ui.home.screen import ClusterScreen
from l2rtui.ui.home.selection import Pane
from l2rtui.ui.state.messages import MetricsArrived, SnapshotArrived
from l2rtui.ui.widgets.table_model import SLACK
from l2rtui.ui.widgets.virtual_table import VirtualTable
from tests.l2rtui.ui.mutations import World
from tests.l2rtui.ui.textual_inside import compositor

SIZES = ((80, 24), (120, 40), (160, 45))
SETTLE_SECONDS = 20.0
"""Longest wait until the app's screen is as it should be; it is at once, unless the machine is busy."""
KEYS = ("1", "2", "3", "4", "down", "up", "down", "A", "full_stop")


class SilentBackend(FakeBackend):
    """The demo's first snapshot, and nothing after it: no change, no log line."""

    async def watch(self):
        yield difference(EMPTY_SNAPSHOT, await self.snapshot())
        await asyncio.Event().wait()

    async def logs(self, pod, query):
        return
        yield


class OracleApp(L2RApp):
    """App whose only part is to hold new screens."""

    def on_learning_changed(self, _) -> None:
        """Report nothing: the app under test does."""


@asynccontextmanager
async def running(app: L2RApp, size: tuple[int, int]) -> AsyncIterator[None]:
    async with app.run_test(size=size, notifications=False) as pilot:
        deadline = time.monotonic() + 60.0
        while not app.is_running or app.screen is not app.cluster or not app.cluster.health.is_connected:
            assert time.monotonic() < deadline, "the home screen does not come"
            await pilot.pause(0.01)
        await pilot.pause(0)
        yield pilot


def copied(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The same values without the ledger, the basis or the objects of before."""
    return ClusterSnapshot(
        MappingProxyType(dict(snapshot.nodes)),
        MappingProxyType(dict(snapshot.pods)),
        MappingProxyType(dict(snapshot.runs)),
        snapshot.revision,
        snapshot.problems,
        snapshot.silent_since,
    )


def tables_of(screen: ClusterScreen) -> list[VirtualTable]:
    return [screen.panes.runs, screen.panes.pods, screen.panes.nodes]


def lines_of(app: L2RApp, screen: ClusterScreen) -> list[str]:
    """Every line of the terminal, without the logs."""
    rows = [strip.text for strip in compositor(screen).render_strips()]
    for region in (screen.panes.logs.region, screen.panes.log_pane.region):
        for y in range(max(0, region.y), min(len(rows), region.bottom)):
            rows[y] = rows[y][: region.x] + " " * region.width + rows[y][region.right :]
    return [row[: app.size.width].rstrip() for row in rows]


class Bench:
    """The app under test and its oracle."""

    def __init__(self, app: L2RApp, pilot, oracle: OracleApp, oracle_pilot, world: World) -> None:
        self.app, self.pilot = app, pilot
        self.oracle, self.oracle_pilot = oracle, oracle_pilot
        self.world = world
        self._drawn_at = world.now

    async def show(self) -> None:
        """Give the app the world's values through its own messages."""
        world, app = self.world, self.app
        app.post_message(SnapshotArrived(world.snapshot, connection=app.connection))
        await self.pilot.pause(0)
        app.post_message(MetricsArrived(dict(world.metrics)))
        await self.pilot.pause(0)
        app.cluster.content.take_records(dict(world.records))
        if world.now != self._drawn_at:  # what the timers do
            self._drawn_at = world.now
            app.show_health()
            app.cluster.content.draw_ages()
        await self.pilot.pause(0)

    async def expected(self) -> list[str]:
        """Return the lines of a new screen."""
        world, app, oracle = self.world, self.app, self.oracle
        was, cluster = app.cluster, ClusterScreen(oracle.ctx)
        oracle.ctx.silent_since = world.snapshot.silent_since
        oracle.ctx.context = app.ctx.context
        with oracle._context():
            await oracle.pop_screen()
            oracle.__dict__["cluster"] = cluster  # a cached property
            await oracle.push_screen(cluster)
        await self.oracle_pilot.pause()
        cluster.content.has_all_pods = was.content.has_all_pods
        cluster.health = app.health()
        self._hand_over(was, cluster)
        cluster.metrics = dict(world.metrics)
        # Since when a state holds, and when records came, are facts of the past and no part of the rendering.
        cluster.content.slot_figures.idle = deepcopy(was.content.slot_figures.idle)
        cluster.content.ages.arrivals = dict(was.content.ages.arrivals)
        states = {uid: ((None,) * 4, state) for uid, (_, state) in was.content.learning_states._states.items()}
        cluster.content.learning_states._states = states
        cluster.content.learning_states.read_runs = was.content.learning_states.read_runs
        cluster.snapshot = copied(world.snapshot)
        cluster.content.take_records(dict(world.records))
        self._hand_over(was, cluster)
        cluster.content.show()
        await self.oracle_pilot.pause()
        self._check_widths(was, cluster)
        self._hand_over(was, cluster)
        await self.oracle_pilot.pause()
        return lines_of(oracle, cluster)

    def _hand_over(self, was: ClusterScreen, new: ClusterScreen) -> None:
        """Put cursors, order and panes where the user has put them."""
        if (new.panes.lower, new.panes.last_list) != (was.panes.lower, was.panes.last_list):
            new.panes.show_list(was.panes.lower)
            new.panes.show_list(was.panes.last_list)
        if was.panes.focused_pane is not None and was.panes.focused_pane is not Pane.LOG:
            new.panes.focus(was.panes.focused_pane)
        for old, table in zip(tables_of(was), tables_of(new), strict=True):
            sorted_by = old.model.sort_column
            keys = [column.key for column in table.model.columns]
            if sorted_by is not None and old.model.columns[sorted_by].key in keys:
                table.model.sort_by(keys.index(old.model.columns[sorted_by].key))
            if old.cursor_key is not None:
                table.move_to(old.cursor_key)
            table.scroll_to(y=old.scroll_offset.y, animate=False, immediate=True, force=True)
            table.vertical_scrollbar.position = table.scroll_offset.y  # Textual sets it where the bar is visible
        # A pane that could do with less keeps its lines for a while: since when is a fact of the past.
        new.sizes.natural = dict(was.sizes.natural)
        new.sizes.fit()
        if was.panes.slots.cursor_slot is not None:
            new.panes.slots.move_to(was.panes.slots.cursor_slot)

    def _check_widths(self, was: ClusterScreen, new: ClusterScreen) -> None:
        for old, table in zip(tables_of(was), tables_of(new), strict=True):
            if old.is_on_screen and old.model.columns == table.model.columns:
                for column, wide, least in zip(
                    table.model.columns, old.model.widths, table.model.widths, strict=True
                ):
                    assert least <= wide <= least + SLACK, f"{old.id}.{column.key}: {wide} for {least}"
                table.model.widths = list(old.model.widths)
                table.refresh()

    async def compare(self, happened: list[str]) -> None:
        """Compare both screens, and wait where the app has not painted yet."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            wanted, shown = await self.expected(), lines_of(self.app, self.app.cluster)
            if wanted == shown:
                return
            if time.monotonic() > deadline:
                break
            await self.pilot.pause(0.05)
        differing = [
            f"{number:2} shown    {have}\n   expected {want}"
            for number, (have, want) in enumerate(zip(shown, wanted, strict=True))
            if have != want
        ]
        raise AssertionError("\n".join(["after", *happened[-4:], *differing]))


@asynccontextmanager
async def bench(size: tuple[int, int], seed: int) -> AsyncIterator[Bench]:
    backend = SilentBackend(owner="me")
    world = World(random.Random(seed), await backend.snapshot(), backend.now())
    app = L2RApp(Settings(backend="demo"), lambda: backend, clock=lambda: world.now)
    empty = SilentBackend(is_empty=True)
    oracle = OracleApp(Settings(backend="demo"), lambda: empty, clock=lambda: world.now)
    async with running(oracle, size) as oracle_pilot, running(app, size) as pilot:
        yield Bench(app, pilot, oracle, oracle_pilot, world)


async def live_through(size: tuple[int, int], seed: int, count: int) -> None:
    async with bench(size, seed) as pair:
        chance = random.Random(-seed)
        happened: list[str] = []
        for number in range(count):
            happened.append(f"{number}: {pair.world.mutate()}")
            if chance.random() < 0.25:
                key = chance.choice(KEYS)
                happened.append(f"{number}: key {key}")
                await pair.pilot.press(key)
            await pair.show()
            await pair.compare(happened)


@pytest.fixture(autouse=True)
def no_clocks(monkeypatch):
    """Time passes by mutations alone: a timer would repaint what a change has left old."""
    monkeypatch.setattr("l2rtui.ui.home.screen.AGE_SECONDS", 1e6)
    monkeypatch.setattr("l2rtui.ui.app.STALE_PERIOD_SECONDS", 1e6)
    monkeypatch.setattr("l2rtui.ui.home.content.user_name", lambda: "me")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_few_mutations_leave_the_screen_as_a_new_one():
    await live_through((120, 40), seed=3, count=4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_mutations_leave_the_screen_as_a_new_one(size):
    """A third of the profile's examples at each size: 100 usually, 1,000 with ``--hypothesis-profile=nightly``."""
    await live_through(size, seed=size[0], count=settings.default.max_examples // len(SIZES) + 1)
