"""Drive the real app over real processes and take its pictures: ``python -m tests.shots``.

The example run of ``manifests/`` is launched by keys on this machine, trains for a while, loses a worker and is
destroyed; every picture in ``screenshots/`` is the app's own rendering at that moment, as SVG, and as PNG where
rsvg-convert or chromium is there. Takes about two minutes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from l2rtui.backends.registry import make_backend
from l2rtui.config import Settings
from l2rtui.ui.app import L2RApp

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "screenshots"
SPEC = "manifests/racing-sac.yaml"
RUN = "racing-sac"
TRAINING_POINTS = 45
"""Learner records, one a second, before the picture of a run that trains is taken."""
DEADLINE_SECONDS = 300.0


class Studio:
    """The app under keys, and the camera."""

    def __init__(self, app: L2RApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to come true, by the clock on the wall: processes take their time."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"tests.shots: {what} did not come in {DEADLINE_SECONDS:g} s")
            await asyncio.sleep(0.1)
        await self.pilot.pause()

    async def until_top(self, name: str) -> None:
        await self.until(lambda: type(self.app.screen).__name__ == name, name)

    async def shoot(self, name: str) -> None:
        await self.pilot.pause()
        svg = self.app.export_screenshot(title="l2rtui")
        svg = svg.replace(str(ROOT), "~/l2rtui")  # whose machine this was is of no interest
        path = FOLDER / f"{name}.svg"
        path.write_text(svg, "utf-8")
        print(f"screenshots/{path.name}{' and .png' if to_png(path) else ''}")


def to_png(path: Path) -> bool:
    """Draw an SVG as PNG with what is there; tells whether anything was."""
    target = path.with_suffix(".png")
    if shutil.which("rsvg-convert"):
        # Without this attribute the converter drops spaces at the start of each piece of text.
        source = path.read_text("utf-8").replace("<text ", '<text xml:space="preserve" ').encode()
        done = subprocess.run(["rsvg-convert", "-w", "1600", "-o", str(target)], input=source, check=False)
        return done.returncode == 0
    if browser := shutil.which("chromium") or shutil.which("chromium-browser"):
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1600,1000"]
        done = subprocess.run([browser, *options, f"--screenshot={target}", path.as_uri()], check=False)
        return done.returncode == 0
    return False


async def take_all(studio: Studio) -> None:
    app, pilot = studio.app, studio.pilot
    cluster = app.cluster
    await studio.until(lambda: cluster.health.is_connected, "the first look at this machine")
    await pilot.press("L")
    await studio.until_top("LaunchScreen")
    app.screen.query_one("#spec").value = SPEC  # type: ignore[attr-defined]  # an Input; its class is the form's affair
    await studio.shoot("launch-form")
    await pilot.press("enter")
    await studio.until_top("ReviewScreen")
    await studio.shoot("launch-review")
    await pilot.press("enter")
    await studio.until_top("ClusterScreen")
    run = cluster.snapshot.run_named(RUN)
    await studio.until(lambda: cluster.snapshot.run_named(RUN), "the run")
    run = cluster.snapshot.run_named(RUN)
    assert run is not None

    def learned() -> bool:
        metrics = cluster.metrics.get(run.uid)
        return metrics is not None and metrics.eval_return is not None and len(metrics.rates) >= TRAINING_POINTS

    await studio.until(learned, "the learner's records")
    await studio.shoot("home-training")
    await pilot.resize_terminal(80, 24)
    await pilot.pause(0.5)
    await studio.shoot("home-training-80x24")
    await pilot.resize_terminal(160, 45)
    await pilot.press("P")
    await studio.until_top("PlaceScreen")
    await studio.until(lambda: app.screen.draft.specs, "the spec")  # type: ignore[attr-defined]
    await pilot.press("a")
    await pilot.pause(1.0)
    await studio.shoot("place-mode")
    await pilot.press("escape")
    await studio.until_top("ClusterScreen")
    await pilot.press("2", "8")
    await studio.shoot("charts")
    await pilot.press("3", "down", "down", "K")
    await studio.until_top("ConfirmScreen")
    await studio.shoot("kill-question")
    await pilot.press("y")
    await studio.until_top("ClusterScreen")
    await pilot.press("2", "ctrl+d")
    await studio.until_top("ConfirmScreen")
    await studio.shoot("destroy-question")
    await pilot.press("y")
    await studio.until_top("ReceiptScreen")
    await studio.until(lambda: not app.background.doing, "the receipt")
    await studio.shoot("receipt")
    await pilot.press("enter", "question_mark")
    await studio.until_top("HelpScreen")
    await studio.shoot("help")


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as state:
        os.environ["XDG_STATE_HOME"] = state
        settings = Settings(backend="local")
        backend = make_backend("local", settings)
        app = L2RApp(settings, lambda: backend)
        try:
            async with app.run_test(size=(160, 45)) as pilot:
                await take_all(Studio(app, pilot))
        finally:
            await destroy_what_is_left(settings)


async def destroy_what_is_left(settings: Settings) -> None:
    """However this ends, no process stays behind."""
    backend = make_backend("local", settings)
    try:
        for run in (await backend.snapshot()).runs.values():
            async for _ in backend.destroy(run, grace_seconds=2, purge=True):
                pass
    finally:
        await backend.close()


if __name__ == "__main__":
    os.chdir(ROOT)
    asyncio.run(main())
