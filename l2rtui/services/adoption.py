"""Runs of this machine that have lost their supervisor get another: every command of their owner sees to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from l2rtui.backends.base import Backend
from l2rtui.config import user_name
from l2rtui.domain.snapshot import UNSUPERVISED, ClusterSnapshot
from l2rtui.errors import L2RError

_PERIOD_SECONDS: Final = 10.0
_log = logging.getLogger(__name__)


async def adopt_lost(backend: Backend, snapshot: ClusterSnapshot) -> list[str]:
    """Give the user's runs without a living supervisor a new one; return the names of those that have it.

    Without one nothing restarts their pods, and a process whose output nobody reads blocks after 1 MiB.
    """
    adopted: list[str] = []
    if backend.adopt is None:
        return adopted
    for run in snapshot.runs.values():
        if run.reason == UNSUPERVISED and run.owner in ("", user_name()):
            try:
                await backend.adopt(run.name)
            except L2RError as error:
                _log.warning("%s: %s", run.name, error)
            else:
                adopted.append(run.name)
    return adopted


class Adoption:
    """Adopts lost runs beside a command: once in any case, and every ten seconds while it lasts.

    Args:
        say: Shows a sentence to the user.
    """

    def __init__(self, backend: Backend, say: Callable[[str], None]) -> None:
        self._backend, self._say = backend, say
        self._first = asyncio.Event()
        loop = asyncio.get_running_loop()  # raises RuntimeError before there is a coroutine that nobody awaits
        self._task = loop.create_task(self._work())

    async def close(self) -> None:
        """Wait for the first look, and end."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._first.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                for name in await adopt_lost(self._backend, await self._backend.snapshot()):
                    self._say(f"{name} had lost its supervisor and has a new one.")
            except L2RError as error:
                _log.warning("%s", error)
            finally:
                self._first.set()
            await asyncio.sleep(_PERIOD_SECONDS)
