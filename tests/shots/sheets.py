"""Every screen at three sizes, dark, light and without colour, on one sheet each: for review, not kept.

A sheet is an HTML page of nine pictures, and a PNG of it if a Chromium is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from l2rtui.ui.theme import DARK, LIGHT
from tests.shots.app_driver import AppDriver
from tests.shots.cluster import sample_app

SIZES: Final = ((80, 24), (120, 40), (160, 45))
LOOKS: Final = ("dark", "light", "plain")
WIDTH: Final = 790
"""Pixels of a picture."""
SCREENS: Final[Mapping[str, Sequence[str]]] = {
    "seeds": ("2",),
    "slots-of-a-cluster": ("1", "<", "<"),
    "slots-of-gpus": ("1", ">", ">"),
    "pods": ("3",),
    "nodes": ("4",),
    "log": ("5",),
    "events": ("6",),
    "leaks": ("7",),
    "charts": ("2", "8"),
    "faults": ("2", "!"),
    "filter": ("2", "slash", *"sac"),
    "command": ("colon", *"des"),
    "help": ("question_mark",),
    "menu": ("2", "m"),
    "description": ("2", "d"),
    "spec": ("2", "y"),
    "place": ("P",),
    "launch": ("L",),
    "review": ("L", *"racing-sac.yaml", "tab", "tab", *"0-2", "enter"),
    "kill": ("2", "down", "3", "K"),
    "destroy": ("2", "down", "ctrl+d"),
    "experiments": ("E",),
    "owners": ("O",),
    "history": ("H",),
    "volumes": ("V",),
    "images": ("I",),
    "checkpoints": ("C",),
    "forwards": ("2", "f"),
    "journal": ("colon", *"journal", "enter"),
    "since": ("colon", *"since", "enter"),
}
"""Keys from the home screen to each screen."""


async def take(folder: Path, names: Sequence[str] = ()) -> None:
    """Draw the sheets of these screens, or of all, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {name: keys for name, keys in SCREENS.items() if not names or name in names}
    for size in SIZES:
        for look in LOOKS:
            _set_colours(look != "plain")
            for name, keys in chosen.items():
                async with sample_app(size, has_faults=True) as (driver, backend):
                    backend.advance(1.0)
                    driver.app.theme = LIGHT.name if look == "light" else DARK.name
                    await driver.rest()
                    await _press(driver, keys)
                    svg = driver.app.export_screenshot(title=name)
                    (folder / _picture(name, size, look)).write_text(svg, "utf-8")
    for name in chosen:
        print(_sheet(folder, name))
    _set_colours(True)


def _set_colours(has_colours: bool) -> None:
    if has_colours:
        os.environ.pop("NO_COLOR", None)
    else:
        os.environ["NO_COLOR"] = "1"


async def _press(driver: AppDriver, keys: Sequence[str]) -> None:
    for key in keys:
        await driver.press(key)
        await driver.pilot.pause()
    await driver.pilot.pause(0.7)


def _picture(name: str, size: tuple[int, int], look: str) -> str:
    return f"{name}-{size[0]}x{size[1]}-{look}.svg"


def _sheet(folder: Path, name: str) -> Path:
    rows = "".join(
        "<div>" + " ".join(f'<img width="{WIDTH}" src="{_picture(name, size, look)}">' for look in LOOKS) + "</div>"
        for size in SIZES
    )
    page = folder / f"{name}.html"
    page.write_text(f'<body style="margin:4px;background:#444">{rows}</body>', "utf-8")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        return page
    heights = (_height(folder / _picture(name, size, LOOKS[0])) for size in SIZES)
    target = page.with_suffix(".png")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    window = f"--window-size={len(LOOKS) * (WIDTH + 8)},{sum(round(WIDTH * height) + 6 for height in heights) + 12}"
    subprocess.run(
        [browser, *flags, window, f"--screenshot={target}", page.as_uri()], check=True, stderr=subprocess.DEVNULL
    )
    return target


def _height(svg: Path) -> float:
    """Height of a picture relative to its width."""
    found = re.search(r'viewBox="([^"]*)"', svg.read_text("utf-8"))
    assert found is not None, svg
    _, _, width, height = found[1].split()
    return float(height) / float(width)
