"""Textual app: wires settings, backend, monitor and screens together; handles signals, terminal and garbage
collection.

The first frame is painted before anything else. Modules that it does not need are imported afterwards, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import SystemCommand
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.screen import Screen

from l2rtui.config import Settings, user_name
from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import BackendError, ConfigError, L2RError
from l2rtui.ui.home.splash import SplashScreen
from l2rtui.ui.keys.key_queue import KeyQueueApp
from l2rtui.ui.keys.palette import COMMANDS, is_meant
from l2rtui.ui.keys.table import KeyContext, bindings
from l2rtui.ui.painter import Painter
from l2rtui.ui.state.app_context import AppContext, ContextOpener, protected_name
from l2rtui.ui.state.background import Background
from l2rtui.ui.state.connection_status import ConnectionStatus
from l2rtui.ui.state.messages import (
    ContextRequested,
    LearningChanged,
    MetricsArrived,
    RefreshRequested,
    SnapshotArrived,
)
from l2rtui.ui.theme import ASCII, DARK, THEMES

_log = logging.getLogger(__name__)

if TYPE_CHECKING:  # the first frame needs none of it
    from rich.console import RenderableType
    from textual.notifications import SeverityLevel

    from l2rtui.backends.base import Backend
    from l2rtui.domain.selection.shared_view import SharedView
    from l2rtui.domain.snapshot import RunView
    from l2rtui.services.monitor import Monitor
    from l2rtui.ui.context_switch import Opened
    from l2rtui.ui.home.screen import ClusterScreen
    from l2rtui.ui.state.notices import RunNotifications
    from l2rtui.ui.state.record_streams import MetricsStream

STYLES: Final = Path(__file__).with_name("styles.tcss")
FIRST_DATA_SECONDS: Final = 0.1
"""Longest wait for a snapshot before the panes are shown. A snapshot within this time saves one layout and one
paint.
"""
STALE_PERIOD_SECONDS: Final = 5.0
SIGNAL_PATIENCE_SECONDS: Final = 1.0
GARBAGE_REST_SECONDS: Final = 5.0
GARBAGE_THRESHOLDS: Final = (10_000, 20, 50)
REST_FACTOR: Final = 4.0
"""Pause after a snapshot, as a multiple of the time that showing it took."""
MAX_REST_SECONDS: Final = 0.1
"""Together with the monitor's own 0.1 s, a change on the cluster is shown within a quarter of a second."""
LEAVE_PATIENCE_SECONDS: Final = 15.0
HARD_END_SECONDS: Final = 1.8
"""Time after a signal at which the process ends even if the event loop is stuck, so a dropped ssh leaves no
process.
"""


class ActionSearch(Provider):
    """Actions of keys and commands for the palette, found by name, sentence and synonym."""

    async def discover(self) -> Hits:
        """Yield every action."""
        for command in self.app.get_system_commands(self.screen):
            yield DiscoveryHit(command.title, command.callback, help=command.help)

    async def search(self, query: str) -> Hits:
        """Yield the actions whose name is like the query, or of which it says something."""
        matcher = self.matcher(query)
        for command in self.app.get_system_commands(self.screen):
            name = command.title.partition("  ")[0].lstrip(":")
            # A name that fits stands above a sentence that does.
            score = matcher.match(command.title) or (0.4 if is_meant(query, name, command.help) else 0.0)
            if score > 0:
                yield Hit(score, matcher.highlight(command.title), command.callback, help=command.help)


