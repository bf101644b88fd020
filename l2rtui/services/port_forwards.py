"""Ports that are forwarded now by any process of this user: forwarded, listed, and dropped at their end."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

import msgspec

from l2rtui.backends.base import Inspector
from l2rtui.config import state_dir
from l2rtui.domain.snapshot import PodView
from runtime.base import bounded_json
from runtime.base.atomic_files import try_lock


class PortForward(msgspec.Struct, frozen=True):
    """A port of this machine that is forwarded to a port of a pod.

    Attributes:
        sentence: Both ports and the pod, worded by the backend.
        since: Seconds since the epoch. pid: the process that forwards the connections.
    """

    pod: str
    run: str
    sentence: str
    backend: str
    since: float
    pid: int


async def carry(
    inspector: Inspector, backend: str, pod: PodView, local: int, remote: int
) -> AsyncGenerator[str, None]:
    """Forward a port like ``Inspector.forward``, and list it while it is open."""
    async with aclosing(inspector.forward(pod, local, remote)) as sentences:
        sentence = await anext(sentences, "")
        if not sentence:
            return
        forward = PortForward(pod.name, pod.run, sentence, backend, time.time(), os.getpid())
        with _listed(forward):
            yield sentence
            async for later in sentences:
                yield later


async def open_forwards() -> tuple[PortForward, ...]:
    """Return the ports that are forwarded now, oldest first."""
    return await asyncio.to_thread(_read_all)


def forwards_folder() -> Path:
    """Return the folder with a file for each forward."""
    return state_dir() / "forwards"


@contextmanager
def _listed(forward: PortForward) -> Iterator[None]:
    """List a forward until the block ends; if the disk cannot be written it works without being listed."""
    path = forwards_folder() / f"{forward.pid}-{secrets.token_hex(4)}.json"
    descriptor = -1
    try:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # The kernel releases the lock when this process ends in any way: no entry outlives its port.
            try_lock(descriptor)
            os.write(descriptor, msgspec.json.encode(forward))
        yield
    finally:
        if descriptor >= 0:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _read_all() -> tuple[PortForward, ...]:
    forwards = []
    for path in forwards_folder().glob("*.json"):
        with suppress(OSError, ValueError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    path.unlink(missing_ok=True)  # its process was killed
                else:
                    forwards.append(bounded_json.decode(os.pread(descriptor, 1 << 16, 0), PortForward))
            finally:
                os.close(descriptor)
    return tuple(sorted(forwards, key=lambda forward: forward.since))
