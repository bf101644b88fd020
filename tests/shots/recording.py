"""A recording as one animated SVG (CSS): place, launch, fault, destroy, over the in-memory sample cluster.

Two moments of it are pictures of the README as well: place mode, and the receipt.

Frames are the app's own pictures. A line of the terminal is stored once however many frames show it, so that half a
minute takes a few hundred kilobytes; browsers and code hosts play the file as an image, without a script.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.console import Console

from tests.l2rtui.ui.textual_inside import background_screens, compositor
from tests.shots.app_driver import FOLDER, AppDriver
from tests.shots.cluster import sample_app
from tests.shots.sample_cluster import SampleBackend

SIZE = (120, 40)
NAME = "place-launch-fault-destroy"
SPEC = """\
kind: learner-workers
name: lidar-sac
learner: {}
workers:
  - {name: w, replicas: 3}
"""
CHARACTER = 12.2
LINE = 24.4
"""Width and height of a cell as drawn by ``rich.console.Console.export_svg``."""
MARGIN = 12
CAPTION = 40
_STYLE = re.compile(r"\.f-r(\d+) \{ ([^}]*) \}")
_RECT = re.compile(r'<rect fill="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)"')
_TEXT = re.compile(
    r'<text class="f-r(\d+)" x="([^"]*)" y="[^"]*" textLength="([^"]*)" clip-path="url\(#f-line-(\d+)\)">([^<]*)<'
)


@dataclass
class Recording:
    """Frames of a terminal, each with its duration and a caption."""

    width: int
    height: int
    _classes: dict[str, str] = field(default_factory=dict)
    _lines: dict[str, int] = field(default_factory=dict)
    _frames: list[tuple[float, str, tuple[int, ...]]] = field(default_factory=list)

    def add(self, svg: str, seconds: float, caption: str) -> None:
        """Add a picture of ``export_svg`` whose unique id is ``f``; a picture equal to the last extends its
        duration.
        """
        names = {
            number: self._classes.setdefault(style.strip(), f"c{len(self._classes)}")
            for number, style in _STYLE.findall(svg)
        }
        rows: list[list[str]] = [[] for _ in range(self.height)]
        body = svg.split("</defs>", 1)[1]
        for fill, x, y, width in _RECT.findall(body):
            number = round((float(y) - 1.5) / LINE)
            if 0 <= number < self.height:  # not the frame of the window
                rows[number].append(f'<rect fill="{fill}" x="{x}" width="{width}" height="{LINE + 0.25:.2f}"/>')
        for style, x, length, number, text in _TEXT.findall(body):
            text_of_row = f'<text class="{names[style]}" x="{x}" y="18.5" textLength="{length}">{text}</text>'
            rows[int(number)].append(text_of_row)
        lines = tuple(self._lines.setdefault("".join(row), len(self._lines)) for row in rows)
        if self._frames and self._frames[-1][1:] == (caption, lines):
            seconds += self._frames.pop()[0]
        self._frames.append((seconds, caption, lines))

    def svg(self) -> str:
        """Return the recording."""
        width, height = round(self.width * CHARACTER) + 2 * MARGIN, round(self.height * LINE) + 2 * MARGIN + CAPTION
        total = sum(seconds for seconds, _, _ in self._frames)
        styles = [f".{name}{{{style}}}" for style, name in self._classes.items()]
        frames, began = [], 0.0
        for number, (seconds, caption, lines) in enumerate(self._frames):
            start, end = 100 * began / total, 100 * (began + seconds) / total
            began += seconds
            hidden = "0%{visibility:hidden}" if number else ""
            after = f"{end:.3f}%{{visibility:hidden}}" if end < 99.999 else ""
            styles.append(f"@keyframes k{number}{{{hidden}{start:.3f}%{{visibility:visible}}{after}}}")
            styles.append(f"#f{number}{{animation-name:k{number}}}")
            uses = "".join(f'<use href="#l{line}" y="{row * LINE:.1f}"/>' for row, line in enumerate(lines))
            text = f'<text class="caption" y="{self.height * LINE + 32:.1f}">{escape(caption)}</text>'
            frames.append(f'<g class="frame" id="f{number}">{uses}{text}</g>')
        lines_drawn = "".join(f'<g id="l{number}">{line}</g>' for line, number in self._lines.items())
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
            f"<title>l2rtui: {escape(NAME.replace('-', ', '))}</title><style>"
            "text{font:20px 'Fira Code','DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
            ".caption{fill:#e6ebf2;font-weight:bold}"
            f".frame{{visibility:hidden;animation:{total:.2f}s step-end infinite}}#f0{{visibility:visible}}"
            # Users who prefer reduced motion see only the last frame.
            f"@media(prefers-reduced-motion:reduce){{.frame{{animation:none}}#f0{{visibility:hidden}}"
            f"#f{len(self._frames) - 1}{{visibility:visible}}}}"
            f"{''.join(styles)}</style><defs>{lines_drawn}</defs>"
            f'<rect width="{width}" height="{height}" rx="10" fill="#12161b"/>'
            f'<g transform="translate({MARGIN},{MARGIN})">{"".join(frames)}</g></svg>\n'
        )


class Recorder:
    """The app driven by keys, recorded."""

    def __init__(self, driver: AppDriver, backend: SampleBackend) -> None:
        self.driver = driver
        self.backend = backend
        self.recording = Recording(*SIZE)

    def take(self, seconds: float, caption: str) -> None:
        """Add this moment."""
        app = self.driver.app
        console = Console(
            width=SIZE[0],
            height=SIZE[1],
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            record=True,
        )
        screens = background_screens(app)
        update = compositor(app.screen).render_update(full=True, screen_stack=screens, simplify=True)
        console.print(update)
        self.recording.add(console.export_svg(unique_id="f"), seconds, caption)

    async def press(self, caption: str, *keys: str, seconds: float = 1.2) -> None:
        """Press keys one after the other, each with its picture."""
        for key in keys:
            await self.driver.press(key)
            await self.driver.pilot.pause(0.2)
            self.take(seconds if key == keys[-1] else 0.35, caption)

    async def pass_time(self, caption: str, count: int, *, step: float = 1.0, seconds: float = 0.45) -> None:
        """Advance the cluster's clock, with a picture after each step."""
        for _ in range(count):
            self.backend.advance(step)
            # Records of pods and learners are reported once a second of the real clock.
            await self.driver.pilot.pause(1.1)
            self.take(seconds, caption)


