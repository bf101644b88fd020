"""An app over the in-memory cluster, whose clock moves only when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
from rich.console import RenderableType
from textual._compositor import Compositor
from textual._context import active_app
from textual.app import App
from textual.css.model import RuleSet
from textual.css.parse import parse
from textual.css.tokenize import tokenize_values
from textual.css.tokenizer import Token
from textual.css.types import CSSLocation
from textual.notifications import Notification
from textual.pilot import Pilot

from l2rtui.backends.fake import FakeBackend
from l2rtui.backends.fake.demo_cluster import GIB, DemoCluster
from l2rtui.config import Settings, user_name
from l2rtui.domain.log import LogLine, LogQuery
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import place
from l2rtui.domain.plan import plan_launch
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec, with_seeds
from l2rtui.ui.app import L2RApp
from l2rtui.ui.saved_files import screen_strips
from l2rtui.ui.widgets.prompt_input import PromptInput
from tests.l2rtui.ui import textual_inside
from tests.l2rtui.ui.textual_inside import compositor

DEADLINE_SECONDS = 60.0


@dataclass
class Desk:
    """A running app, the hand on its keys, and the cluster behind it."""

    app: L2RApp
    pilot: Pilot[None]
    backend: FakeBackend

    @property
    def cluster(self):
        return self.app.cluster

    async def press(self, *keys: str) -> None:
        """Press keys once the screen stands still, each when the one before it has done its work."""
        await _drained()
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Let the app work until a condition holds, and what it brought is laid out and drawn."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                missing = f"did not come true in {DEADLINE_SECONDS:g} s: {what or condition}"
                raise AssertionError(f"{missing}\n{self.words()}\n{self.says()}")
            await self.pilot.pause()
            await asyncio.sleep(0.02)
        await _drained()
        _paint(self.app)

    async def pass_time(self, seconds: float, condition: Callable[[], object]) -> None:
        """Move the cluster's clock, and wait for what follows."""
        self.backend.advance(seconds)
        await self.until(condition)

    def says(self) -> list[str]:
        return [notification.message for notification in textual_inside.notifications(self.app)]

    @property
    def field(self) -> PromptInput:
        """The input field of a list of its own, as that of volumes or of the history."""
        return self.app.screen.query_one(PromptInput)

    @property
    def fault(self) -> Exception | None:
        """The exception that ends the app."""
        return textual_inside.fault(self.app)

    @property
    def has_left(self) -> bool:
        return textual_inside.has_left(self.app)

    @property
    def top(self) -> str:
        return type(self.app.screen).__name__

    def words(self) -> str:
        """Everything that the terminal shows now."""
        if compositor(self.app.screen).size != self.app.size:  # new or resized, and not yet laid out
            return ""
        return "\n".join(strip.text for strip in screen_strips(self.app))


