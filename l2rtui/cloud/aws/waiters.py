"""A change of a cluster in progress: its account, the receiver of its progress lines, polling until a state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from l2rtui.cloud.aws.clients import Cloud
from l2rtui.errors import BackendError


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """Period and limit of polling.

    Attributes:
        poll_seconds: Between two polls. limit_seconds: Until a step counts as stuck: EKS takes up to 20 minutes to
            create a control plane, and as long again to remove one.
    """

    poll_seconds: float = 10.0
    limit_seconds: float = 2400.0


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """One line about one step.

    Attributes:
        is_change: Something was created, changed or removed; otherwise it was there already, or is waited for.
    """

    step: str
    text: str
    is_change: bool = False


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """Command that changes a cluster; ``report`` is called with each progress line as soon as it is known."""

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
            find: Returns the resource as its service describes it; None for gone, whose state is empty.
            key: Field with the state, in the service's own word.

        Raises:
            BackendError: the state is one of ``failed_states``, or the time is over.
        """
        end = time.monotonic() + self.waits.limit_seconds
        before = ""
        while (state := str((await find() or {}).get(key, ""))) not in done_states:
            if state in failed_states:
                raise BackendError(f"{step} is {state}.", "See the console of the cloud for the reason.")
            # After the state, not before: a step that has just succeeded must not fail for the time.
            if time.monotonic() > end:
                raise BackendError(
                    f"{step} is still {state or 'not there'} after {self.waits.limit_seconds / 60:g} minutes.",
                    "Run the same command again: it goes on where it is.",
                )
            if state != before:
                self.say(step, state.lower().replace("_", " ") or "not there yet", is_change=False)
                before = state
            await asyncio.sleep(self.waits.poll_seconds)
