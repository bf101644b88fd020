"""Attachment to the standard streams of a container's own process (subresource ``attach``).

The same channels as ``exec``, see ``api.websocket``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp

from l2rtui.backends.common.refusals import has_no_input, is_not_running
from l2rtui.backends.kubernetes.api import websocket
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import Container, PodStruct
from l2rtui.backends.kubernetes.streams.exec import flag
from l2rtui.domain.snapshot import PodView
from runtime.base import bounded_json


class AttachedKubeContainer:
    """Streams of one container; see ``backends.base.AttachedProcess``."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, has_terminal: bool) -> None:
        self._socket = socket
        self.has_terminal = has_terminal

    async def output(self) -> AsyncGenerator[tuple[bool, bytes], None]:
        """Yield the output until the container or the connection ends; True marks standard error."""
        async for data in websocket.messages(self._socket):
            if data[0] == websocket.STATUS:
                return
            if data[0] in (websocket.STDOUT, websocket.STDERR) and len(data) > 1:
                yield data[0] == websocket.STDERR, data[1:]

    async def send(self, data: bytes) -> None:
        """Send input to the process."""
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # the reader of the socket notices the end
            await self._socket.send_bytes(websocket.frame(websocket.STDIN, data))

    async def end_input(self) -> None:
        """Close the input of the process, if the protocol supports that."""
        if self._socket.protocol == websocket.EXEC_PROTOCOLS[0]:
            await self._socket.send_bytes(websocket.close_frame(websocket.STDIN))

    async def resize(self, columns: int, lines: int) -> None:
        """Set the size of its terminal."""
        await self._socket.send_bytes(websocket.resize(columns, lines))


@contextlib.asynccontextmanager
async def attached(api: Api, pod: PodView) -> AsyncIterator[AttachedKubeContainer]:
    """Attach to the first container of a running pod that accepts input.

    Raises:
        RefusedError: No container accepts input, or the pod is not running.
        ApiError: The server refuses the connection.
    """
    namespace = pod.namespace or api.namespace
    kind = KINDS["Pod"]
    struct = bounded_json.decode(await api.request("GET", kind.path(namespace, pod.name)), PodStruct)
    if struct.status.phase != "Running":
        raise is_not_running(pod.name)
    container = next((row for row in struct.spec.containers or () if row.stdin), None)
    if container is None:
        raise has_no_input(pod.name)
    path = kind.path(namespace, pod.name, "attach")
    socket = await api.websocket(path, _query(container), protocols=websocket.EXEC_PROTOCOLS)
    try:
        yield AttachedKubeContainer(socket, has_terminal=bool(container.tty))
    finally:
        await socket.close()


def _query(container: Container) -> list[tuple[str, str]]:
    # A terminal has one output stream: the kubelet ignores an additional request for stderr.
    flags = (("stdin", True), ("stdout", True), ("stderr", not container.tty), ("tty", bool(container.tty)))
    return [*((name, flag(value)) for name, value in flags), ("container", container.name)]
