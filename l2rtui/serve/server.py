"""textual-serve's server with a guard, a loopback address and an orderly shutdown.

Its own ``serve()`` binds any address, logs local variables, and prints an app's standard error unchanged; its page
loads a font from another host and takes no key before a click. Here the page is ours (``templates``). The
addresses in it follow the Host header, since the port differs at the far end of a tunnel. Output of the apps is
sanitized before it reaches this terminal.

textual-serve ends the app of a tab with its WebSocket. Here a connection is attached to an app and detached from
it; an app without a connection ends after a grace period, so that a reload finds it unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager
from textual_serve.server import Server, to_int

from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import UsageError
from l2rtui.serve.guard import Guard, QuietLoop, Strangers
from runtime.base import descriptors

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


_log = logging.getLogger(__name__)
_http_log = _log.getChild("http")
"""aiohttp's own logger has no handler: its records would reach stderr, and a stalled reader would block the
server.
"""

LOOPBACK = "127.0.0.1"
_CLOSE_SECONDS = 2.0
"""Time for the apps to end in order; after that they end with this process (see `terminal_guard.end_with`)."""
_BACKLOG: Final = 128
_HEARTBEAT_SECONDS: Final = 15.0
_TEMPLATES: Final = Path(__file__).parent / "templates"
_TAB: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
"""Name that a page gives its tab, a UUID."""


class GuardedServer(Server):
    """The pages, files and WebSocket of textual-serve behind the guard."""

    def __init__(self, command: str, guard: Guard) -> None:
        super().__init__(command, host=LOOPBACK, title="l2rtui", templates_path=_TEMPLATES)
        self._guard = guard
        self._tabs = Tabs(command, self.download_manager)

    async def make_app(self) -> web.Application:
        """Return the web application, with the guard before every path."""
        app: web.Application = await self._make_app()
        app.router.add_get("/ws/{tab}", self.handle_websocket)
        app.router.add_get("/icon.svg", self._icon)
        app.middlewares.append(self._guard.middleware())
        app.on_response_prepare.append(self._guard.add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing, unlike the base class: the caller announces the address."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002  (textual-serve names it)
        """Cut the connections of all tabs and end their apps."""
        await self._tabs.stop()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Serve a connection of a tab, from its start to its end."""
        name = request.match_info.get("tab", "")
        transport = request.transport
        if transport is None or (name and not _TAB.fullmatch(name)):  # disconnected while its cookie was checked
            raise web.HTTPForbidden
        size = (to_int(request.query.get(side, ""), cells) for side, cells in (("width", 80), ("height", 24)))
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_SECONDS)
        await socket.prepare(request)
        # Without a name no later connection could ask for the app, so it ends with its connection.
        app = self._tabs.app_of(name or f"/{id(socket)}")
        await app.attach(socket, transport, *size)
        try:
            await self._process_messages(socket, app.service)
        except (AssertionError, AttributeError, KeyError, IndexError, TypeError, ValueError):
            _log.exception("a page sent an unexpected message")
            await socket.close()
        finally:
            app.detach(socket, GRACE_SECONDS if name else 0.0)
        return socket

    async def _icon(self, request: web.Request) -> web.StreamResponse:  # noqa: ARG002  (aiohttp's handler)
        return web.FileResponse(_TEMPLATES / "icon.svg", headers={"Content-Type": "image/svg+xml"})

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """Return the page, with the addresses by which this browser reaches the server."""
        self.public_url = f"http://{request.host}"  # the base class reads it before its first await
        page: web.StreamResponse = await super().handle_index(request)
        return page


def serve(command: Sequence[str], port: int, announce: Callable[[str], None]) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; return 128 + n.

    Args:
        command: Command of one app; each browser tab gets a separate process.
        port: Port to bind; 0 for any free port.
        announce: Called once with the address, when the server answers.

    Raises:
        UsageError: the port cannot be bound.
    """
    descriptors.raise_limit()
    listener = _bind(port)
    with listener, contextlib.redirect_stdout(_SanitizedStream(sys.stderr)):
        # `exec`: the app is a direct child, without a shell in between that would survive us.
        return asyncio.run(_serve(f"exec {shlex.join(command)}", listener, announce))


async def _serve(command: str, listener: socket.socket, announce: Callable[[str], None]) -> int:
    guard = Guard()
    _http_log.addFilter(_is_ours)
    runner = web.AppRunner(
        await GuardedServer(command, guard).make_app(),
        access_log=None,
        logger=_http_log,
        shutdown_timeout=_CLOSE_SECONDS,
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(QuietLoop(lambda sentence: print(sentence, file=sys.stderr)))
    handlers = runner.server
    assert handlers is not None  # noqa: S101  (after setup)
    with _signals() as stopped:
        listening = await loop.create_server(Strangers(guard, handlers).connection, sock=listener, backlog=_BACKLOG)
        announce(f"http://{LOOPBACK}:{listener.getsockname()[1]}/?token={guard.token}")
        number = await stopped
    listening.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(runner.cleanup(), _CLOSE_SECONDS * 2)
    return 128 + number


def _is_ours(record: logging.LogRecord) -> bool:
    """Return False for records about bytes that are not HTTP, of which any client may send any number."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


@contextlib.contextmanager
def _signals() -> Iterator[asyncio.Future[int]]:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # shutdown has started; a second Ctrl-C must not interrupt it


def _bind(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        sentence = f"Port {port} of this machine cannot be had: {error.strerror}."
        raise UsageError(sentence, "Take another with --port; 0 takes any.") from error
    return listener


class _SanitizedStream(io.TextIOBase):
    """Stream that sanitizes its output: apps may print text from clusters when they end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without terminal control sequences."""
        for line in text.splitlines():
            print(sanitize(line), file=self._stream)
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""
