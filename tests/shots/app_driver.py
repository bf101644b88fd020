"""The app driven by keys, and its pictures: as SVG, and as PNG if a program that draws one is installed."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from l2rtui.ui.app import L2RApp

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "screenshots"
DEADLINE_SECONDS = 300.0
WIDTH = 1600
"""Pixels of a PNG."""


class AppDriver:
    """Keys in, pictures out."""

    def __init__(self, app: L2RApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, condition: Callable[[], object], event: str) -> None:
        """Wait until a condition holds, in real time: processes and streams take their time."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"tests.shots: {event} did not come in {DEADLINE_SECONDS:g} s")
            await asyncio.sleep(0.1)
        await self.pilot.pause()

    async def until_top(self, name: str) -> None:
        """Wait until a screen of this class is on top."""
        await self.until(lambda: type(self.app.screen).__name__ == name, name)

    async def until_connected(self) -> None:
        """Wait for the first snapshot."""
        await self.until(lambda: self.app.screen is self.app.cluster, "the home screen")
        await self.until(lambda: self.app.cluster.health.is_connected, "the first snapshot")

    async def press(self, *keys: str) -> None:
        """Press keys."""
        await self.pilot.press(*keys)

    async def rest(self) -> None:
        """Wait until the log follows the cursor, records have come and nothing is being painted."""
        await self.until(lambda: not self.app.cluster.is_settling, "rest")
        # Records are reported once a second: wait for two of these and their effects.
        await self.pilot.pause(2.2)
        await self.until(lambda: "Loading" not in self.app.export_screenshot(), "the contents of all panes")

    async def shoot(self, name: str) -> None:
        """Write the picture of this moment."""
        await self.pilot.pause()
        svg = self.app.export_screenshot(title="l2rtui")
        svg = svg.replace(str(ROOT), "~/l2rtui")  # the user's path is of no interest
        path = FOLDER / f"{name}.svg"
        path.write_text(svg, "utf-8")
        print(f"screenshots/{path.name}{' and .png' if to_png(path) else ''}")


def to_png(path: Path) -> bool:
    """Draw an SVG as PNG with an installed program; return False without one."""
    target = path.with_suffix(".png")
    # A browser first: rsvg-convert leaves gaps in frames, and drops spaces at the start of each piece of text.
    if browser := shutil.which("chromium") or shutil.which("chromium-browser"):
        _, _, width, height = re.search(r'viewBox="([^"]*)"', path.read_text("utf-8"))[1].split()  # type: ignore[index]
        size = f"{WIDTH},{round(WIDTH * float(height) / float(width))}"
        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}")
        command = [browser, *flags, "--default-background-color=00000000", f"--screenshot={target}", path.as_uri()]
        return subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0
    if shutil.which("rsvg-convert"):
        source = path.read_text("utf-8").replace("<text ", '<text xml:space="preserve" ').encode()
        done = subprocess.run(["rsvg-convert", "-w", str(WIDTH), "-o", str(target)], input=source, check=False)
        return done.returncode == 0
    return False
