"""Port-forward from this machine's loopback address to a port of a pod: one websocket for each connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp

from l2rtui.backends.common.port_listener import listen_and_carry
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.websocket import FORWARD_PROTOCOLS, frame, messages
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError

_BLOCK_BYTES = 65_536
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
"""The first message of each channel is the port number, two bytes."""
_LINGER_SECONDS = 20.0
"""Longest silence of a pod after the client has closed its sending side."""


async def forward(
    api: Api, pod: PodView, local: int, remote: int, linger_seconds: float = _LINGER_SECONDS
) -> AsyncGenerator[str, None]:
    """Listen on the loopback address until the generator is closed; see ``backends.base`` for the yielded
    sentences.

    Args:
        local: 0 lets the system choose. linger_seconds: Longest silence of the pod after the client has sent
            everything.

    Raises:
        BackendError: The port is taken.
        ApiError: The user may not forward ports.
    """
    query = [("ports", str(remote))]
    path = KINDS["Pod"].path(pod.namespace or api.namespace, pod.name, "portforward")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await api.websocket(path, query, protocols=FORWARD_PROTOCOLS)
            try:
                await _ForwardedConnection(socket, linger_seconds).carry(reader, writer)
            finally:
                await socket.close()
        except aiohttp.ClientError as error:
            # The listener only handles OSError, as the other backends forward over plain sockets.
            raise ConnectionError(str(error)) from error

    async with aclosing(listen_and_carry(pod.name, local, remote, carry)) as sentences:
        async for sentence in sentences:
            yield sentence


class _ForwardedConnection:
    """One TCP connection over one websocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, linger_seconds: float) -> None:
        self._socket = socket
        self._linger_seconds = linger_seconds
        self._received_at = time.monotonic()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both directions until the pod closes; a client that has sent everything may still receive.

        Raises:
            BackendError: The node cannot reach the port; the sentence is the node's.
        """
        sending = asyncio.create_task(self._send(reader))
        announced: set[int] = set()
        try:
            async for data in messages(self._socket):
                self._received_at = time.monotonic()
                channel, content = data[0], data[1:]
                # Only the first message of a channel is the port number: later ones of two bytes are data.
                if channel not in announced and len(content) == _PORT_BYTES:
                    announced.add(channel)
                elif channel == _DATA:
                    writer.write(content)
                    await writer.drain()
                elif channel == _ERROR and content:
                    raise BackendError(f"{content.decode('utf-8', 'replace').strip().rstrip('.')}.")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, reader: asyncio.StreamReader) -> None:
        while block := await reader.read(_BLOCK_BYTES):
            await self._socket.send_bytes(frame(_DATA, block))
        # The protocol has no half-close: the pod never learns that its peer has finished, so it may answer or wait
        # forever. Only its silence ends the connection.
        ended_at = time.monotonic()
        while (left := max(ended_at, self._received_at) + self._linger_seconds - time.monotonic()) > 0:  # noqa: ASYNC110  (only time ends it)
            await asyncio.sleep(left)
        await self._socket.close()