class L2RApp(KeyQueueApp):
    """App over one backend.

    Args:
        make: Makes the backend; called in a thread after the first frame, may raise L2RError.
        clock: Seconds since the epoch.
        opener: Opens other contexts; None if the backend has only one.
        view: View to open with the first snapshot.

    Raises:
        ConfigError: ``[keys]`` or ``[filters]`` of the settings is wrong.

    Attributes:
        failure: Error raised while the backend was made; the caller prints it.
    """

    CSS = """
    Screen { background: $background; color: $foreground; }
    SplitLine, KeyBar { background: $surface; }
    #body { height: 1fr; }
    """
    TITLE = "l2rtui"
    COMMANDS = {ActionSearch}  # noqa: RUF012  (as Textual declares it)
    BINDINGS = bindings(KeyContext.APP)
    ESCAPE_TO_MINIMIZE = False

    def __init__(
        self,
        settings: Settings,
        make: Callable[[], Backend],
        clock: Callable[[], float] = time.time,
        opener: ContextOpener | None = None,
        view: SharedView | None = None,
    ) -> None:
        super().__init__()
        for theme in THEMES:  # before the theme is set below: Textual accepts registered names only
            self.register_theme(theme)
        self.theme = _theme(settings, self.available_themes)
        self.failure: L2RError | None = None
        self.background = Background(self, self.show_health)
        context = " · ".join(filter(None, (settings.backend, settings.context)))
        self.ctx = AppContext(settings, self.background, clock, context, start_files=opener.files if opener else {})
        self.ctx.protected = protected_name(settings)
        self.set_class(bool(self.ctx.protected), "protected")
        if settings.filters or settings.keys:
            self._bind(settings)
        self.painter = Painter()
        self._make = make
        self.opener = opener
        self.shared_view = view
        self.connection = 0
        self._monitor: Monitor | None = None
        self._adopted: set[str] = set()
        self._shown_in = 0.0
        self._first_data = asyncio.Event()
        # Shared state of the start: the terminal is read from the first frame on, the home screen comes later.
        self._early: list[events.Key | events.Paste] | None = []
        """Keys pressed before the home screen exists; None from then on."""

    def _require_theme(self, name: str) -> None:
        if name and name not in self.available_themes:
            raise ConfigError(f"There is no theme {name!r}.")

    def _bind(self, settings: Settings) -> None:
        """Apply keys and filters of the settings; on a ConfigError the previous ones stay."""
        from l2rtui.services import filters
        from l2rtui.ui.keys.keymap import key_table, keymap

        filters.checked(settings.filters)
        self.ctx.keys = key_table(settings.keys)
        self.set_keymap(keymap(self.ctx.keys))

    @cached_property
    def cluster(self) -> ClusterScreen:
        """The home screen; it stays at the bottom of the stack until the app ends."""
        from l2rtui.ui.home.screen import ClusterScreen

        return ClusterScreen(self.ctx)

    @cached_property
    def _metrics(self) -> MetricsStream:
        from l2rtui.ui.state.record_streams import MetricsStream

        return MetricsStream(self.ctx, lambda metrics: self.post_message(MetricsArrived(metrics)))

    @cached_property
    def _notifications_of_runs(self) -> RunNotifications:
        from l2rtui.ui.state.notices import RunNotifications

        return RunNotifications(user_name())

    def get_default_screen(self) -> Screen[None]:
        """Return the splash screen, which is shown until the home screen is loaded."""
        return SplashScreen(self.health(), self.ctx.keys)

    def on_mount(self) -> None:
        """Paint first, connect then."""
        self.app_resume_signal.subscribe(self, lambda _: self.painter.forget())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        self.set_interval(STALE_PERIOD_SECONDS, self.show_health)
        self.set_timer(GARBAGE_REST_SECONDS, _enable_garbage_collection)
        self.call_after_refresh(self._begin)  # imports hold the interpreter lock and would delay the first frame

    def _begin(self) -> None:
        self.background.start(self._connect(), group="watch", what="the backend")

    async def on_event(self, event: events.Event) -> None:
        """Keep keys and pastes until the home screen is there."""
        if self._early is not None and isinstance(event, events.Key | events.Paste):
            self._early.append(event)
        else:
            await super().on_event(event)

    def on_descendant_focus(self) -> None:
        """Move the toasts off the focused input field, once the field has its position."""
        self.call_after_refresh(self._make_room)

    def on_resize(self) -> None:
        """Move the toasts, too, and paint all cells again: a terminal drops those outside of it."""
        self.painter.forget()
        self.call_after_refresh(self._make_room)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a toast where it does not cover the focused input field, which may have moved since it got the
        focus.
        """
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)
        self.call_after_refresh(self._make_room)

    def _make_room(self) -> None:
        if "cluster" in self.__dict__ and self.screen_stack:  # the first frame has no toast and pays for no import
            from l2rtui.ui.toasts import make_room

            make_room(self.screen)

    def action_suspend_process(self) -> None:
        """Stop the app and give the terminal back to the shell, where there is one to continue the app."""
        can_suspend = self._driver is not None and self._driver.can_suspend
        # The guard is our parent. As leader of the session it has no shell above it: no process could continue it.
        if not can_suspend or os.getsid(0) in (os.getpid(), os.getppid()):
            self.background.say("There is no shell to go back to: this app leads its session. q leaves.")
        else:
            super().action_suspend_process()

    async def _open(self) -> None:
        await asyncio.to_thread(import_module, "l2rtui.ui.home.screen")  # in a thread: keys are read meanwhile
        self.stylesheet.add_source(STYLES.read_text("utf-8"), read_from=(str(STYLES), ""))
        await asyncio.to_thread(self.stylesheet.parse)  # safe: nothing is mounted until this is done
        await self._push_home()

    async def _push_home(self) -> None:
        self.cluster.panes.body.styles.display = "none"  # as on the splash screen, until _show_panes
        self.show_health()
        await self.push_screen(self.cluster)

    async def _show_panes(self) -> None:
        """Show the panes with their first data, or without data after a short wait; then replay the keys pressed so
        far.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first_data.wait(), FIRST_DATA_SECONDS)
        self.cluster.panes.body.styles.display = None  # as the style sheet has it
        # None before the replay: a key that arrives during it must not be appended to the list being replayed.
        early, self._early = self._early or [], None
        for event in early:
            await self.on_event(event)

    async def _ask_rights(self) -> None:
        """Ask the backend for missing permissions; the keys that need them become grey and say why."""
        backend = self.ctx.backend
        self.ctx.deny(await backend.denied())
        if backend.volumes is None:
            self.ctx.denied.setdefault("volumes", f"the {backend.name} backend has no volumes of its own")
        self.cluster.content.titles.show_keys()

    async def _connect(self) -> None:
        await self._open()
        self.background.start(self._show_panes(), group="watch", what="the home screen")
        try:  # after _open, not in parallel: both are CPU work and would delay keys
            backend = await asyncio.to_thread(self._make)
        except L2RError as error:
            self.failure = error
            self.exit(return_code=error.exit_code)
            return
        from l2rtui.services.monitor import Monitor

        self.ctx.backend_or_none = backend
        self.ctx.context = self.ctx.context or backend.name
        monitor = Monitor(backend)
        self.background.start(monitor.run(), group="watch", what="the watch")
        self._follow(backend, monitor)

    def _follow(self, backend: Backend, monitor: Monitor) -> None:
        """Show reports of a monitor, and drop reports of the previous connection."""
        from l2rtui.ui.state.notices import AbsenceNotice

        self._monitor = monitor
        self.ctx.absence = AbsenceNotice(self.background, backend, self.ctx.clock)
        self.connection += 1
        self.background.start(self._ask_rights(), group="rights", what="the rights", is_exclusive=True)
        self.background.start(
            self._show_updates(backend, monitor, self.connection), group="watch", what="the watch"
        )

    async def _show_updates(self, backend: Backend, monitor: Monitor, connection: int) -> None:
        from l2rtui.domain.snapshot import EMPTY_SNAPSHOT

        async for snapshot in monitor.updates():
            if backend.location:
                self.ctx.context = f"{backend.name} · {backend.location}"
            if self.cluster.snapshot is EMPTY_SNAPSHOT:
                await self.cluster.content.prepare(snapshot)
            self.post_message(SnapshotArrived(snapshot, monitor.error, connection))
            # A slow paint is followed by a pause, so that keys are handled however often the cluster changes.
            await asyncio.sleep(min(MAX_REST_SECONDS, REST_FACTOR * self._shown_in))

    # --- values for the screens --------------------------------------------------------------------------------
    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Show the newest snapshot and report its changes."""
        if message.connection != self.connection:
            return  # it was still queued when another context was opened
        began = time.monotonic()
        self.ctx.silent_since, self.ctx.contexts = message.snapshot.silent_since, message.snapshot.contexts
        self.show_health()
        self.cluster.snapshot = message.snapshot
        self._first_data.set()
        if self.shared_view is not None:
            shared, self.shared_view = self.shared_view, None
            self.cluster.sharing.apply(shared)
        if self.ctx.absence is not None:
            self.ctx.absence.take_snapshot(message.snapshot)
        # Place mode lies over the home screen and shows the same slots; 0 and 1 are the splash and the home screen.
        for screen in self.screen_stack[2:]:
            if (take := getattr(screen, "take_snapshot", None)) is not None:
                take(message.snapshot)
        self._metrics.follow(message.snapshot.runs.values(), self.cluster.content.pods_of)
        self.cluster.content.learning_states.read_runs = self._metrics.read
        self._shown_in = time.monotonic() - began
        vanished = self._notifications_of_runs.vanish(message.snapshot)
        for sentence in (*self._notifications_of_runs.update(message.snapshot), *vanished):
            self.notify_terminal(sentence)
        if vanished:
            self.background.start(self._record_ends(), group="ends", what="the ends of runs")
        # A supervisor that died with the machine or was killed: its run continues, but its pods are not restarted.
        lost = {run.uid: run for run in message.snapshot.runs.values() if run.reason == "Unsupervised"}
        for uid in lost.keys() - self._adopted:
            self._adopt(lost[uid])
        self._adopted = set(lost)  # a run that loses its supervisor again is adopted again

    async def _record_ends(self) -> None:
        from l2rtui.services.history.completion import complete_ended

        await complete_ended(self.ctx.backend, self.cluster.snapshot, last_look=self.ctx.clock())

    def on_metrics_arrived(self, message: MetricsArrived) -> None:
        """Show new metrics of learners; drop metrics of deleted runs."""
        runs = self.cluster.snapshot.runs
        old = {uid: metrics for uid, metrics in self.cluster.metrics.items() if uid in runs}
        self.cluster.metrics = {**old, **message.metrics}

    def on_learning_changed(self, message: LearningChanged) -> None:
        """Report learners that stall or resume."""
        for sentence in self._notifications_of_runs.learn(self.cluster.snapshot, message.states):
            self.notify_terminal(sentence)

    def notify_terminal(self, sentence: str) -> None:
        """Ring the bell and show a desktop notification, as for a failed run, since the window may be hidden.

        ``ui.state.notices`` makes the sentences. OSC 9 is iTerm2's escape sequence for notifications;
        other terminals have adopted it.
        """
        self.background.say(sentence)
        if self.ctx.settings.notify and self._driver is not None and not self.is_headless:
            self.bell()
            self._driver.write(f"\x1b]9;l2rtui: {sanitize(sentence)[:200]}\x07")

    def _adopt(self, run: RunView) -> None:
        """Start a new supervisor for a run of the user that lost its own, if the backend can."""
        adopt = self.ctx.backend.adopt
        if adopt is None or self.ctx.settings.readonly or run.owner not in ("", user_name()):
            return

        async def work() -> None:
            await adopt(run.name)
            self.background.say(f"{run.name} had lost its supervisor and has a new one.")

        self.background.start(work(), group="adopt", what=f"a new supervisor for {run.name}")

    def on_refresh_requested(self, _: RefreshRequested) -> None:
        """Take a snapshot now, in addition to the watch."""

        async def refresh() -> None:
            snapshot = await self.ctx.backend.snapshot()
            self.cluster.snapshot = snapshot
            self.background.say("refreshed")
            await self._ask_rights()

        self.background.start(refresh(), group="look", what="looking again", is_exclusive=True)

    # --- another context ---------------------------------------------------------------------------------------
    def on_context_requested(self, message: ContextRequested) -> None:
        """Switch to another context once it has answered; until then, and on failure, the current view stays."""
        from l2rtui.ui.context_switch import ConnectingScreen, busy_sentence, switch

        opener = self.opener
        if self.screen is not self.cluster or opener is None:
            return
        if doing := self.background.doing:
            self.background.say(busy_sentence(doing), is_error=True)
            return
        namespaces = f", namespace {', '.join(message.namespaces)}" if message.namespaces else ""
        dialog = ConnectingScreen(f"{message.context}{namespaces}")
        work = switch(self.ctx, opener, message.context, message.namespaces, dialog, enter=self._enter)
        worker = self.background.start(work, group="switch", what=message.context, is_exclusive=True)
        self.push_screen(dialog, lambda is_over: None if is_over else worker.cancel())

    async def _enter(self, opened: Opened) -> None:
        """Leave the current context and show the one that has answered."""
        from l2rtui.ui.context_switch import ended_sentence, spared

        ended, old = ended_sentence(self.cluster), self.ctx.backend_or_none
        # From here on keys wait for the new screen: they must not act on rows of the old context.
        self._early = []
        self.connection += 1  # drops its snapshots that are still queued
        self._metrics.close()
        # Removed before the work is stopped: timers of a mounted screen would start more work in between.
        await self.pop_screen()
        await self.background.stop(SIGNAL_PATIENCE_SECONDS, spare=spared(opened))
        if self.ctx.absence is not None:
            await self.ctx.absence.note()
        self.ctx.enter(opened.settings, opened.backend)
        try:
            self.set_class(bool(self.ctx.protected), "protected")
            for name in ("cluster", "_metrics", "_notifications_of_runs"):
                self.__dict__.pop(name, None)  # cached: created again, without state of the old context
            self._adopted = set()
            self._first_data.clear()
            self._follow(opened.backend, opened.monitor)
            await self._push_home()
            await self._show_panes()
            self.background.say(f"Here is {opened.backend.location or opened.backend.name}. {ended}".strip())
        finally:
            if old is not None:
                await self.background.finish(old.close())

    def show_health(self) -> None:
        """Show the state of the connection, and the age of the data where it is old."""
        if "cluster" in self.__dict__:  # the cached property must not be computed before its module is loaded
            self.cluster.health = self.health()

    def health(self) -> ConnectionStatus:
        """Return the state of the connection now."""
        monitor = self._monitor
        silent = time.monotonic() - monitor.heard_at if monitor and monitor.heard_at is not None else 0.0
        error = monitor.error if monitor else ""
        return ConnectionStatus(
            self.ctx.context,
            is_readonly=self.ctx.settings.readonly,
            is_protected=bool(self.ctx.protected),
            is_admin=self.ctx.is_admin,
            is_connected=monitor is not None and monitor.heard_at is not None,
            error=error,
            silent_seconds=silent if error else 0.0,
            unanswered_seconds=self.ctx.unanswered_seconds,
            busy=self.background.doing,
            contexts=self.ctx.contexts,
            now=self.ctx.clock() if self.ctx.contexts else 0.0,
        )

    # --- commands ----------------------------------------------------------------------------------------------
    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the actions of the keys, and the themes, for Textual's palette."""
        if screen is self.cluster:
            for key in self.ctx.keys.of(KeyContext.CLUSTER):
                if "%" not in key.action and not self.ctx.forbidden(key.action):
                    yield SystemCommand(f"{key.name}  {key.face}", key.tooltip, self._runner(key.action))
            bound = {key.action.partition("(")[0] for key in self.ctx.keys.of(KeyContext.CLUSTER)}
            for command in COMMANDS:
                action = command.action
                # Commands that take no argument and have no key are found here, too.
                is_bare = "%" not in action and action.partition("(")[0] not in bound
                if is_bare and not self.ctx.forbidden(action):
                    yield SystemCommand(f":{command.name}", command.tooltip, self._runner(action))
            charts = self._runner("pane('charts')")
            yield SystemCommand("charts  8", "Charts of the marked runs: returns, speed, learning", charts)
        yield SystemCommand("theme", "Choose the colours", self.action_change_theme)
        yield SystemCommand("screenshot", "Write this screen to a file, as SVG", self.action_save_screen)

    def _runner(self, action: str) -> Callable[[], object]:
        return lambda: self.call_later(self.run_action, action, self.cluster)

    def action_save_screen(self, path: str = "") -> None:
        """Write the screen to a file as SVG or text, by the file's extension: ``:screenshot``, and the palette in
        dialogs.
        """
        path = path or f"l2rtui-{time.strftime('%Y%m%d-%H%M%S', time.localtime(self.ctx.clock()))}.svg"

        async def save() -> None:
            from l2rtui.ui.saved_files import save_text, screen_content

            target = await asyncio.to_thread(save_text, path, screen_content(self, path))
            self.background.say(f"The screen is in {target}")

        # After the next frame, so that the command line or palette used to choose this is not in the picture.
        self.call_after_refresh(self.background.start, save(), group="save", what=f"saving {path}")

    def action_reload_settings(self) -> None:
        """Read the settings again: ``:reload``. On an error, report it and keep the current settings."""
        self.background.start(self._reload(), group="settings", what="the settings", is_exclusive=True)

    async def _reload(self) -> None:
        if self.opener is None:
            raise BackendError("A replay has the settings with which it was started.")
        from l2rtui.ui.state.app_context import reloaded

        before = self.ctx.settings
        read = self.opener.settings_for
        try:
            after = await asyncio.to_thread(read, before.context, before.namespaces or None)
            settings, sentence = reloaded(before, after)
            self._require_theme(settings.theme)
            self._bind(settings)
        except ConfigError as error:
            hint = f"{error.hint} `l2rtui config check` names every mistake.".strip()
            raise ConfigError(f"{error.message.rstrip('.')}. The settings stay as they are.", hint) from error
        self.ctx.settings, self.ctx.protected = settings, protected_name(settings)
        self.set_class(bool(self.ctx.protected), "protected")
        if settings.theme != before.theme:  # else a theme that was chosen by :theme stays
            self.theme = _theme(settings, self.available_themes)
        self.show_health()
        self.cluster.content.titles.show_keys()
        self.background.say(sentence)

    def action_redraw(self) -> None:
        """Repaint everything, after another program has written to the terminal."""
        from l2rtui.ui.terminal_guard import CLEAN_SCREEN

        if self._driver is not None:
            self._driver.write(CLEAN_SCREEN)
        self.repaint()

    def repaint(self) -> None:
        """Repaint everything, as the terminal may show anything."""
        self.painter.forget()
        self.screen.refresh(layout=True)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Lend the terminal to another program, and take it back however that ends.

        Textual's own leaves it lent after an exception, and the next frame then waits forever for its writer.
        """
        problem: BaseException | None = None
        with super().suspend():
            try:
                yield
            except BaseException as error:  # noqa: BLE001  (raised again when the terminal is ours)
                problem = error
        if problem is not None:
            raise problem

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """Write only the cells that differ from those on the terminal; a dialog once it has a layout."""
        if isinstance(renderable, LayoutUpdate | ChopsUpdate):
            self.painter.take(renderable, self.size)
            if getattr(screen, "is_laid_out", True):
                super()._display(screen, self.painter)  # type: ignore[arg-type]  # not annotated as an update
        else:
            super()._display(screen, renderable)

    # --- the end -----------------------------------------------------------------------------------------------
    def action_leave(self) -> None:
        """Quit; ask first if work of the app is running. Runs continue."""
        doing = self.background.doing
        if not doing:
            self._leave_now(0)
            return
        from l2rtui.ui.dialogs.confirm import ConfirmScreen, Question, lines_of

        if isinstance(self.screen, ConfirmScreen):
            return
        texts = (
            f"Now {sanitize(doing)}.",
            "A launch is taken back. A destroy stays half done; `l2rtui destroy RUN` ends it.",
            "A copy or a push goes on where it was when it is asked for again.",
        )
        question = Question("Leave all the same?", lines_of(texts), yes="Leave", is_grave=True)
        confirm = ConfirmScreen(question, self.ctx.keys)
        self.push_screen(confirm, lambda is_yes: self._leave_now(0) if is_yes else None)

    on_leave_requested = action_leave

    def _leave_now(self, code: int) -> None:
        # Not a Textual worker: stopping the background work would cancel it.
        asyncio.get_running_loop().create_task(self._end(code, LEAVE_PATIENCE_SECONDS), name="leave")

    def _signalled(self, number: signal.Signals) -> None:
        """End within two seconds after a signal: terminal restored, exit code 128 + n."""
        # While a shell or editor uses the terminal, ctrl+c and ctrl+\ are meant for it.
        if self.ctx.is_lent and number in (signal.SIGINT, signal.SIGQUIT):
            return
        code = 128 + number
        from l2rtui.ui.terminal_guard import end_at_once

        # A thread, not a task: the event loop itself may be stuck.
        last_resort = threading.Timer(HARD_END_SECONDS, end_at_once, (code,))
        last_resort.daemon = True
        last_resort.start()
        asyncio.get_running_loop().create_task(self._end(code, SIGNAL_PATIENCE_SECONDS), name="signalled")

    async def _end(self, code: int, patience_seconds: float) -> None:
        await self._close(patience_seconds)
        self.exit(return_code=code)

    async def _close(self, patience_seconds: float) -> None:
        await self.background.stop(patience_seconds)
        # Taken first: on_unmount closes too, and a backend must not be closed twice.
        backend, self.ctx.backend_or_none = self.ctx.backend_or_none, None
        if backend is not None:
            if self.ctx.absence is not None:
                await self.ctx.absence.note()
            await backend.close()

    async def on_unmount(self) -> None:
        """Close the backend also when the app ends in another way."""
        await self._close(SIGNAL_PATIENCE_SECONDS)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _fatal_error(self) -> None:
        """Report a bug without the values of local variables, which may be secrets.

        Textual has no public hook for this: its own report prints all locals.
        """
        _log.exception("unexpected error in the app")
        report = "".join(f"{sanitize(line)}\n" for line in traceback.format_exc().splitlines())
        self._exit_renderables.append(Text(f"l2rtui has a defect and had to end. Runs go on.\n{report}"))
        self._close_messages_no_wait()


def _enable_garbage_collection() -> None:
    """Enable the garbage collection that ``bootstrap`` disabled; objects that exist now are excluded from it."""
    if not gc.isenabled():
        # A full collection over ten thousand pods and full logs takes 0.1 s, in which no key is read. Frozen
        # objects are never visited, and higher thresholds make collections rare.
        gc.freeze()
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        gc.enable()


def _theme(settings: Settings, available: Mapping[str, object]) -> str:
    """Return the theme of the settings or the environment; by default, one that the terminal's encoding can
    show.
    """
    import locale

    theme = settings.theme or os.environ.get("TEXTUAL_THEME", "")
    if theme in available:
        return theme
    encoding = locale.getpreferredencoding(do_setlocale=False).casefold().replace("-", "")
    return DARK.name if encoding in ("utf8", "cp65001") else ASCII.name
