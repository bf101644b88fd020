"""An app over the in-memory cluster, whose clock moves only when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from textual.pilot import Pilot

from l2rtui.backends.fake import FakeBackend
from l2rtui.config import Settings, user_name
from l2rtui.ui.app import L2RApp
from l2rtui.ui.saved_files import screen_strips

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
        await self.pilot.press(*keys)

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Let the app work until a condition holds."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                missing = f"did not come true in {DEADLINE_SECONDS:g} s: {what or condition}"
                raise AssertionError(f"{missing}\n{self.words()}\n{self.says()}")
            await self.pilot.pause()
            await asyncio.sleep(0.01)

    async def pass_time(self, seconds: float, condition: Callable[[], object]) -> None:
        """Move the cluster's clock, and wait for what follows."""
        self.backend.advance(seconds)
        await self.until(condition)

    def says(self) -> list[str]:
        return [notification.message for notification in self.app._notifications]

    @property
    def top(self) -> str:
        return type(self.app.screen).__name__

    def words(self) -> str:
        """Everything that the terminal shows now."""
        width, height = self.app.size
        strips = screen_strips(self.app)
        assert len(strips) <= height
        return "\n".join(strip.text[:width] for strip in strips)


@asynccontextmanager
async def _desk(
    *,
    size: tuple[int, int] = (160, 45),
    readonly: bool = False,
    backend: FakeBackend | None = None,
    ready: bool = True,
    cancel_seconds: float = 0.0,
    settings: Settings | None = None,
    has_toasts: bool = False,
) -> AsyncIterator[Desk]:
    backend = backend or FakeBackend(owner=user_name())
    settings = settings or Settings(backend="demo", readonly=readonly)
    app = L2RApp(settings, lambda: backend, clock=backend.now)
    app.ctx.cancel_seconds = cancel_seconds
    async with app.run_test(size=size, notifications=has_toasts) as pilot:
        one = Desk(app, pilot, backend)
        await one.until(lambda: app.screen is app.cluster and "l2rtui" in one.words(), "the home screen")
        await one.until(lambda: app.cluster.health.is_connected, "the first snapshot")
        if ready:
            await one.until(lambda: len(app.cluster.panes.log_pane.ring), "the first log lines")
        yield one


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("l2rtui.backends.fake.demo_logs.MAX_LINES", 60)  # drawing long logs is not what is tested


@pytest.fixture
def desk():
    """Open an app: ``async with desk(size=(80, 24)) as one``."""
    return _desk
