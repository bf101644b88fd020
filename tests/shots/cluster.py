"""Pictures of a cluster with several runs and faults: the in-memory sample, so that they can be taken anywhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp
from tests.shots.app_driver import AppDriver
from tests.shots.sample_cluster import HUNG_POD, ME, STALLED_RUN, SampleBackend

SIZE = (160, 45)


@asynccontextmanager
async def sample_app(size: tuple[int, int], *, has_faults: bool) -> AsyncIterator[tuple[AppDriver, SampleBackend]]:
    """Open the app over the sample cluster, as its user, with a separate state folder."""
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as state:
        os.environ["XDG_STATE_HOME"] = state
        os.environ["USER"] = os.environ["LOGNAME"] = ME
        backend = SampleBackend(has_faults=has_faults)
        # The name of the backend as on a cluster of that kind; the captions say that it is a sample.
        app = L2RApp(Settings(backend="demo"), lambda: backend, clock=backend.now)
        app.ctx.cancel_seconds = 0.0
        async with app.run_test(size=size, notifications=True) as pilot:
            driver = AppDriver(app, pilot)
            await driver.until_connected()
            runs = len(app.cluster.snapshot.runs)
            await driver.until(lambda: len(app.cluster.metrics) >= runs - 1, "records of the learners")
            yield driver, backend


async def take() -> None:
    """Take all pictures of the sample cluster."""
    async with sample_app(SIZE, has_faults=True) as (driver, backend):
        panes = driver.app.cluster.panes
        backend.advance(1.0)
        panes.runs.move_to(_uid(driver, "circuit-sac-s1"))
        await driver.rest()
        await driver.shoot("cluster")
        await driver.press("3")
        panes.pods.move_to(_pod(driver, "circuit-sac-s1-w-3"))
        await driver.rest()
        await driver.shoot("cluster-out-of-memory")
        panes.runs.move_to(_uid(driver, HUNG_POD.rpartition("-w-")[0]))
        driver.app.cluster.content.show_pods()
        panes.pods.move_to(_pod(driver, HUNG_POD))
        await driver.rest()
        await driver.shoot("cluster-simulator-hangs")
        await driver.press("2")
        panes.runs.move_to(_uid(driver, STALLED_RUN))
        await driver.rest()
        await driver.shoot("cluster-learner-stalls")
        await driver.press("4")
        await driver.rest()
        await driver.shoot("cluster-nodes")
        await driver.press("2", "8")
        panes.runs.marked |= {_uid(driver, f"circuit-sac-s{seed}") for seed in range(3)}
        driver.app.cluster.content.show_charts()
        await driver.rest()
        await driver.shoot("cluster-charts")
        await driver.pilot.resize_terminal(120, 40)
        await driver.rest()
        await driver.shoot("learn-120x40")
        panes.runs.marked.clear()
        panes.runs.move_to(_uid(driver, "circuit-sac-s1"))
        driver.app.cluster.content.show_pods()
        await driver.press("3")
        panes.pods.move_to(_pod(driver, "circuit-sac-s1-w-3"))
        await driver.rest()
        await driver.shoot("cluster-120x40")
        await driver.pilot.resize_terminal(80, 24)
        await driver.press("1")
        await driver.rest()
        await driver.shoot("cluster-80x24")


def _uid(driver: AppDriver, run: str) -> str:
    view = driver.app.cluster.snapshot.run_named(run)
    assert view is not None, run
    return view.uid


def _pod(driver: AppDriver, name: str) -> str:
    return next(pod.uid for pod in driver.app.cluster.snapshot.pods.values() if pod.name == name)
