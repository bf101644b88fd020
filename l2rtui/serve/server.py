"""textual-serve's server with what it lacks: a guard, a loopback address, and an end that ends everything.

Its own ``serve()`` binds what it is told, logs with local variables, and prints what an app wrote to standard error
as it is. Here the page's addresses follow the Host of the request, since at the far end of a tunnel the port is
another one, and what comes from the apps is made harmless before it reaches this terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from aiohttp import web
from textual_serve.server import Server

from l2rtui.domain.sanitize import sanitize
from l2rtui.errors import UsageError
from l2rtui.serve.guard import Guard

LOOPBACK = "127.0.0.1"
_CLOSE_SECONDS = 2.0
"""How long the apps have to end in good order; after that the end of this process is theirs (they are told so)."""


class GuardedServer(Server):
    """The pages, files and WebSocket of textual-serve behind the guard."""

    def __init__(self, command: str, guard: Guard) -> None:
        super().__init__(command, host=LOOPBACK, title="l2rtui")
        self._guard = guard
        self._open: set[asyncio.Transport] = set()

    async def make_app(self) -> web.Application:
        """The web application; every path of it is guarded."""
        app: web.Application = await self._make_app()
        app.middlewares.append(self._guard.middleware())
        app.on_response_prepare.append(self._guard.add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: what is printed is the caller's."""

    async def on_shutdown(self, app: web.Application) -> None:  # noqa: ARG002  (textual-serve names it)
        """Cut the connections of all tabs, so that their apps end: a browser may take ten seconds to agree."""
        for transport in self._open:
            transport.abort()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """One tab, from its beginning to its end."""
        transport = request.transport
        if transport is None:  # it left while we looked at its cookie
            raise web.HTTPForbidden
        self._open.add(transport)
        try:
            answer: web.WebSocketResponse = await super().handle_websocket(request)
        finally:
            self._open.discard(transport)
        return answer

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """The page, with the addresses under which this browser reaches it."""
        self.public_url = f"http://{request.host}"  # read before anything else runs: there is no wait in between
        page: web.StreamResponse = await super().handle_index(request)
        return page


def serve(words: Sequence[str], port: int, announce: Callable[[str], None]) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; give 128 + n.

    Args:
        words: The command of one app; each browser tab gets a process of its own.
        port: 0 for any that is free.
        announce: Gets the address, once, when it answers.

    Raises:
        UsageError: the port cannot be had.
    """
    door = _bind(port)
    with door, contextlib.redirect_stdout(_Harmless(sys.stderr)):
        # `exec`: the app is a child of ours, with no shell between that would survive us.
        return asyncio.run(_serve(f"exec {shlex.join(words)}", door, announce))


async def _serve(command: str, door: socket.socket, announce: Callable[[str], None]) -> int:
    guard = Guard()
    runner = web.AppRunner(
        await GuardedServer(command, guard).make_app(), access_log=None, shutdown_timeout=_CLOSE_SECONDS
    )
    await runner.setup()
    with _signals() as stopped:
        await web.SockSite(runner, door).start()
        announce(f"http://{LOOPBACK}:{door.getsockname()[1]}/?token={guard.token}")
        number = await stopped
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(runner.cleanup(), _CLOSE_SECONDS * 2)
    return 128 + number


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
            signal.signal(number, signal.SIG_IGN)  # the end is on its way; a second Ctrl-C must not cut it short


def _bind(port: int) -> socket.socket:
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((LOOPBACK, port))
    except OSError as error:
        door.close()
        raise UsageError(
            f"Port {port} of this machine cannot be had: {error.strerror}.",
            "Take another with --port; 0 takes any.",
        ) from error
    return door


class _Harmless(io.TextIOBase):
    """Where apps' last words go: this terminal, without what would steer it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what of the text is safe to show."""
        for line in text.splitlines():
            print(sanitize(line), file=self._stream)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""