async def take() -> None:
    """Record and write the file."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="l2rtui-") as folder:
        Path(folder, "manifests").mkdir()
        Path(folder, "manifests", "lidar-sac.yaml").write_text(SPEC, "utf-8")
        os.chdir(folder)
        try:
            async with sample_app(SIZE, has_faults=False) as (driver, backend):
                recorder = Recorder(driver, backend)
                await play(recorder)
        finally:
            os.chdir(before)
    path = FOLDER / f"{NAME}.svg"
    path.write_text(recorder.recording.svg(), "utf-8")
    print(f"screenshots/{path.name}: {path.stat().st_size >> 10} KiB")


async def play(recorder: Recorder) -> None:
    """Place a run with two seeds, launch it, lose a worker, destroy it."""
    driver, backend = recorder.driver, recorder.backend
    app = driver.app
    await driver.rest()
    recorder.take(2.0, "A cluster: who holds which part of which GPU, and how the runs learn")
    await driver.press("P")
    await driver.until_top("PlaceScreen")
    await driver.until(lambda: app.screen.draft.specs, "the spec")  # type: ignore[attr-defined]
    recorder.take(1.5, "P: place mode, with the spec file of this folder")
    await recorder.press("s 0-1: two seeds", "s", "0", "minus", "1", "enter")
    await recorder.press("A: all of them where there is room", "A", seconds=2.0)
    await driver.shoot("place-120x40")
    await driver.press("enter")
    await driver.until_top("ReviewScreen")
    await driver.pilot.pause(0.5)
    recorder.take(2.5, "enter: the plan and what preflight says of it")
    await driver.press("enter")
    await driver.until_top("ClusterScreen")
    await driver.until(lambda: app.cluster.snapshot.run_named("lidar-sac-s1"), "the run")
    recorder.take(1.0, "enter: launched")
    run = app.cluster.snapshot.run_named("lidar-sac-s0")
    assert run is not None
    await driver.press("2")
    app.cluster.panes.runs.move_to(run.uid)
    await recorder.pass_time("The pods start, the learner reports", 6)
    backend.run_out_of_memory("lidar-sac-s0-w-1")
    await recorder.pass_time(
        "A worker runs out of memory: the run is degraded, the grid shows where", 3, seconds=0.8
    )
    await recorder.press(
        "3 ↓: its pods; the reason stands beside it, its log below", "3", "down", "down", seconds=1.5
    )
    await recorder.pass_time("3 ↓: its pods; the reason stands beside it, its log below", 2, seconds=1.0)
    await driver.press("2")
    await driver.press("ctrl+d")
    await driver.until_top("ConfirmScreen")
    await driver.pilot.pause(0.3)
    recorder.take(2.5, "ctrl+d: what a destroy would take, and where")
    await driver.press("y")
    await driver.until_top("ReceiptScreen")
    recorder.take(0.8, "y: gone, counted on the cluster itself")
    backend.advance(1.0)
    await driver.until(lambda: not app.background.doing, "the receipt")
    await driver.pilot.pause(0.3)
    recorder.take(3.5, "A receipt: nothing is left")
    await driver.shoot("receipt-120x40")
