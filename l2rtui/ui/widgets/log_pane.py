"""A log: 50,000 lines as they come in, narrowed by patterns; ten repaints a second at most."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import ClassVar, Final

from textual.binding import BindingType
from textual.timer import Timer

from l2rtui.ui.beat import until_beat
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.text import HUES
from l2rtui.ui.values import LogText
from l2rtui.ui.widgets.log_ring import KEPT_LINES, Entry, Json, bounded, entry_of, name_of, present
from l2rtui.ui.widgets.log_view import LogView

RUSH_SECONDS: Final = 0.1
"""Time between two paints while many lines come."""
QUIET_SECONDS: Final = 0.5
"""The same while few come: those of several pods then share a paint, and a screen at rest costs little."""
RUSH_LINES: Final = 20
_PREFIX_MOST: Final = 16
_POD: Final = attrgetter("pod")


class LogPane(LogView, can_focus=True):
    """Lines of one or more pods."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.LOG)]

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  (Textual's name)
        super().__init__(id=id)
        self.include = ""
        self.exclude = ""
        self.json_as = Json.COLUMNS
        self.received = 0
        self._all: deque[LogText] = deque(maxlen=KEPT_LINES)
        self._wanted: re.Pattern[str] | None = None
        self._unwanted: re.Pattern[str] | None = None
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

    # --- keys -----------------------------------------------------------------------------------------------
    async def action_since(self, span: int) -> None:
        """Show another span of time."""
        await self.screen.run_action(f"log_since({span})")

    async def action_ask(self, what: str) -> None:
        """Ask for a pattern: ``include`` or ``exclude``."""
        await self.screen.run_action(f"ask_log({what!r})")

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

    async def action_save(self) -> None:
        """Ask where the lines are to be saved."""
        await self.screen.run_action("ask_log('save')")

    async def action_close_pane(self) -> None:
        """Close this pane."""
        await self.screen.run_action("close_log")

    def _drawn(self) -> None:
        self._timer = None
        self._waiting, self._has_drawn = 0, True
        self._arrange()
        if self.dropped:
            self.post_message(self.Changed())
