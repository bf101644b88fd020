"""Listener on the loopback address; a backend forwards its connections to a port of a pod."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from l2rtui.errors import BackendError, L2RError

Carry = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Forwards one connection until it ends; raises L2RError or OSError on failure."""
_HOST = "127.0.0.1"
_BLOCK = 1 << 16


def carry_to(address: Callable[[], Awaitable[str]], port: int) -> Carry:
    """Return a function that forwards connections to a TCP port that this machine can reach.

    Args:
        address: Returns the host, called for each connection; raises L2RError if there is none.
    """

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = await address()
        try:
            inner, outer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise BackendError(f"{host}:{port} does not answer ({error.strerror or error}).") from error
        try:
            sending = asyncio.create_task(_pump(reader, outer))
            try:
                await _pump(inner, writer)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            outer.close()

    return carry


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until its end, and pass the end on, so that half-closed connections stay half-closed."""
    while block := await reader.read(_BLOCK):
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def listen_and_carry(pod: str, local: int, remote: int, carry: Carry) -> AsyncGenerator[str, None]:
    """Listen until the generator is closed; yields the sentences of ``Inspector.forward``.

    Raises:
        BackendError: The port is taken.
    """
    sentences: asyncio.Queue[str] = asyncio.Queue()
    tasks: set[asyncio.Task[None]] = set()

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await carry(reader, writer)
        except L2RError as error:
            sentences.put_nowait(f"A connection to port {remote} of {pod} failed: {error.message}")
        except OSError as error:
            sentences.put_nowait(f"A connection to port {remote} of {pod} was cut: {error}.")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    # Not a coroutine: the server would start its own tasks, and nothing could cancel them.
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(carried(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    try:
        server = await asyncio.start_server(accept, _HOST, local)
    except OSError as error:
        sentence = f"Port {local} of this machine cannot be used: {error.strerror or error}."
        raise BackendError(sentence, "Choose another, or 0 for any.") from error
    try:
        # With port 0 only the socket knows the port that the system chose.
        chosen = server.sockets[0].getsockname()[1]
        yield f"{_HOST}:{chosen} leads to port {remote} of {pod}"
        while True:
            yield await sentences.get()
    finally:
        server.close()
        # Closing the server only stops listening; open connections have their own tasks.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
