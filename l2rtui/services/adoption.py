"""Runs of this machine that lost their supervisor: every command of their owner starts a new one."""

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


async def adopt_lost(backend: Backend, snapshot: ClusterSnapshot) -> dict[str, str]:
    """Start a new supervisor for the user's runs without a live one; return their names with an error or ''.

    Without a supervisor their pods are not restarted, and a process whose output is not read blocks after 1 MiB.
    """
    outcomes: dict[str, str] = {}
    if backend.adopt is None:
        return outcomes
    for run in snapshot.runs.values():
        if run.reason == UNSUPERVISED and run.owner in ("", user_name()):
            try:
                await backend.adopt(run.name)
            except L2RError as error:
                _log.warning("%s: %s", run.name, error)
                outcomes[run.name] = str(error)
            else:
                outcomes[run.name] = ""
    return outcomes


class Adoption:
    """Adopts lost runs while a command runs: at least once, then every ten seconds.

    Args:
        say: Shows a sentence to the user.

    Attributes:
        failures: Errors of runs that could not be adopted in the last two looks, by name.
    """

    def __init__(self, backend: Backend, say: Callable[[str], None]) -> None:
        self._backend, self._say = backend, say
        self.failures: dict[str, str] = {}
        self._first = asyncio.Event()
        self._outcomes: dict[str, str] = {}
        loop = asyncio.get_running_loop()  # may raise RuntimeError: before the coroutine is created
        self._task = loop.create_task(self._work())

    async def first_outcomes(self) -> dict[str, str]:
        """Wait for the first look; return the lost runs that it found, with an error or ''."""
        await self._first.wait()
        return self._outcomes

    async def close(self) -> None:
        """Wait for the first check, then stop."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._first.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        earlier: dict[str, str] = {}
        while True:
            try:
                outcomes = await adopt_lost(self._backend, await self._backend.snapshot())
                errors = {name: error for name, error in outcomes.items() if error}
                # Once may be a disk that is full for a moment. The dict itself stays: others hold it.
                self.failures.clear()
                self.failures |= {name: error for name, error in errors.items() if name in earlier}
                earlier = errors
                if not self._first.is_set():
                    self._outcomes = outcomes
                for name, error in outcomes.items():
                    if not error:
                        self._say(f"{name} had lost its supervisor and has a new one.")
            except L2RError as error:
                _log.warning("%s", error)
            finally:
                self._first.set()
            await asyncio.sleep(_PERIOD_SECONDS)
