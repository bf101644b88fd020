"""Kubernetes' websockets: frames whose first byte is the number of a channel, and the status that ends an exec."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from l2rtui.errors import EXIT_FAILED, BackendError

EXEC_PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The fifth can end stdin; servers before 1.29 know the fourth alone."""
FORWARD_PROTOCOLS: Final = ("v4.channel.k8s.io",)
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
STATUS: Final = 3
RESIZE: Final = 4
CLOSE: Final = 255

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def frame(channel: int, data: bytes) -> bytes:
    """One message."""
    return bytes((channel,)) + data


async def messages(socket: aiohttp.ClientWebSocketResponse) -> AsyncIterator[bytes]:
    """Messages that are not empty, until the connection ends in whatever way."""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            yield message.data
        elif message.type is aiohttp.WSMsgType.TEXT and message.data:
            yield message.data.encode()


def resize(columns: int, rows: int) -> bytes:
    """Tell the size of the terminal."""
    return frame(RESIZE, json.dumps({"Width": columns, "Height": rows}).encode())


def closing(channel: int) -> bytes:
    """End one channel; the fifth protocol alone knows it."""
    return bytes((CLOSE, channel))


def exit_code(status: bytes, command: str) -> int:
    """Exit code of a command from the Status that comes last.

    Raises:
        BackendError: it was not run at all.
    """
    try:
        parsed: Any = json.loads(status)
        outcome, reason = parsed.get("status"), parsed.get("reason")
        message = str(parsed.get("message") or "")
        causes = (parsed.get("details") or {}).get("causes") or ()
    except (ValueError, AttributeError):
        return EXIT_FAILED
    if outcome == "Success":
        return 0
    if reason == "NonZeroExitCode":
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause.get("message") or EXIT_FAILED)
    if "executable file not found" in message or "no such file or directory" in message:
        raise BackendError(
            f"There is no {command} in the container.", "Name a program that its image has, such as sh."
        )
    raise BackendError(f"{command} could not be run: {message.rstrip('.') or reason or 'no reason was given'}.")
