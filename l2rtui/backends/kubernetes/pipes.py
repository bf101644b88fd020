"""A command in a container with bytes in and bytes out, as they come: what files are carried through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import aiohttp

from l2rtui.backends.kubernetes import channels
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.errors import BackendError

BLOCK_BYTES: Final = 256 * 1024
_MOST_COMPLAINT = 4096


class CutError(BackendError):
    """The connection ended before the command did; what has come over is whole as far as it goes."""


async def piped(
    api: Api,
    namespace: str,
    pod: str,
    argv: Sequence[str],
    *,
    take: Callable[[bytes], Awaitable[None]] | None = None,
    give: AsyncIterator[bytes] | None = None,
) -> bytes:
    """Run a command that must end well; what it says where nobody takes it.

    Args:
        take: Gets its output, block by block. give: Its input. Servers before 1.29 cannot end it, so the command
            must know how much to read.

    Raises:
        ApiError: the server does not let us in.
        CutError: the connection was cut.
        BackendError: the command failed, with what it complained of.
    """
    query = [("command", word) for word in argv]
    query += [("stdin", "true" if give is not None else "false"), ("stdout", "true"), ("stderr", "true")]
    query += [("tty", "false")]
    socket = await api.websocket(
        KINDS["Pod"].path(namespace, pod, "exec"), query, protocols=channels.EXEC_PROTOCOLS
    )
    said, complaint = bytearray(), bytearray()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(socket.close)
        giving = asyncio.create_task(_give(socket, give)) if give is not None else None
        if giving is not None:
            stack.push_async_callback(_ended, giving)
        async for data in channels.messages(socket):
            if data[0] == channels.STATUS:
                if (code := channels.exit_code(data[1:], argv[0])) != 0:
                    text = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
                    raise BackendError(f"{argv[0]} ended with {code} in the volume's pod: {text or 'no reason'}.")
                return bytes(said)
            if data[0] == channels.STDOUT and take is not None:
                await take(data[1:])
            elif data[0] == channels.STDOUT:
                said += data[1:]
            elif data[0] == channels.STDERR:
                complaint += data[1 : 1 + _MOST_COMPLAINT]
    raise CutError(f"The connection to {pod} was cut.", "Try again: what has come over is kept.")


async def _give(socket: aiohttp.ClientWebSocketResponse, blocks: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # whoever reads says that it was cut
        async for block in blocks:
            await socket.send_bytes(channels.frame(channels.STDIN, block))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
