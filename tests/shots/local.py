"""Pictures of this machine: the example run of ``manifests/`` is launched by keys, trains, loses a worker, and is
destroyed. Real processes, about two minutes.
"""

from __future__ import annotations

import os
import tempfile

from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp
from tests.shots.app_driver import AppDriver

SPEC = "manifests/racing-sac.yaml"
RUN = "racing-sac"
TRAINING_POINTS = 45
"""Learner records, one a second, before the picture of a run that trains is taken."""


async def take_all(driver: AppDriver) -> None:
    app, pilot = driver.app, driver.pilot
    cluster = app.cluster
    await driver.until(lambda: cluster.health.is_connected, "the first look at this machine")
    await pilot.press("L")
    await driver.until_top("LaunchScreen")
    app.screen.query_one("#spec").value = SPEC  # type: ignore[attr-defined]  # an Input; its class is the form's affair
    await driver.shoot("launch-form")
    await pilot.press("enter")
    await driver.until_top("ReviewScreen")
    await driver.shoot("launch-review")
    await pilot.press("enter")
    await driver.until_top("ClusterScreen")
    run = cluster.snapshot.run_named(RUN)
    await driver.until(lambda: cluster.snapshot.run_named(RUN), "the run")
    run = cluster.snapshot.run_named(RUN)
    assert run is not None

    def learned() -> bool:
        metrics = cluster.metrics.get(run.uid)
        return metrics is not None and metrics.eval_return is not None and len(metrics.rates) >= TRAINING_POINTS

    await driver.until(learned, "the learner's records")
    await driver.shoot("home-training")
    await pilot.resize_terminal(80, 24)
    await pilot.pause(0.5)
    await driver.shoot("home-training-80x24")
    await pilot.resize_terminal(160, 45)
    await pilot.press("P")
    await driver.until_top("PlaceScreen")
    await driver.until(lambda: app.screen.draft.specs, "the spec")  # type: ignore[attr-defined]
    await pilot.press("a")
    await pilot.pause(1.0)
    await driver.shoot("place-mode")
    await pilot.press("escape")
    await driver.until_top("ClusterScreen")
    await pilot.press("2", "8")
    await driver.shoot("charts")
    await pilot.press("3", "down", "down", "K")
    await driver.until_top("ConfirmScreen")
    await driver.shoot("kill-question")
    await pilot.press("y")
    await driver.until_top("ClusterScreen")
    await pilot.press("2", "ctrl+d")
    await driver.until_top("ConfirmScreen")
    await driver.shoot("destroy-question")
    await pilot.press("y")
    await driver.until_top("ReceiptScreen")
    await driver.until(lambda: not app.background.doing, "the receipt")
    await driver.shoot("receipt")
    await pilot.press("enter", "question_mark")
    await driver.until_top("HelpScreen")
    await driver.shoot("help")


async def take() -> None:
    """Take all pictures of this machine."""
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as state:
        os.environ["XDG_STATE_HOME"] = state
        settings = Settings(backend="local")
        backend = make_backend("local", settings)
        app = L2RApp(settings, lambda: backend)
        try:
            async with app.run_test(size=(160, 45)) as pilot:
                await take_all(AppDriver(app, pilot))
        finally:
            await destroy_what_is_left(settings)


async def destroy_what_is_left(settings: Settings) -> None:
    """Destroy all runs: in every case, no process stays behind."""
    backend = make_backend("local", settings)
    try:
        for run in (await backend.snapshot()).runs.values():
            async for _ in backend.destroy(run, grace_seconds=2, purge=True):
                pass
    finally:
        await backend.close()
