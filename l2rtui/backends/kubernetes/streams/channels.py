"""Commands in containers (``exec``), attachment to a container's process (``attach``), and forwarded ports.

A command runs on the caller's terminal, captured, or piped for file transfer. One websocket carries stdin, stdout,
stderr and the exit status as channels.

Channel protocol of Kubernetes websockets: messages that start with a channel number; exit status of exec.

See ``k8s.io/apimachinery/pkg/util/remotecommand`` for the channels and subprotocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import aiohttp

from l2rtui.backends.common.port_listener import listen_and_carry
from l2rtui.backends.common.refusals import has_no_input, is_not_running
from l2rtui.backends.common.terminal import forwarded_size, raw_mode, stdin_blocks, write_all
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.api.structs import Container, PodStruct
from l2rtui.domain.log import CommandOutput
from l2rtui.domain.snapshot import PodView
from l2rtui.errors import EXIT_FAILED, BackendError
from runtime.base import bounded_json

EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""v5 can close stdin; servers before 1.29 know v4 only."""
FORWARD_PROTOCOLS: Final = ("v4.channel.k8s.io",)
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
STATUS: Final = 3
RESIZE: Final = 4
CLOSE: Final = 255


def frame(channel: int, data: bytes) -> bytes:
    """Create a message for a channel."""
    return bytes((channel,)) + data


