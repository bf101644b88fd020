"""A cluster change in progress: its account, the receiver of its progress lines, and polling for a state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from l2rtui.cloud.aws.clients import Cloud
from l2rtui.errors import BackendError


class WaitPolicy(Struct, frozen=True):
    """Interval and limit of polling.

    Attributes:
        poll_seconds: Time between two polls. limit_seconds: Time until a step counts as stuck: EKS takes up to 20
            minutes to create a control plane, and as long again to remove one.
    """

    poll_seconds: float = 10.0
    limit_seconds: float = 2400.0


class ClusterProgress(Struct, frozen=True):
    """One line about one step.

    Attributes:
        is_change: Something was created, changed or removed; otherwise it already existed, or is awaited.
    """

    step: str
    text: str
    is_change: bool = False


class ClusterChange(Struct, frozen=True):
    """Command that changes a cluster; ``report`` is called with each progress line immediately."""

    cloud: Cloud
    report: Callable[[ClusterProgress], object]
    waits: WaitPolicy = WaitPolicy()

    def say(self, step: str, text: str, *, is_change: bool = True) -> None:
        """Report one line about a step."""
        self.report(ClusterProgress(step, text, is_change))

    async def wait_for_state(
        self,
        step: str,
        find: Callable[[], Awaitable[Mapping[str, Any] | None]],
        done_states: tuple[str, ...],
        failed_states: tuple[str, ...] = (),
        *,
        key: str = "status",
    ) -> None:
        """Poll until the state is one of `done_states`; report each new state.

        Args:
            find: Returns the service's description of the resource; None if it is gone, whose state is empty.
            key: Field with the state, as the service names it.

        Raises:
            BackendError: The state is one of ``failed_states``, or the timeout has expired.
        """
        end = time.monotonic() + self.waits.limit_seconds
        before = ""
        while (state := str((await find() or {}).get(key, ""))) not in done_states:
            if state in failed_states:
                raise BackendError(f"{step} is {state}.", "See the console of the cloud for the reason.")
            # After the state, not before: a step that has just succeeded must not fail because of the timeout.
            if time.monotonic() > end:
                raise BackendError(
                    f"{step} is still {state or 'not there'} after {self.waits.limit_seconds / 60:g} minutes.",
                    "Run the same command again: it continues where this one stopped.",
                )
            if state != before:
                self.say(step, state.lower().replace("_", " ") or "not there yet", is_change=False)
                before = state
            await asyncio.sleep(self.waits.poll_seconds)
