"""Parts of a running app that Textual has no public access to: a new version of it breaks this file alone."""

from __future__ import annotations

from typing import Any

from textual._compositor import Compositor
from textual.app import App
from textual.message_pump import MessagePump
from textual.notifications import Notification
from textual.screen import Screen


def notifications(app: App[Any]) -> list[Notification]:
    """Return the notifications that are shown, oldest first."""
    return list(app._notifications)


def fault(app: App[Any]) -> Exception | None:
    """Return the exception that ends the app."""
    return app._exception


def has_left(app: App[Any]) -> bool:
    return app._exit


def compositor(screen: Screen[Any]) -> Compositor:
    """Return the layout of a screen and its characters."""
    return screen._compositor


def background_screens(app: App[Any]) -> list[Screen[Any]]:
    """Return the screens that are visible behind a dialog."""
    return app._background_screens


def is_busy(pump: MessagePump) -> bool:
    """Return whether messages or calls wait."""
    return bool(pump.message_queue_size or pump._next_callbacks)


def draw_due_frame(screen: Screen[Any]) -> None:
    """Draw what has changed, without waiting for the timer of frames."""
    screen._on_timer_update()
