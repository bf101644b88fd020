"""The terminal shows the cells that Textual wanted, whatever was left out, and a dialog takes few bytes."""

from __future__ import annotations

import random
import re

import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region, Size
from textual.strip import Strip

from l2rtui.ui.painter import Painter

WIDTH, HEIGHT = 30, 6
STYLES = [
    Style.parse(text)
    for text in (
        "none",
        "#ff0000",
        "bold #00ff00 on #202020",
        "on #404040",
        "reverse bold #aaaaaa",
        "underline",
        "italic #123456 on #654321",
        "link https://example.org",
    )
]
WORDS = ("seed", "  ", "     ", "a", "▁▂▃", "日本", "é", "e\u0301", "  x  ")


class Screen:
    """A terminal: cells with the parameters of their style."""

    def __init__(self):
        self.cells = {}

    def feed(self, output):
        x = y = 0
        pen, link = {}, ""
        for kind, move, codes, target, text in re.findall(
            r"(\x1b\[(\d+;\d+)H|\x1b\[([\d;]*)m|\x1b\]8;[^;]*;(.*?)\x1b\\|([^\x1b]))", output
        ):
            if move:
                y, x = (int(part) - 1 for part in move.split(";"))
            elif text:
                columns = Strip([Segment(text)]).cell_length
                if not columns:
                    key = (y, x - 1) if (y, x - 1) in self.cells and self.cells[y, x - 1][0] else (y, x - 2)
                    self.cells[key] = (self.cells[key][0] + text, *self.cells[key][1:])
                    continue
                self.cells[y, x] = (text, dict(pen), link)
                for other in range(1, columns):
                    self.cells[y, x + other] = ("", dict(pen), link)
                x += columns
            elif kind.startswith("\x1b]8"):
                link = target
            else:
                pen = self.turned(pen, codes)

    @staticmethod
    def turned(pen, codes):
        pen, parts = dict(pen), codes.split(";")
        while parts:
            code = parts.pop(0)
            if code in ("", "0"):
                pen = {}
            elif code in ("38", "48"):
                pen[code], parts = tuple(parts[:4]), parts[4:]
            elif code in ("39", "49"):
                pen.pop("38" if code == "39" else "48", None)
            else:
                pen[code] = True
        return pen

    def seen(self):
        """What can be told apart: of a space without line or reverse, only the background."""
        for at, (text, pen, link) in sorted(self.cells.items()):
            if text == " " and not link and not pen.keys() & {"4", "7", "9"}:
                yield at, text, {"48": pen.get("48")}, link
            else:
                yield at, text, {code: pen.get(code) for code in ("1", "3", "4", "7", "38", "48")}, link


def line(chance):
    segments = [Segment(chance.choice(WORDS), chance.choice(STYLES)) for _ in range(chance.randrange(1, 9))]
    return Strip(segments).adjust_cell_length(WIDTH)


@pytest.mark.parametrize("seed", range(40))
def test_any_updates_leave_the_cells_that_were_wanted(seed):
    chance = random.Random(seed)
    console = Console(color_system="truecolor", force_terminal=True)
    painter, shown, wanted = Painter(), Screen(), Screen()
    for number in range(12):
        lines = [line(chance) for _ in range(HEIGHT)]
        if number == 0 or chance.random() < 0.3:
            update = LayoutUpdate([[strip] for strip in lines], Region(0, 0, WIDTH, HEIGHT))
        else:
            y = chance.randrange(HEIGHT)
            left = chance.randrange(WIDTH - 1)
            right = chance.randrange(left + 1, WIDTH + 1)
            chops = [{0: None} for _ in range(HEIGHT)]
            chops[y] = {left: lines[y].crop(left, right)}
            update = ChopsUpdate(chops, [(y, left, right)], [[right]] * HEIGHT)
        wanted.feed(update.render_segments(console).replace("\n", ""))
        painter.take(update, Size(WIDTH, HEIGHT))
        if chance.random() < 0.8:  # updates that nobody paints are painted with the next one
            shown.feed(painter.render_segments(console))
    shown.feed(painter.render_segments(console))
    whole = Screen()
    painter.forget()
    whole.feed(painter.render_segments(console))
    assert list(shown.seen()) == list(whole.seen())
    if all("日" not in text for text, _, _ in wanted.cells.values()):
        assert list(shown.seen()) == list(wanted.seen())


def test_what_is_there_already_is_not_sent():
    console = Console(color_system="truecolor", force_terminal=True)
    painter = Painter()
    strips = [[line(random.Random(number))] for number in range(HEIGHT)]
    painter.take(LayoutUpdate(strips, Region(0, 0, WIDTH, HEIGHT)), Size(WIDTH, HEIGHT))
    assert painter.render_segments(console)
    again = [[line(random.Random(number))] for number in range(HEIGHT)]
    painter.take(LayoutUpdate(again, Region(0, 0, WIDTH, HEIGHT)), Size(WIDTH, HEIGHT))
    assert painter.render_segments(console) == ""


async def test_the_help_takes_at_most_15_kb(desk):
    async with desk(size=(120, 40), has_frames=True) as one:
        console = Console(color_system="truecolor", force_terminal=True)
        painter = one.app.painter
        assert len(painter.render_segments(console)) > 5_000  # the home screen
        await one.press("question_mark")
        await one.until(lambda: "type to search" in one.words() and "docs/screen.md" in one.words(), "the help")
        await one.pilot.pause()
        assert 1_000 < len(painter.render_segments(console).encode()) <= 15_000
