"""Listen on this machine's loopback and have each connection carried to a port of a pod, whoever carries it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from l2rtui.errors import BackendError, L2RError

Carry = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Carries one connection until its end; raises L2RError or OSError when it cannot."""
_HOST = "127.0.0.1"


async def forwarded(pod: str, local: int, remote: int, carry: Carry) -> AsyncGenerator[str, None]:
    """Listen until the generator is closed; see ``Inspector.forward`` for what it yields.

    Raises:
        BackendError: the port is taken.
    """
    news: asyncio.Queue[str] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = set()

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await carry(reader, writer)
        except L2RError as error:
            news.put_nowait(f"A connection to port {remote} of {pod} failed: {error.message}")
        except OSError as error:
            news.put_nowait(f"A connection to port {remote} of {pod} was cut: {error}.")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(carried(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        server = await asyncio.start_server(accept, _HOST, local)
    except OSError as error:
        raise BackendError(
            f"Port {local} of this machine cannot be used: {error.strerror or error}.",
            "Choose another, or 0 for any.",
        ) from error
    try:
        chosen = server.sockets[0].getsockname()[1]
        yield f"{_HOST}:{chosen} leads to port {remote} of {pod}"
        while True:
            yield await news.get()
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
