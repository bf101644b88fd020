"""The app: settings, backend, monitor and screens wired together, and good manners towards the terminal.

It paints first and loads then: what the first frame does not need is imported after it, beside the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from l2rtui.config import Settings, context_name, user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import L2RError
from l2rtui.ui.background import Background
from l2rtui.ui.health import Health
from l2rtui.ui.key_order import KeyOrder
from l2rtui.ui.keys import Place, bindings
from l2rtui.ui.link import Link
from l2rtui.ui.messages import LeaveWanted, LookWanted, MetricsArrived, SnapshotArrived
from l2rtui.ui.screens.boot import BootScreen
from l2rtui.ui.theme import ASCII, DARK, THEMES

if TYPE_CHECKING:  # the first frame needs none of it
    from l2rtui.backends.base import Backend
    from l2rtui.domain.snapshot import RunView
    from l2rtui.services.monitor import Monitor
    from l2rtui.ui.feeds import MetricsFeed
    from l2rtui.ui.news import Watch
    from l2rtui.ui.screens.cluster import ClusterScreen

STYLES: Final = Path(__file__).with_name("styles.tcss")
STALE_PERIOD_SECONDS: Final = 5.0
SIGNAL_PATIENCE_SECONDS: Final = 1.0
GARBAGE_REST_SECONDS: Final = 5.0
GARBAGE_THRESHOLDS: Final = (10_000, 20, 50)
RESTS: Final = 4.0
LONGEST_REST_SECONDS: Final = 0.1
"""With the monitor's own tenth, what happens on the cluster is on the screen within a quarter of a second."""
LEAVE_PATIENCE_SECONDS: Final = 15.0
HARD_END_SECONDS: Final = 1.8
"""After this long a signal ends the process even if the event loop is stuck: a dropped ssh leaves nothing."""


