"""Waiting for something in the cloud to come true, with a line whenever it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from l2rtui.errors import BackendError


@dataclass(frozen=True, slots=True)
class Waits:
    """How patient we are.

    Attributes:
        poll_seconds: Between two looks. limit_seconds: until a step counts as stuck: EKS takes up to 20 minutes for
            a control plane, and as long again to take one down.
    """

    poll_seconds: float = 10.0
    limit_seconds: float = 2400.0


@dataclass(frozen=True, slots=True)
class Progress:
    """One line about one step.

    Attributes:
        is_change: Something was made, changed or removed; otherwise it was found as it should be, or is waited for.
    """

    step: str
    text: str
    is_change: bool = False


async def until(
    step: str, look: Callable[[], Awaitable[str]], wanted: tuple[str, ...], broken: tuple[str, ...], waits: Waits
) -> AsyncGenerator[Progress, None]:
    """Look again and again until a state is one of the wanted ones.

    Args:
        look: The state in the service's own word; empty for gone.

    Raises:
        BackendError: the state is one of ``broken``, or the time is over.
    """
    end = time.monotonic() + waits.limit_seconds
    before = ""
    while True:
        state = await look()
        if state in wanted:
            return
        if state in broken:
            raise BackendError(f"{step} is {state}.", "See the console of the cloud for the reason.")
        if time.monotonic() > end:
            raise BackendError(
                f"{step} is still {state or 'not there'} after {waits.limit_seconds / 60:g} minutes.",
                "Run the same command again: it goes on where it is.",
            )
        if state != before:
            yield Progress(step, state.lower().replace("_", " ") or "not there yet")
            before = state
        await asyncio.sleep(waits.poll_seconds)
