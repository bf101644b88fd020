"""Channel protocol of Kubernetes websockets: messages that start with a channel number; exit status of exec.

See ``k8s.io/apimachinery/pkg/util/remotecommand`` for the channels and subprotocols.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

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
