"""Commands beside a pod's process: on the caller's own terminal, or with what they say taken down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from typing import Final

from l2rtui.backends.base import Captured

MOST_BYTES: Final = 16 << 20
"""Of each stream of a captured command; what is more is read and thrown away."""
_BLOCK: Final = 1 << 16


async def attached(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> int:
    """Run a command on our terminal and wait. Ctrl-C is its own affair while it runs."""
    is_main = threading.current_thread() is threading.main_thread()
    # A handler, not SIG_IGN: what is ignored would stay ignored in the command.
    before = signal.signal(signal.SIGINT, lambda *_: None) if is_main else None
    try:
        process = await asyncio.create_subprocess_exec(
            argv[0],
            *argv[1:],
            executable=command,
            env=environ,
            cwd=cwd if os.access(cwd, os.X_OK) else None,
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


async def captured(command: str, argv: Sequence[str], environ: dict[str, str], cwd: str) -> Captured:
    """Run a command without input, in a session of its own, and wait for its end; cancelled, it is killed."""
    process = await asyncio.create_subprocess_exec(
        argv[0],
        *argv[1:],
        executable=command,
        env=environ,
        cwd=cwd if os.access(cwd, os.X_OK) else None,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err, code = await asyncio.gather(_read(process.stdout), _read(process.stderr), process.wait())
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return Captured(code if code >= 0 else 128 - code, out, err)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    found = bytearray()
    while stream is not None and (block := await stream.read(_BLOCK)):
        found += block[: max(0, MOST_BYTES - len(found))]
    return bytes(found)