class SmallLab(FakeBackend):
    """Two nodes, a run of the user and one of u17, four pods; plain logs of five lines, then one in five seconds.

    It shares the names of the demo cluster. That has logs of records, faults and forty other rows, which cost more
    time in each test than the app itself.
    """

    def __init__(self, *, owner: str) -> None:
        super().__init__(owner=owner, is_empty=True)
        self.populate(_small_contents(owner))

    def _log_lines(self, pod: PodView, query: LogQuery) -> list[LogLine]:
        count = 0 if pod.started is None or query.previous else 5 + int(self._moved // 5)
        text = f"INFO step of {pod.name}, env racing, {'reward 1.25, ' * 16}end"
        lines = [LogLine((pod.started or 0.0) + number, pod.name, text) for number in range(count)]
        return [line for line in lines if query.since is None or line.time > query.since]


def _small_contents(owner: str) -> DemoCluster:
    nodes = {
        name: Node(
            name,
            tuple(Gpu(name, index, f"GPU-{name}-{index}", "NVIDIA A100", 80 * GIB, 4) for index in range(4)),
            cpu_cores=96.0,
            memory_bytes=512 * GIB,
        )
        for name in ("phortx1", "phortx2")
    }
    mine = with_seeds(_spec("racing-sac", SetSpec("w", Role.WORKER, ("true",), replicas=2)), (0,))
    theirs = (_spec("lidar-ppo"),)
    seats = place((*mine, *theirs), ClusterSnapshot(nodes).ledger)
    plans = (
        (plan_launch(mine, seats, nodes, owner=owner, uids=["uid-of-racing"]), 3_600.0),
        (plan_launch(theirs, seats, nodes, owner="u17", uids=["uid-of-lidar"]), 86_400.0),
    )
    return DemoCluster(tuple(nodes.values()), plans)


def _spec(name: str, *sets: SetSpec) -> RunSpec:
    return RunSpec(Kind.LEARNER_WORKERS, name, name, (SetSpec("learner", Role.LEARNER, ("true",)), *sets))


# Each app parses the same style sheets anew, a sixth of the time of its start. Tests share the rules, which no app
# changes.
_tokens: dict[frozenset[tuple[str, str]], dict[str, list[Token]]] = {}
_rules: dict[tuple[object, ...], list[RuleSet]] = {}


def _tokenized_once(variables: dict[str, str]) -> dict[str, list[Token]]:
    key = frozenset(variables.items())
    if key not in _tokens:
        _tokens[key] = tokenize_values(variables)
    return _tokens[key]


def _parsed_once(
    scope: str, css: str, read_from: CSSLocation, *, variable_tokens: dict[str, list[Token]], **options: object
) -> list[RuleSet]:
    key = (scope, css, read_from, id(variable_tokens), *options.items())  # tokens are kept, so their id is theirs
    if key not in _rules:
        _rules[key] = list(parse(scope, css, read_from, variable_tokens=variable_tokens, **options))
    return _rules[key]


async def _drained(_least: float = 0.0, most: float = 1.0) -> None:
    """Wait until every message is handled and drawn.

    Textual's own waits until the process is idle: 20 ms and more, twice for each key, and for threads, too.
    """
    app, end, quiet = active_app.get(), time.monotonic() + most, 0
    while quiet < 5 and time.monotonic() < end:
        await asyncio.sleep(0.001)
        screens = app.screen_stack if app.is_running else []
        widgets = [*screens, *(widget for screen in screens[-1:] for widget in screen.walk_children())]
        is_busy = any(textual_inside.is_busy(pump) for pump in (app, *widgets))
        is_busy = is_busy or not all(widget.is_mounted for widget in widgets)
        quiet = 0 if is_busy else quiet + 1
        if quiet == 1 and screens:
            textual_inside.draw_due_frame(app.screen)  # the frame that is due, which may bring messages


def _no_frame(compositor: Compositor, *, full: bool = False, **options: Any) -> RenderableType | None:
    """Render nothing but pictures; what has changed stays noted for the next frame."""
    return _render_update(compositor, full=True, **options) if full else None


_render_update = Compositor.render_update


def _paint(app: App[Any]) -> None:
    """Render the frame that is due, as the tests of this app do at each state that they wait for."""
    if app.is_running:
        screens = textual_inside.background_screens(app)
        app._display(app.screen, _render_update(compositor(app.screen), screen_stack=screens))


@asynccontextmanager
async def _desk(
    *,
    size: tuple[int, int] = (160, 45),
    demo: bool = False,
    readonly: bool = False,
    backend: FakeBackend | None = None,
    ready: bool = True,
    cancel_seconds: float = 0.0,
    settings: Settings | None = None,
    has_toasts: bool = False,
    has_frames: bool = False,
) -> AsyncIterator[Desk]:
    """Open an app.

    A headless driver shows no frame, and rendering them was most of the time of these tests. Without ``has_frames``
    one is rendered at each state that a test waits for, and at the end.
    """
    backend = backend or (FakeBackend if demo else SmallLab)(owner=user_name())
    settings = settings or Settings(backend="demo", readonly=readonly)
    app = L2RApp(settings, lambda: backend, clock=backend.now)
    app.ctx.cancel_seconds = cancel_seconds
    frames = nullcontext() if has_frames else patch.object(Compositor, "render_update", _no_frame)
    with frames:
        async with app.run_test(size=size, notifications=has_toasts) as pilot:
            one = Desk(app, pilot, backend)
            # One condition, so one frame: drawing three took a fifth of the start.
            await one.until(
                lambda: (
                    app.screen is app.cluster
                    and app.cluster.panes.body.display
                    and app.cluster.health.is_connected
                    and (not ready or len(app.cluster.panes.log_pane.ring))
                ),
                "the home screen with its first data" + " and log lines" * ready,
            )
            yield one
            _paint(app)


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", _drained)
    monkeypatch.setattr("textual.css.stylesheet.tokenize_values", _tokenized_once)
    monkeypatch.setattr("textual.css.stylesheet.parse", _parsed_once)
    monkeypatch.delenv("NO_COLOR", raising=False)
    # A busy machine takes longer for a key than the five seconds of a notification.
    monkeypatch.setattr(Notification, "has_expired", False)
    monkeypatch.setattr("l2rtui.backends.fake.demo_logs.MAX_LINES", 60)  # drawing long logs is not what is tested


@pytest.fixture
def without_frames(monkeypatch):
    """Render pictures only, no frames."""
    monkeypatch.setattr(Compositor, "render_update", _no_frame)


@pytest.fixture
def desk():
    """Open an app: ``async with desk(size=(80, 24)) as one``; over the small lab, or the demo cluster."""
    return _desk