async def messages(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """Yield non-empty messages until the connection ends for any reason."""
    # Empty messages open a channel and carry no data. A broken connection raises nothing: callers see a missing
    # status.
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            yield message.data
        elif message.type is aiohttp.WSMsgType.TEXT and message.data:
            yield message.data.encode()


def resize(columns: int, rows: int) -> bytes:
    """Create the message that sets the size of the terminal."""
    return frame(RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())


def close_frame(channel: int) -> bytes:
    """Create the message that closes a channel; v5 only."""
    return bytes((CLOSE, channel))


def exit_code(status: bytes, command: str) -> int:
    """Return the exit code from the Status object of the last message; BackendError if nothing was started."""
    try:
        parsed: Any = bounded_json.loads(status)
        outcome, reason = parsed.get("status"), parsed.get("reason")
        message = str(parsed.get("message") or "")
        causes = [*((parsed.get("details") or {}).get("causes") or ())]
        codes = [int(cause.get("message") or EXIT_FAILED) for cause in causes if cause.get("reason") == "ExitCode"]
    except (ValueError, AttributeError, TypeError, OverflowError):
        return EXIT_FAILED  # v1 to v3 sent plain text here: the command ended, and nothing more is known
    if outcome == "Success":
        return 0
    if reason == "NonZeroExitCode" and codes:
        return codes[0]
    # Not started: runtimes report it as InternalError with their own sentence (runc's, containerd's).
    if "executable file not found" in message or "no such file or directory" in message:
        raise BackendError(
            f"There is no {command} in the container.", "Name a program that its image has, such as sh."
        )
    raise BackendError(f"{command} could not be run: {message.rstrip('.') or reason or 'no reason was given'}.")


BLOCK_BYTES: Final = 256 * 1024
"""Size of the blocks in which files are piped."""
_MAX_CAPTURED_BYTES = 16 << 20
"""Limit for each stream of a captured command; the excess is dropped."""
_MAX_COMPLAINT_BYTES = 4096
_MAX_PIPED_BYTES = 64 << 20
"""Limit for a piped command's output without ``on_output``: a list of half a million files."""


class CutError(BackendError):
    """The connection ended before the command did; the data received until then is complete and in order."""


async def run(api: Api, pod: PodView, argv: Sequence[str], *, tty: bool | None = None, container: str = "") -> int:
    """Run a command in a pod with our stdin, stdout and stderr, and return its exit code.

    Args:
        tty: Allocate a terminal; None does so if both our stdin and our stdout are terminals.
        container: Empty for the pod's first, or the one that its annotation names.

    Raises:
        ApiError: The server refuses the connection, or the container does not exist.
        BackendError: The command cannot be run, or the connection broke and the command may still run.
    """
    is_tty = sys.stdin.isatty() and sys.stdout.isatty() if tty is None else tty
    namespace = pod.namespace or api.namespace
    async with _session(api, namespace, pod.name, argv, stdin=True, tty=is_tty, container=container) as socket:
        with contextlib.ExitStack() as stack:
            if is_tty:
                stack.enter_context(raw_mode())
                stack.enter_context(forwarded_size(partial(_send_size, socket)))
            async with _in_background(_send_stdin(socket)):
                return await _write_output(socket, argv[0])


async def capture(api: Api, pod: PodView, argv: Sequence[str], *, container: str = "") -> CommandOutput:
    """Run a command in a pod without input, and return its exit code and output.

    Raises:
        ApiError: The server refuses the connection, or the container does not exist.
        BackendError: The command cannot be run, or the connection broke.
    """
    output = {STDOUT: bytearray(), STDERR: bytearray()}
    async with _session(api, pod.namespace or api.namespace, pod.name, argv, container=container) as socket:
        async for data in messages(socket):
            if data[0] == STATUS:
                code = exit_code(data[1:], argv[0])
                return CommandOutput(code, bytes(output[STDOUT]), bytes(output[STDERR]))
            if data[0] in output:
                buffer = output[data[0]]
                buffer += data[1 : 1 + max(0, _MAX_CAPTURED_BYTES - len(buffer))]
    raise _cut_error(argv[0])


async def pipe(
    api: Api,
    namespace: str,
    pod: str,
    argv: Sequence[str],
    *,
    on_output: Callable[[bytes], Awaitable[None]] | None = None,
    stdin: AsyncIterator[bytes] | None = None,
) -> bytes:
    """Run a command that must succeed; without ``on_output``, return its output.

    Args:
        on_output: Called with each block of output.
        stdin: Input of the command. Servers before 1.29 cannot signal its end, so the command must know how many
            bytes to read.

    Raises:
        ApiError: The server refuses the connection.
        CutError: The connection broke.
        BackendError: The command failed; the sentence ends with the last line of its stderr.
    """
    output, complaint = bytearray(), bytearray()
    async with contextlib.AsyncExitStack() as stack:
        socket = await stack.enter_async_context(_session(api, namespace, pod, argv, stdin=stdin is not None))
        if stdin is not None:
            await stack.enter_async_context(_in_background(_send_blocks(socket, stdin)))
        async for data in messages(socket):
            if data[0] == STATUS:
                if (code := exit_code(data[1:], argv[0])) != 0:
                    text = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
                    raise BackendError(f"{argv[0]} ended with {code} in the volume's pod: {text or 'no reason'}.")
                return bytes(output)
            if data[0] == STDOUT and on_output is not None:
                # Awaited before the next message is read: a slow disk here slows the sender down through TCP.
                await on_output(data[1:])
            elif data[0] == STDOUT:
                output += data[1:]
                if len(output) > _MAX_PIPED_BYTES:
                    raise BackendError(
                        f"{argv[0]} writes more than {_MAX_PIPED_BYTES >> 20} MiB in the volume's pod.",
                        "Name a folder below it.",
                    )
            elif data[0] == STDERR:
                complaint += data[1:]
                del complaint[:-_MAX_COMPLAINT_BYTES]  # only its last line is shown
    raise CutError(f"The connection to {pod} was cut.", "Try again: received data is kept.")


@contextlib.asynccontextmanager
async def _session(
    api: Api,
    namespace: str,
    pod: str,
    argv: Sequence[str],
    *,
    stdin: bool = False,
    tty: bool = False,
    container: str = "",
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open the websocket of one command, and close it at the end."""
    query = [("command", argument) for argument in argv]
    # A terminal has one output stream: the kubelet ignores an additional request for stderr.
    query += [("stdin", flag(stdin)), ("stdout", "true"), ("stderr", flag(not tty)), ("tty", flag(tty))]
    query += [("container", container)] if container else []
    path = KINDS["Pod"].path(namespace, pod, "exec")
    socket = await api.websocket(path, query, protocols=EXEC_PROTOCOLS)
    try:
        yield socket
    finally:
        await socket.close()


def flag(value: bool) -> str:
    """Format a query value."""
    return "true" if value else "false"


@contextlib.asynccontextmanager
async def _in_background(sending: Awaitable[None]) -> AsyncIterator[None]:
    """Run a sender until the block ends; its errors are ignored, as the reader sees the same broken connection."""
    task = asyncio.ensure_future(sending)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _cut_error(command: str) -> BackendError:
    return BackendError(
        f"The connection to {command} was lost; whether it still runs is unknown.", "Look at the pod again."
    )


async def _write_output(socket: aiohttp.ClientWebSocketResponse, command: str) -> int:
    """Copy the command's output to ours until its status arrives."""
    outputs = {STDOUT: sys.stdout.fileno(), STDERR: sys.stderr.fileno()}
    async for data in messages(socket):
        if data[0] == STATUS:
            return exit_code(data[1:], command)
        if data[0] in outputs and len(data) > 1:
            # In a thread: our stdout may be a pipe with a slow reader, and pings must still be answered.
            await asyncio.to_thread(write_all, outputs[data[0]], data[1:])
    raise _cut_error(command)


async def _send_blocks(socket: aiohttp.ClientWebSocketResponse, blocks: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # the reader of the socket reports the error
        async for block in blocks:
            await socket.send_bytes(frame(STDIN, block))


async def _send_stdin(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send our stdin until it ends; then close the command's stdin, if the protocol supports that."""
    async with contextlib.aclosing(stdin_blocks()) as blocks:
        async for block in blocks:
            await socket.send_bytes(frame(STDIN, block))
    if socket.protocol == EXEC_PROTOCOLS[0]:
        await socket.send_bytes(close_frame(STDIN))


async def _send_size(socket: aiohttp.ClientWebSocketResponse, columns: int, lines: int) -> None:
    await socket.send_bytes(resize(columns, lines))


class AttachedKubeContainer:
    """Streams of one container; see ``backends.base.AttachedProcess``."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, *, has_terminal: bool) -> None:
        self._socket = socket
        self.has_terminal = has_terminal

    async def output(self) -> AsyncGenerator[tuple[bool, bytes], None]:
        """Yield the output until the container or the connection ends; True marks standard error."""
        async for data in messages(self._socket):
            if data[0] == STATUS:
                return
            if data[0] in (STDOUT, STDERR) and len(data) > 1:
                yield data[0] == STDERR, data[1:]

    async def send(self, data: bytes) -> None:
        """Send input to the process."""
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # the reader of the socket notices the end
            await self._socket.send_bytes(frame(STDIN, data))

    async def end_input(self) -> None:
        """Close the input of the process, if the protocol supports that."""
        if self._socket.protocol == EXEC_PROTOCOLS[0]:
            await self._socket.send_bytes(close_frame(STDIN))

    async def resize(self, columns: int, lines: int) -> None:
        """Set the size of its terminal."""
        await self._socket.send_bytes(resize(columns, lines))


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
    socket = await api.websocket(path, _query(container), protocols=EXEC_PROTOCOLS)
    try:
        yield AttachedKubeContainer(socket, has_terminal=bool(container.tty))
    finally:
        await socket.close()


def _query(container: Container) -> list[tuple[str, str]]:
    # A terminal has one output stream: the kubelet ignores an additional request for stderr.
    flags = (("stdin", True), ("stdout", True), ("stderr", not container.tty), ("tty", bool(container.tty)))
    return [*((name, flag(value)) for name, value in flags), ("container", container.name)]


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