class L2RApp(KeyOrder):
    """One screen over one backend.

    Args:
        make: Makes the backend, off the event loop and after the first frame; may raise L2RError.
        clock: Seconds since the epoch.

    Raises:
        ConfigError: ``[keys]`` or ``[filters]`` of the settings is wrong.

    Attributes:
        failure: Why the backend could not be made; the caller prints it.
    """

    CSS = """
    Screen { background: $background; color: $foreground; }
    Ends, KeyBar { background: $surface; }
    #body { height: 1fr; }
    """
    TITLE = "l2rtui"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.APP)]
    ESCAPE_TO_MINIMIZE = False

    def __init__(
        self, settings: Settings, make: Callable[[], Backend], clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = _theme(settings, self.available_themes)
        self.failure: L2RError | None = None
        self.background = Background(self, self._show_health)
        context = " · ".join(filter(None, (settings.backend, settings.context)))
        self.link = Link(settings, self.background, clock, context)
        if settings.protected:
            self.link.protected = context_name({"backend": settings.backend, "context": settings.context})
            self.add_class("protected")
        if settings.filters:
            from l2rtui.services import filters

            filters.checked(settings.filters)
        if settings.keys:
            from l2rtui.ui.keymap import key_table, keymap

            self.link.keys = key_table(settings.keys)
            self.set_keymap(keymap(self.link.keys))
        self._make = make
        self._monitor: Monitor | None = None
        self._adopted: set[str] = set()
        self._shown_in = 0.0
        self._early: list[events.Key | events.Paste] | None = []
        """What was typed before there was a screen for it; None from then on."""

    @cached_property
    def cluster(self) -> ClusterScreen:
        """The home screen, which is always there once the app has begun."""
        from l2rtui.ui.screens.cluster import ClusterScreen

        return ClusterScreen(self.link)

    @cached_property
    def _metrics(self) -> MetricsFeed:
        from l2rtui.ui.feeds import MetricsFeed

        return MetricsFeed(self.link, lambda news: self.post_message(MetricsArrived(news)))

    @cached_property
    def _watch(self) -> Watch:
        from l2rtui.ui.news import Watch

        return Watch(user_name())

    def get_default_screen(self) -> Screen[None]:
        """What stands there until the home screen is loaded."""
        return BootScreen(self._health(), self.link.keys)

    def on_mount(self) -> None:
        """Paint first, connect then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        self.set_interval(STALE_PERIOD_SECONDS, self._show_health)
        self.set_timer(GARBAGE_REST_SECONDS, _look_for_garbage)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self.background.start(self._connect(), group="watch", what="the backend")

    async def on_event(self, event: events.Event) -> None:
        """Keep what is typed until there is a screen for it."""
        if self._early is not None and isinstance(event, events.Key | events.Paste):
            self._early.append(event)
        else:
            await super().on_event(event)

    async def _open(self) -> None:
        """Put the home screen over the first frame, and give it the keys that were pressed meanwhile."""
        await asyncio.to_thread(import_module, "l2rtui.ui.screens.cluster")  # keys are read while it loads
        self.stylesheet.add_source(STYLES.read_text("utf-8"), read_from=(str(STYLES), ""))
        await asyncio.to_thread(self.stylesheet.parse)  # nothing else is mounted meanwhile
        home = self.cluster
        self._show_health()
        with self.batch_update():
            await self.push_screen(home)
            await home.mount_rest()
        early, self._early = self._early or [], None
        for event in early:
            await self.on_event(event)

    async def _ask_rights(self) -> None:
        """Find out what somebody else does not let us do, so that its keys are grey and say why."""
        from l2rtui.backends.base import Permitting

        backend: object = self.link.backend
        if isinstance(backend, Permitting):
            self.link.deny(await backend.denied())
            self.cluster.show_keys()

    async def _connect(self) -> None:
        await self._open()
        try:  # one after the other: both are work for the processor, and the screen is to answer meanwhile
            backend = await asyncio.to_thread(self._make)
        except L2RError as error:
            self.failure = error
            self.exit(return_code=error.exit_code)
            return
        from l2rtui.backends.base import Placed
        from l2rtui.domain.snapshot import EMPTY_SNAPSHOT
        from l2rtui.services.monitor import Monitor

        self.link.backend_or_none = backend
        self.link.context = self.link.context or backend.name
        self._monitor = Monitor(backend)
        self.background.start(self._monitor.run(), group="watch", what="the watch")
        self.background.start(self._ask_rights(), group="rights", what="the rights", is_exclusive=True)
        async for snapshot in self._monitor.updates():
            if isinstance(backend, Placed) and backend.place:
                self.link.context = f"{backend.name} · {backend.place}"
            if self.cluster.snapshot is EMPTY_SNAPSHOT:
                await self.cluster.prepare(snapshot)
            self.post_message(SnapshotArrived(snapshot, self._monitor.error))
            # A snapshot that took long to show is followed by a rest: keys come first, whatever the cluster does.
            await asyncio.sleep(min(LONGEST_REST_SECONDS, RESTS * self._shown_in))

    # --- news --------------------------------------------------------------------------------------------------
    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Hand the newest snapshot on."""
        began = time.monotonic()
        self._show_health()
        self.cluster.snapshot = message.snapshot
        for screen in self.screen_stack[2:]:  # place mode stands over the home screen and looks at the same slots
            if (take := getattr(screen, "take_snapshot", None)) is not None:
                take(message.snapshot)
        self._metrics.follow(message.snapshot.runs.values(), self.cluster.pods_of)
        self._shown_in = time.monotonic() - began
        for sentence in self._watch.news(message.snapshot):
            self.tell_terminal(sentence)
        lost = {run.uid: run for run in message.snapshot.runs.values() if run.reason == "Unsupervised"}
        for uid in lost.keys() - self._adopted:
            self._adopt(lost[uid])
        self._adopted = set(lost)  # one that is lost again is adopted again

    def on_metrics_arrived(self, message: MetricsArrived) -> None:
        """Hand the learners' numbers on."""
        there = self.cluster.snapshot.runs
        kept = {uid: one for uid, one in self.cluster.metrics.items() if uid in there}
        self.cluster.metrics = {**kept, **message.metrics}

    def tell_terminal(self, sentence: str) -> None:
        """Ring, and let the terminal show a notification: the window may be out of sight."""
        self.background.say(sentence)
        if self.link.settings.notify and self._driver is not None and not self.is_headless:
            self.bell()
            self._driver.write(f"\x1b]9;l2rtui: {sanitize(sentence)[:200]}\x07")

    def _adopt(self, run: RunView) -> None:
        """Look after a run of ours that lost its supervisor, where the backend can."""
        adopt = getattr(self.link.backend, "adopt", None)
        if adopt is None or self.link.settings.readonly or run.owner not in ("", user_name()):
            return

        async def work() -> None:
            await adopt(run.name)
            self.background.say(f"{run.name} had lost its supervisor and has a new one.")

        self.background.start(work(), group="adopt", what=f"a new supervisor for {run.name}")

    def on_look_wanted(self, _: LookWanted) -> None:
        """Look at the cluster once, beside the watch."""

        async def look() -> None:
            snapshot = await self.link.backend.snapshot()
            self.cluster.snapshot = snapshot
            self.background.say("looked again")
            await self._ask_rights()

        self.background.start(look(), group="look", what="looking again", is_exclusive=True)

    def _show_health(self) -> None:
        if "cluster" in self.__dict__:  # until it is made there is nothing to tell
            self.cluster.health = self._health()

    def _health(self) -> Health:
        monitor = self._monitor
        silent = time.monotonic() - monitor.heard_at if monitor and monitor.heard_at is not None else 0.0
        error = monitor.error if monitor else ""
        return Health(
            self.link.context,
            is_readonly=self.link.settings.readonly,
            is_protected=bool(self.link.protected),
            is_admin=self.link.is_admin,
            is_connected=monitor is not None and monitor.heard_at is not None,
            error=error,
            silent_seconds=silent if error else 0.0,
            busy=self.background.doing,
        )

    # --- commands ----------------------------------------------------------------------------------------------
    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette offers what the keys offer, and the themes."""
        if screen is self.cluster:
            for key in self.link.keys.of(Place.CLUSTER):
                if "%" not in key.action and not self.link.forbidden(key.action):
                    name = key.action.partition("(")[0]
                    yield SystemCommand(
                        f"{key.label or name.replace('_', ' ')}  {key.face}", key.tooltip, self._runner(key.action)
                    )
        yield SystemCommand("theme", "Choose the colours", self.action_change_theme)

    def _runner(self, action: str) -> Callable[[], object]:
        return lambda: self.call_later(self.run_action, action, self.cluster)

    # --- the end -----------------------------------------------------------------------------------------------
    def on_leave_wanted(self, _: LeaveWanted) -> None:
        """Leave, after a question if work is in hand."""
        self.action_leave()

    def action_leave(self) -> None:
        """Leave; runs go on."""
        doing = self.background.doing
        if not doing:
            self._leave_now(0)
            return
        from l2rtui.ui.screens.confirm import ConfirmScreen, Question, lines_of

        if isinstance(self.screen, ConfirmScreen):
            return
        texts = (
            f"Now {sanitize(doing)}.",
            "A launch is taken back. A destroy stays half done; `l2rtui destroy RUN` ends it.",
            "A copy or a push goes on where it was when it is asked for again.",
        )
        question = Question("Leave all the same?", lines_of(texts), yes="Leave", is_grave=True)
        self.push_screen(ConfirmScreen(question), lambda is_yes: self._leave_now(0) if is_yes else None)

    def _leave_now(self, code: int) -> None:
        asyncio.get_running_loop().create_task(self._end(code, LEAVE_PATIENCE_SECONDS), name="leave")

    def _signalled(self, number: signal.Signals) -> None:
        """End as the signal asks: terminal restored, exit code 128 + n, in less than two seconds."""
        if self.link.is_lent and number in (signal.SIGINT, signal.SIGQUIT):
            return
        code = 128 + number
        from l2rtui.ui.watchdog import end_at_once

        last_resort = threading.Timer(HARD_END_SECONDS, end_at_once, (code,))
        last_resort.daemon = True
        last_resort.start()
        asyncio.get_running_loop().create_task(self._end(code, SIGNAL_PATIENCE_SECONDS), name="signalled")

    async def _end(self, code: int, patience_seconds: float) -> None:
        await self._close(patience_seconds)
        self.exit(return_code=code)

    async def _close(self, patience_seconds: float) -> None:
        await self.background.stop(patience_seconds)
        backend, self.link.backend_or_none = self.link.backend_or_none, None
        if backend is not None:
            await backend.close()

    async def on_unmount(self) -> None:
        """Let go of the backend also when the app ends by another way."""
        await self._close(SIGNAL_PATIENCE_SECONDS)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _fatal_error(self) -> None:
        """Report a defect without the values of local variables, which may be secrets.

        Textual has no public hook for this: its own report prints all locals.
        """
        report = "".join(f"{sanitize(line)}\n" for line in traceback.format_exc().splitlines())
        self._exit_renderables.append(Text(f"l2rtui has a defect and had to end. Runs go on.\n{report}"))
        self._close_messages_no_wait()


def _look_for_garbage() -> None:
    """Look for garbage again, where ``start`` has put it off: never in what is there now, and more seldom.

    A look at every object of ten thousand pods and of full logs is a tenth of a second in which no key is read.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        gc.enable()


def _theme(settings: Settings, known: Mapping[str, object]) -> str:
    """The theme that was asked for; where nobody did, one that the terminal's encoding can show."""
    import locale

    wanted = settings.theme or os.environ.get("TEXTUAL_THEME", "")
    if wanted in known:
        return wanted
    encoding = locale.getpreferredencoding(do_setlocale=False).casefold().replace("-", "")
    return DARK.name if encoding in ("utf8", "cp65001") else ASCII.name
