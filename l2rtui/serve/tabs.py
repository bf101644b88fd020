"""Apps of browser tabs: an app outlives its connection for a while, so that a reload finds it unchanged.

textual-serve ends the app of a tab with its WebSocket. Here a connection is attached to an app and detached from
it; an app without a connection ends after a grace period.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final

from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

GRACE_SECONDS: Final = 30.0
"""Lifetime of an app without a connection: time for a reload, or for a tunnel that is opened again."""
DRIVER: Final = "l2rtui.ui.web_driver:WebDriver"
_MODE: Final = re.compile(rb"\x1b\[\?(\d+)([hl])")
"""DEC private modes (ECMA-48 SM and RM with the prefix `?`): alternate screen, mouse reports, cursor, paste."""


class _Service(AppService):
    """App process that runs our driver, and closes its connection however it ends."""

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return {**super()._build_environment(width, height), "TEXTUAL_DRIVER": DRIVER}

    async def run(self) -> None:
        """Forward the app's output until it ends."""
        await super().run()
        # The base class closes only when the app announces its exit. A killed app does not, and its page would
        # freeze.
        await self.remote_close()


class TabApp:
    """App of a tab, with or without a connection.

    Attributes:
        service: Process of the app.
        is_over: The app has ended; the tab needs another one.
    """

    def __init__(self, command: str, downloads: DownloadManager) -> None:
        self.service = _Service(
            command,
            write_bytes=self._write_bytes,
            write_str=self._write_str,
            close=self._close,
            download_manager=downloads,
        )
        self.is_over = False
        self._socket: web.WebSocketResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._is_started = False
        self._modes: dict[bytes, bytes] = {}
        self._end: asyncio.Task[None] | None = None

    async def attach(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport | None, width: int, height: int
    ) -> None:
        """Connect the app to a browser's terminal of this size; an earlier connection is cut."""
        # After a network loss the old connection looks open. Closing it would wait for the browser's answer.
        self.cut()
        self._socket, self._transport = socket, transport
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._is_started:
            self._is_started = True
            await self.service.start(width, height)
            return
        # A new terminal has none of the modes that the app set at its start, and none of its cells.
        await self._write_bytes(b"".join(b"\x1b[?%s%s" % mode for mode in self._modes.items()))
        await self.service.set_terminal_size(width, height)
        await self.service.send_meta({"type": "repaint"})

    def detach(self, socket: web.WebSocketResponse, grace_seconds: float) -> None:
        """Note that a connection has ended; the app ends after the grace period unless it gets another."""
        if socket is self._socket:
            self._socket = self._transport = None
            self._end = asyncio.ensure_future(self._end_after(grace_seconds))

    def cut(self) -> None:
        """Cut the connection without waiting for the browser."""
        if self._transport is not None:
            self._transport.abort()

    async def stop(self) -> None:
        """End the app and wait for its end."""
        self.is_over = True
        await self.service.stop()

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.stop()

    async def _write_bytes(self, output: bytes) -> None:
        self._modes.update(_MODE.findall(output))
        if self._socket is not None:
            with contextlib.suppress(ConnectionError):  # the tab has just been closed
                await self._socket.send_bytes(output)

    async def _write_str(self, message: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(ConnectionError):
                await self._socket.send_str(message)

    async def _close(self) -> None:
        self.is_over = True
        if self._socket is not None:
            await self._socket.close()


class Tabs:
    """Apps by the names of their tabs."""

    def __init__(self, command: str, downloads: DownloadManager) -> None:
        self._command = command
        self._downloads = downloads
        self._apps: dict[str, TabApp] = {}

    def app_of(self, name: str) -> TabApp:
        """Return the app of a tab: its existing one, if that is still running."""
        self._apps = {other: app for other, app in self._apps.items() if not app.is_over}
        if name not in self._apps:
            self._apps[name] = TabApp(self._command, self._downloads)
        return self._apps[name]

    async def stop(self) -> None:
        """Cut all connections and end all apps."""
        for app in self._apps.values():
            app.cut()
        await asyncio.gather(*(app.stop() for app in self._apps.values()))
