"""No statement of the screen is false, from the start of the app and whatever happens to its cluster.

The oracle of ``test_render_oracle`` compares a screen with a new one of the same code, so it does not see what both
state wrongly. Here the screen is compared with what is known: a pod whose log is not read is not silent, records
that are still being read are not missing, GPUs together make no more steps than their runs, and only a run that was
reported as stopped learns again.
"""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from hypothesis import settings

from l2rtui.config import Settings
from l2rtui.domain.metrics import LearnerProgress, PodMetrics, RunMetrics
from l2rtui.domain.workload import Role
from l2rtui.ui.app import L2RApp
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.state.messages import MetricsArrived, SnapshotArrived
from l2rtui.ui.widgets.grid.shape import ZoomLevel
from tests.l2rtui.ui.mutations import World
from tests.l2rtui.ui.test_render_oracle import SilentBackend, no_clocks, running
from tests.l2rtui.ui.textual_inside import notifications

__all__ = ["no_clocks"]
KEYS = ("3", "2", "down", "up", "A", "j", "k")
_RATE = re.compile(r"([\d,.]+)([kMG]?)(?:/s)?")
_SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_ROUNDED = 1.06
"""Compact rates have two digits: they may be so much more than the exact ones."""


@pytest.fixture(autouse=True)
def runs_are_mine(monkeypatch):
    monkeypatch.setattr("l2rtui.ui.app.user_name", lambda: "me")  # only the user's own runs are reported


class ReadingBackend(SilentBackend):
    """Its logs are read for ever: nothing is known of what they hold."""

    async def logs(self, pod, query):
        await asyncio.Event().wait()
        yield


def report_all(world: World, chance: random.Random, *, stalled_for: float = 0.0) -> None:
    """Let every learner report how it goes, and the workers of one run."""
    world.metrics = {
        uid: RunMetrics(
            run.name,
            10**6,
            10**4,
            10**3,
            1.0,
            4.0,
            50.0,
            None,
            env_steps_per_second=chance.choice((90.0, 1_017.0, 12_345.0)),
            updates_per_second=11.2,
            time=world.now,
            interval_seconds=2.0,
            progress=LearnerProgress(2.0, 2.0, world.now - stalled_for, world.now, waits_since=0.0),
        )
        for uid, run in world.snapshot.runs.items()
    }
    chosen = chance.choice([run.name for run in world.snapshot.runs.values()] or [""])
    workers = [pod.uid for pod in world.snapshot.pods.values() if pod.run == chosen and pod.role is Role.WORKER]
    world.records = {**world.records, **{uid: PodMetrics("worker", world.now, 250.0) for uid in workers}}


def silent_pods(app: L2RApp) -> set[str]:
    """Uids of the pods that the table calls silent."""
    table = app.cluster.panes.pods
    model = table.model
    return {
        key
        for key, row in model.rows.items()
        if any("silent" in model.text(row, number) for number in range(len(model.columns)))
    }


def shown_rates(app: L2RApp) -> list[float]:
    """Steps a second as they stand in the tiles."""
    grid = app.cluster.panes.slots
    rates = []
    for y in range(grid.size.height):
        text = grid.render_line(y).text
        if text.strip().startswith(("rate", "steps/s")):
            matches = filter(None, map(_RATE.fullmatch, text.split()[1:]))
            rates += [float(match[1].replace(",", "")) * _SIZES[match[2]] for match in matches]
    return rates


class Witness:
    """What the screen may state, by the values that the app was given."""

    def __init__(self, app: L2RApp, world: World) -> None:
        self.app, self.world = app, world
        self.stopped: set[str] = set()
        self.read: set[str] = set()
        self.num_rates = 0

    def check(self) -> None:
        app, world, content = self.app, self.world, self.app.cluster.content
        assert silent_pods(app) <= set(content.watched_pods.looked), "silent, although nobody reads their logs"
        for uid, state in content.learning.items():
            assert "could be read" not in state.reason, f"{uid}: its log is still being read"
        assert "could be read" not in "\n".join(strip.text for strip in screen_strips(app))
        rates = shown_rates(app)
        self.num_rates += len(rates)
        of_runs = sum(metrics.env_steps_per_second for metrics in world.metrics.values())
        of_workers = sum(record.rate or 0.0 for record in world.records.values())
        assert sum(rates) <= _ROUNDED * (of_runs + of_workers) + 1.0, "more steps than all runs make"
        for notification in notifications(app):
            if notification.identity in self.read:
                continue
            self.read.add(notification.identity)
            if match := re.match(r"(\S+) is (?:stalled|diverged|failed)", notification.message):
                self.stopped.add(match[1])
            elif match := re.match(r"(.+) learns again", notification.message):
                assert match[1] in self.stopped, notification.message
                self.stopped.remove(match[1])


async def live_through(seed: int, count: int) -> Witness:
    backend = ReadingBackend(owner="me")
    world = World(random.Random(seed), await backend.snapshot(), backend.now())
    app = L2RApp(Settings(backend="demo"), lambda: backend, clock=lambda: world.now)
    async with running(app, (160, 45)) as pilot:
        witness, chance = Witness(app, world), random.Random(-seed)
        app.cluster.panes.slots.level = ZoomLevel.GPU
        witness.check()  # the first frame
        report_all(world, chance, stalled_for=300.0)  # the newest record of a backlog is old
        for number in range(count):
            happened = world.mutate() if number else "the start"
            if number and (number == 1 or chance.random() < 0.3):
                report_all(world, chance)
                happened += ", and all learners reported"
            if chance.random() < 0.2:
                await pilot.press(chance.choice(KEYS))
            app.post_message(SnapshotArrived(world.snapshot, connection=app.connection))
            await pilot.pause(0)
            app.post_message(MetricsArrived(dict(world.metrics)))
            await pilot.pause(0)
            app.cluster.content.take_records(dict(world.records))
            app.cluster.content.draw_ages()
            await pilot.pause(0)
            try:
                witness.check()
            except AssertionError as error:
                raise AssertionError(f"after {number}: {happened}: {error}") from error
    return witness


async def test_no_statement_is_false_after_some_mutations():
    await live_through(seed=1, count=15)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_no_statement_is_false_after_any_mutation():
    """Three mutations for each example of the profile: 300 usually, 3,000 with ``--hypothesis-profile=nightly``."""
    witness = await live_through(seed=7, count=3 * settings.default.max_examples)
    assert witness.num_rates
