"""Commands in a pod: on the caller's terminal, or with captured output."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from typing import Any, Final

from l2rtui.domain.log import CommandOutput
from runtime.base.processes import shell_exit_code, signal_process_group

MAX_OUTPUT_BYTES: Final = 16 << 20
"""Limit of each stream of a captured command; the excess is read and dropped, so that the command never blocks."""
_BLOCK: Final = 1 << 16


async def attached(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> int:
    """Run a command on our terminal and wait; meanwhile only the command receives Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    # A handler, not SIG_IGN: an ignored signal would stay ignored in the command.
    before = signal.signal(signal.SIGINT, lambda *_: None) if is_main else None
    try:
        process = await _start(command, argv, environ, cwd)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            # Not the group: it is on our terminal and in our own process group.
            process.kill()
            await process.wait()
            raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return shell_exit_code(code)


async def captured(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> CommandOutput:
    """Run a command without input, in its own session, and wait for its end; cancelling kills it."""
    pipe = asyncio.subprocess.PIPE
    streams = {"stdin": asyncio.subprocess.DEVNULL, "stdout": pipe, "stderr": pipe}
    process = await _start(command, argv, environ, cwd, start_new_session=True, **streams)
    # Both pipes are read concurrently: a command blocks when one of them is full.
    try:
        out, err, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except asyncio.CancelledError:
        # The whole session: if only a shell were killed, its children would keep the pipes open.
        signal_process_group(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return CommandOutput(shell_exit_code(code), out, err)


async def _start(
    command: str, argv: Sequence[str], environ: dict[str, str], cwd: str, **options: Any
) -> asyncio.subprocess.Process:
    folder = cwd if os.access(cwd, os.X_OK) else None
    return await asyncio.create_subprocess_exec(*argv, executable=command, env=environ, cwd=folder, **options)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    output = bytearray()
    while stream is not None and (block := await stream.read(_BLOCK)):
        output += block[: max(0, MAX_OUTPUT_BYTES - len(output))]
    return bytes(output)
