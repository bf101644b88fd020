"""`l2rtui serve` of the demo as a process, for tests that are its browser."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import sys
from urllib.parse import urlsplit

DEADLINE_SECONDS = 90.0


@contextlib.asynccontextmanager
async def serving(*arguments, descriptors=None):
    """A server of the demo, with so many descriptors; yields its process and the address that it printed."""

    def bound():
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "l2rtui", "serve", "--backend", "demo", "--port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=bound,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)
        address = line.decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}", address), await process.stderr.read()
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def origin(address):
    """Return scheme, host and port of an address."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"
