"""Carry connections to a port of this machine's loopback to a port of a pod: one websocket for each connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp

from l2rtui.backends.forwarding import forwarded
from l2rtui.backends.kubernetes.channels import FORWARD_PROTOCOLS, frame, messages
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.kinds import KINDS
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import BackendError

_BLOCK = 65_536
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
"""The first message of each channel names the port."""
_LINGER_SECONDS = 20.0
"""How long a pod may be silent after the client has said all."""


async def forward(api: Api, pod: PodView, local: int, remote: int) -> AsyncGenerator[str, None]:
    """Listen on the loopback address until the generator is closed; see ``Inspector.forward``.

    Raises:
        BackendError: the port is taken.
        ApiError: the user may not forward ports.
    """
    query = [("ports", str(remote))]
    path = KINDS["Pod"].path(pod.namespace or api.namespace, pod.name, "portforward")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            socket = await api.websocket(path, query, protocols=FORWARD_PROTOCOLS)
            try:
                await _Carrier(socket).carry(reader, writer)
            finally:
                await socket.close()
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error

    async with aclosing(forwarded(pod.name, local, remote, carry)) as news:
        async for sentence in news:
            yield sentence


class _Carrier:
    """One connection."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._heard = time.monotonic()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry both directions until the pod's side ends; a client that has said all may still listen.

        Raises:
            BackendError: the node says why it cannot reach the port.
        """
        sending = asyncio.create_task(self._send(reader))
        named: set[int] = set()
        try:
            async for data in messages(self._socket):
                self._heard = time.monotonic()
                channel, content = data[0], data[1:]
                if channel not in named and len(content) == _PORT_BYTES:
                    named.add(channel)
                elif channel == _DATA:
                    writer.write(content)
                    await writer.drain()
                elif channel == _ERROR and content:
                    raise BackendError(f"{content.decode('utf-8', 'replace').strip().rstrip('.')}.")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, reader: asyncio.StreamReader) -> None:
        while block := await reader.read(_BLOCK):
            await self._socket.send_bytes(frame(_DATA, block))
        # The pod cannot be told that its peer has ended: it may still answer, or wait for ever.
        await asyncio.sleep(_LINGER_SECONDS)
        while (left := self._heard + _LINGER_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110  (time alone ends it)
            await asyncio.sleep(left)
        await self._socket.close()
