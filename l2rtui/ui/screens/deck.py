"""One to four logs side by side. The first follows the selection; the others keep what they were opened with."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal

from l2rtui.domain.sanitize import sanitize
from l2rtui.domain.snapshot import PodView
from l2rtui.ui.feeds import LogFeed, Subject
from l2rtui.ui.link import Link
from l2rtui.ui.text import plural
from l2rtui.ui.widgets.log_pane import LogPane
from l2rtui.ui.widgets.log_ring import Json

MOST_PANES: Final = 4
SINCE: Final = (
    (None, ""),
    (60.0, "last 1m"),
    (300.0, "last 5m"),
    (900.0, "last 15m"),
    (1800.0, "last 30m"),
    (3600.0, "last 1h"),
    (86_400.0, "last 1d"),
)
"""What the digits mean, by number."""


class Desk:
    """One pane, what it shows and how far back."""

    def __init__(self, link: Link, number: int) -> None:
        self.pane = LogPane(id="log" if number == 0 else f"log-{number}")
        self.feed = LogFeed(link, self.pane)
        self.since = 0
        self.is_previous = False

    def show(self, subject: Subject) -> None:
        """Show this subject, as far back and of the process that was chosen."""
        if subject.key != self.feed.subject.key:
            self.is_previous = False
        seconds, _ = SINCE[self.since]
        self.feed.show(replace(subject, is_previous=self.is_previous, since_seconds=seconds))

    def join(self, pods: tuple[PodView, ...]) -> None:
        """Pods that came since belong to what is shown, too."""
        self.feed.show(replace(self.feed.subject, pods=pods))

    def again(self) -> None:
        """Read anew what is shown, as far back as is chosen now."""
        if self.feed.subject.pods:
            self.show(self.feed.subject)

    def facts(self) -> list[str]:
        """What the title says."""
        pane, subject = self.pane, self.feed.subject
        if not subject.key:
            return []
        _, since = SINCE[self.since]
        following = "following" if pane.is_following else "▲ stopped, f follows"
        return [
            sanitize(subject.title),
            plural(len(subject.pods), "pod") if subject.is_merged else "",
            "process before" if subject.is_previous else following,
            "wrapped" if pane.is_wrapping else "",
            since,
            f"/{sanitize(pane.search)}, {plural(pane.hits, 'line')}" if pane.search else "",
            f"&{sanitize(pane.include)}" if pane.include else "",
            f"!{sanitize(pane.exclude)}" if pane.exclude else "",
            f"json {pane.json_as}" if pane.json_as is not Json.COLUMNS else "",
            f"{pane.hidden:,} hidden" if pane.include or pane.exclude else "",
            f"{pane.dropped:,} oldest dropped" if pane.dropped else "",
        ]


class Deck(Horizontal):
    """The desks, left to right."""

    def __init__(self, link: Link) -> None:
        super().__init__(id="logs")
        self._link = link
        self.desks: list[Desk] = [Desk(link, 0)]
        self._active = self.desks[0]
        self._made = 1

    def compose(self) -> ComposeResult:
        """The panes."""
        for desk in self.desks:
            yield desk.pane

    @property
    def active(self) -> Desk:
        """The desk that has the focus, or had it last."""
        self._active = self._focused or self._active
        return self._active

    @property
    def _focused(self) -> Desk | None:
        """Asked of the screen: a pane is told of its focus later, after the keys that come behind it."""
        focused = self.screen.focused if self.is_attached else None
        return next((desk for desk in self.desks if desk.pane is focused), None)

    def follow(self, subject: Subject) -> None:
        """The selection is another: show its log at the first desk.

        A free slot, or a run without pods, has no log: the one that was shown stays.
        """
        if subject.pods:
            self.desks[0].show(subject)

    def split(self) -> Desk | None:
        """Open another desk with what the focused one shows, or the first; None when there are four."""
        if len(self.desks) >= MOST_PANES:
            return None
        shown = self._focused or self.desks[0]
        desk = Desk(self._link, self._made)
        self._made += 1
        self.desks.append(desk)
        self.mount(desk.pane)
        desk.since, desk.is_previous = shown.since, shown.is_previous
        if shown.feed.subject.pods:
            desk.feed.show(shown.feed.subject)
        self._active = desk
        return desk

    def show_alone(self, desk: Desk | None) -> None:
        """Show one desk and hide the others, or with None all of them."""
        for one in self.desks:
            one.pane.display = desk is None or one is desk

    def close(self, desk: Desk) -> bool:
        """Close a desk; the last one stays."""
        if len(self.desks) == 1:
            return False
        desk.feed.stop()
        self.desks.remove(desk)
        desk.pane.remove()
        self._active = self.desks[0]
        return True
