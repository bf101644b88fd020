"""A log over Textual's line API: 50,000 lines, follow, search, wrap; ten repaints a second at most.

Lines are made harmless and styled when they come into sight. Scrolling back stops following,
and what is read then stays where it is, however much is written below.

It scrolls by itself and draws its own scroll bar: a ScrollView lays the whole screen out anew whenever its virtual
size changes, which here is with every line.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Final

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip
from textual.timer import Timer

from l2rtui.ui.beat import until_beat
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.text import HUES, Line, Span, Tone, fit
from l2rtui.ui.values import LogText
from l2rtui.ui.widgets.log_ring import KEPT_LINES, Entry, Json, Ring, bounded, entry_of, name_of, present
from l2rtui.ui.widgets.paint import Painted

RUSH_SECONDS: Final = 0.1
"""Time between two paints while many lines come."""
QUIET_SECONDS: Final = 0.5
"""The same while few come: those of several pods then share a paint, and a screen at rest costs little."""
RUSH_LINES: Final = 20
PAN_COLUMNS: Final = 20
_PREFIX_MOST: Final = 16
_POD: Final = attrgetter("pod")


class LogPane(Painted, can_focus=True):
    """Lines of one or more pods."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.LOG)]

    @dataclass
    class Changed(Message):
        """Follow, wrap, the search or the dropped count differ: the title is out of date."""

    @dataclass
    class SinceWanted(Message):
        """Another span of time is wanted, by its number."""

        pane: LogPane
        span: int

    @dataclass
    class AskWanted(Message):
        """A pattern is to be typed: ``include`` or ``exclude``."""

        pane: LogPane
        what: str

    @dataclass
    class SaveWanted(Message):
        """The shown lines are to be saved."""

        pane: LogPane

    @dataclass
    class CloseWanted(Message):
        """The pane is to be closed."""

        pane: LogPane

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.ring = Ring()
        self.is_following = True
        self.is_wrapping = False
        self.has_times = False
        self.search = ""
        self.include = ""
        self.exclude = ""
        self.json_as = Json.COLUMNS
        self.received = 0
        self.empty_text = ""
        self._all: deque[LogText] = deque(maxlen=KEPT_LINES)
        self._wanted: re.Pattern[str] | None = None
        self._unwanted: re.Pattern[str] | None = None
        self._top = 0
        self._hit: int | None = None
        self._pan = 0
        self._run = ""
        self._prefix = 0
        self._hues: dict[str, Tone] = {}
        self._timer: Timer | None = None
        self._waiting = 0
        self._is_rush = False
        self._has_drawn = False

    # --- what others may do ---------------------------------------------------------------------------------
    def restart(self, *, run: str, is_merged: bool, empty: str) -> None:
        """Forget all lines and begin with another log.

        Args:
            run: Its name is left out of the prefixes of pods.
            is_merged: Show which pod each line is from.
            empty: What to show until the first line comes.
        """
        self.ring.clear()
        self._all.clear()
        self.received = 0
        self.empty_text, self._run, self._hit, self._pan = empty, run, None, 0
        self._prefix = 1 if is_merged else 0
        self._hues.clear()
        self.is_following = True
        self._has_drawn = False
        self._arrange()
        self.post_message(self.Changed())

    def extend(self, lines: Iterable[LogText]) -> None:
        """Append lines; they are drawn soon, and at most ten times a second."""
        entries = bounded(lines)
        for pod in map(name_of, dict.fromkeys(map(_POD, entries))):
            if pod not in self._hues:
                self._hues[pod] = HUES[len(self._hues) % len(HUES)]
                if self._prefix:
                    self._prefix = min(_PREFIX_MOST, max(self._prefix, len(self._short(pod))))
        before = self.ring.dropped
        self.received += len(entries)
        self._all.extend(entries)
        gone = self.ring.extend(self._presented(entries) if self._must_look else entries)
        if self._hit is not None:
            self._hit = max(0, self._hit - (self.ring.dropped - before))
        if gone and not self.is_following:
            self._go(self._top - gone)
        self._waiting += len(entries)
        is_rush = self._waiting >= RUSH_LINES or not self._has_drawn
        if self._timer is not None and is_rush and not self._is_rush:
            self._timer.stop()
            self._timer = None
        if self._timer is None:
            self._is_rush = is_rush
            self._timer = self.set_timer(RUSH_SECONDS if is_rush else until_beat(QUIET_SECONDS), self._drawn)

    @property
    def dropped(self) -> int:
        """Lines that came and are no longer kept, shown or not."""
        return self.received - len(self._all)

    @property
    def hidden(self) -> int:
        """Kept lines that the patterns hide."""
        return sum(not self._passes(entry_of(line)) for line in self._all) if self.include or self.exclude else 0

    def narrow(self, *, include: str | None = None, exclude: str | None = None) -> None:
        """Show only lines with a pattern, and none with another; also those that are there already.

        Raises:
            re.error: a pattern is no regular expression; nothing has changed.
        """
        wanted = self.include if include is None else include
        unwanted = self.exclude if exclude is None else exclude
        self._wanted = re.compile(wanted, re.IGNORECASE) if wanted else None
        self._unwanted = re.compile(unwanted, re.IGNORECASE) if unwanted else None
        self.include, self.exclude = wanted, unwanted
        self._show_again()

    def shown_lines(self) -> list[str]:
        """The shown lines as text, each with its time and pod."""
        stamp = "%Y-%m-%dT%H:%M:%SZ"
        return [f"{time.strftime(stamp, time.gmtime(one.time))} {one.pod} {one.text}" for one in self.ring]

    def _passes(self, entry: Entry) -> bool:
        if entry.is_mark:
            return True
        if self._wanted is not None and not self._wanted.search(entry.text):
            return False
        return self._unwanted is None or not self._unwanted.search(entry.text)

    @property
    def _must_look(self) -> bool:
        """Whether lines must be looked at before it is known what is shown of them."""
        return bool(self.include or self.exclude) or self.json_as is Json.PRETTY

    def _presented(self, lines: Iterable[LogText]) -> Iterator[Entry]:
        for entry in map(entry_of, lines):
            if self._passes(entry):
                yield from present(entry, self.json_as)

    def _show_again(self) -> None:
        """Fill the ring anew from what is kept; what is read stays about where it is."""
        at = self.ring.at(self._top)
        seen = self.ring[at[0]].time if at else 0.0
        self.ring.clear()
        self.ring.json_as = self.json_as
        self.ring.extend(self._presented(self._all) if self._must_look else self._all)
        self._hit = None
        self._arrange()
        if not self.is_following:
            later = next((number for number, entry in enumerate(self.ring) if entry.time >= seen), 0)
            self._go(self.ring.row_of(later))
        self.refresh()
        self.post_message(self.Changed())

    def find(self, text: str) -> None:
        """Search for text, whatever its case; empty ends the search."""
        self.search = text.casefold()
        self._hit = None
        if self.search:
            self.action_hit(-1)
        self.refresh()
        self.post_message(self.Changed())

    @property
    def hits(self) -> int:
        """Lines that match the search."""
        return sum(self.search in entry.text.casefold() for entry in self.ring) if self.search else 0

    # --- keys -----------------------------------------------------------------------------------------------
    def action_follow(self) -> None:
        """Turn following on or off."""
        self._follow(not self.is_following)

    def action_wrap(self) -> None:
        """Turn the breaking of long lines on or off."""
        self.is_wrapping = not self.is_wrapping
        self._pan = 0
        self._arrange()
        self.post_message(self.Changed())

    def action_times(self) -> None:
        """Show or hide the time of each line."""
        self.has_times = not self.has_times
        self._arrange()

    def action_since(self, span: int) -> None:
        """Ask for another span of time."""
        self.post_message(self.SinceWanted(self, span))

    def action_ask(self, what: str) -> None:
        """Ask for a pattern."""
        self.post_message(self.AskWanted(self, what))

    def action_json(self) -> None:
        """Show JSON lines in the next way."""
        ways = list(Json)
        self.json_as = ways[(ways.index(self.json_as) + 1) % len(ways)]
        self._show_again()

    def action_marker(self) -> None:
        """Write a line across the log."""
        text = f"marked at {time.strftime('%H:%M:%S')}"
        entry = Entry(time.time(), "", text, len(text), is_mark=True)
        self.received += 1
        self._all.append(entry)
        self.ring.extend([entry])
        self._arrange()
        self.post_message(self.Changed())

    def action_save(self) -> None:
        """Ask for the lines to be saved."""
        self.post_message(self.SaveWanted(self))

    def action_close_pane(self) -> None:
        """Ask to be closed."""
        self.post_message(self.CloseWanted(self))

    def action_hit(self, by: int) -> None:
        """Go to the next or the last line that matches."""
        if not self.search or not len(self.ring):
            return
        total = len(self.ring)
        start = self._hit if self._hit is not None else (total if by < 0 else -1)
        for step in range(1, total + 1):
            number = (start + by * step) % total
            if self.search in self.ring[number].text.casefold():
                self._hit = number
                self._follow(False)
                top = self.ring.row_of(number) - self.size.height // 2
                self._go(top)
                self.refresh()
                return

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self._scroll(self._top + by)

    def action_page(self, by: int) -> None:
        """Scroll by pages."""
        self._scroll(self._top + by * max(1, self.size.height - 1))

    def action_edge(self, side: int) -> None:
        """Go to the oldest or the newest line."""
        if side > 0:
            self._follow(True)
        else:
            self._scroll(0)

    def action_pan(self, by: int) -> None:
        """Move sideways along lines that are too long."""
        if not self.is_wrapping:
            self._pan = max(0, self._pan + by * PAN_COLUMNS)
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Go to the place in the log that was clicked in the scroll bar."""
        if event.x >= self.size.width - 1 and self.size.height > 1:
            self._scroll(round(self._last_top * event.y / (self.size.height - 1)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll back with the wheel."""
        event.stop()
        event.prevent_default()
        self._scroll(self._top - 3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll on with the wheel."""
        event.stop()
        event.prevent_default()
        self._scroll(self._top + 3)

    # --- inside ---------------------------------------------------------------------------------------------
    def _go(self, top: int) -> None:
        """Let this screen line of the log be the first one in sight."""
        self._top = max(0, min(top, self._last_top))
        self.refresh()

    @property
    def _last_top(self) -> int:
        return max(0, self.ring.rows - self.size.height)

    def _follow(self, is_following: bool) -> None:
        if is_following != self.is_following:
            self.is_following = is_following
            self.post_message(self.Changed())
        if is_following:
            self._go(self._last_top)

    def _scroll(self, top: int) -> None:
        """Scroll; at the very end following goes on again, anywhere else it stops."""
        self._go(top)
        self._follow(self._top >= self._last_top)

    def _drawn(self) -> None:
        self._timer = None
        self._waiting, self._has_drawn = 0, True
        self._arrange()
        if self.dropped:
            self.post_message(self.Changed())

    def _arrange(self) -> None:
        """Bring the height up to date and draw."""
        if not self.size.width:
            return
        self.ring.wrap(max(1, self.size.width - 1 - self._left) if self.is_wrapping else 0)
        self._go(self._last_top if self.is_following else self._top)

    def on_resize(self) -> None:
        """Break lines for the new width."""
        self._arrange()

    @property
    def _left(self) -> int:
        """Columns before the text: margin, time, pod."""
        return 2 + (9 if self.has_times else 0) + (self._prefix + 3 if self._prefix else 0)

    def _short(self, pod: str) -> str:
        return pod.removeprefix(f"{self._run}-")

    def render_line(self, y: int) -> Strip:
        """One screen line of the log, with its piece of the scroll bar."""
        strip = self._line(y, self.size.width - 1)
        bar = self.strip((Span("▐" if self._has_thumb(y) else " ", Tone.DIM),), 1)
        return Strip.join([strip, bar])

    def _has_thumb(self, y: int) -> bool:
        """Whether the scroll bar's thumb covers this line; it is never shorter than one."""
        rows, height = self.ring.rows, self.size.height
        if rows <= height:
            return False
        length = max(1, height * height // rows)
        first = round((height - length) * self._top / self._last_top)
        return first <= y < first + length

    def _line(self, y: int, width: int) -> Strip:
        found = self.ring.at(y + self._top)
        if found is None:
            text = self.empty_text if y == 0 and not len(self.ring) else ""
            return self.strip((Span(f"  {text}", Tone.DIM),), width)
        number, part = found
        entry = self.ring[number]
        line = (*self._before(entry, part, is_hit=number == self._hit), *self._body(entry, part, width))
        strip = self.strip(line, width)
        if entry.colours and not part and not self._pan:
            strip = self._painted(strip, entry)
        return self._highlight(strip, self._left) if self.search else strip

    def _before(self, entry: Entry, part: int, *, is_hit: bool) -> Line:
        point = Span("▸ " if is_hit else "  ", Tone.ACCENT)
        if part:
            return (point, Span(" " * (self._left - 2)))
        spans = [point]
        if self.has_times:
            spans.append(Span(f"{time.strftime('%H:%M:%S', time.localtime(entry.time))} ", Tone.DIM))
        if self._prefix:
            spans.append(Span(fit(self._short(entry.pod), self._prefix), self._hues.get(entry.pod, Tone.DIM)))
            spans.append(Span(" │ ", Tone.DIM))
        return tuple(spans)

    def _body(self, entry: Entry, part: int, width: int) -> Sequence[Span]:
        room = width - self._left
        if entry.is_mark:
            text = f"──── {entry.text} "
            return (Span(fit(text, room) if len(text) > room else text.ljust(room, "─"), Tone.WARN),)
        tone = Tone.DIM if entry.is_record else _tone(entry.text)
        if not self.is_wrapping:
            return (Span(entry.text[self._pan : self._pan + room], tone),)
        if entry.columns == len(entry.text):
            return (Span(entry.text[part * room : (part + 1) * room], tone),)
        pieces = chop_cells(entry.text, room)
        return (Span(pieces[part] if part < len(pieces) else "", tone),)

    def _painted(self, strip: Strip, entry: Entry) -> Strip:
        """Lay the line's own colours over its first screen line."""
        if entry.columns != len(entry.text):
            return strip
        for start, end, style in entry.colours:
            first, last = min(self._left + start, strip.cell_length), min(self._left + end, strip.cell_length)
            if first < last:
                before, piece, after = strip.divide([first, last, strip.cell_length])
                strip = Strip([*before, *piece.apply_style(style), *after], strip.cell_length)
        return strip

    def _highlight(self, strip: Strip, left: int) -> Strip:
        """Turn the matches over: seen without colour too."""
        text = strip.text.casefold()
        at = text.find(self.search, left)
        cuts: list[int] = []
        while at >= 0:
            cuts += [at, at + len(self.search)]
            at = text.find(self.search, at + len(self.search))
        if not cuts or cell_len(text) != len(text):
            return strip  # characters of two columns: the line is shown, its hits are not marked
        look = Style(reverse=True)
        segments: list[Segment] = []
        for number, piece in enumerate(strip.divide([*cuts, strip.cell_length])):
            segments.extend(piece.apply_style(look) if number % 2 else piece)
        return Strip(segments, strip.cell_length)


def _tone(text: str) -> Tone:
    """Lines that begin with a log level are coloured by it; the word itself says the same without colour."""
    head = text[:48]
    if "ERROR" in head or "CRITICAL" in head or head.startswith(("Traceback", "error:")):
        return Tone.BAD
    return Tone.WARN if "WARN" in head else Tone.PLAIN
