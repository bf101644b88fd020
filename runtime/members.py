"""What a learner asks of all its peers, and what it knows of each: the values that its machine works on."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

from runtime.accounts import Account
from runtime.messages import BUNDLE_BYTES, Ack, Hello, Ping, Refusal

LEAST_WINDOW: Final = 4
"""Segments that a worker may have on their way in any case, so that it need not wait for each acknowledgement."""
MOST_WINDOW: Final = 512
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Of one worker's segments on their way, where the pace and the learner's memory allow as many: enough messages for
both ends to have something to do until the other has had its turn on the processor. With half as many a tenth less
comes through, with a quarter a fifth less. A worker's ring of shared memory is as large."""


def window_of(segment_bytes: int) -> int:
    """Return how many segments of a size one worker may have on their way."""
    return max(LEAST_WINDOW, min(MOST_WINDOW, WINDOW_BYTES // segment_bytes))


@dataclass(frozen=True, slots=True)
class Terms:
    """What the learner asks of its peers, and what it grants them.

    `window` is the most segments that one worker may have on their way, where the pace leaves room for so many;
    `inflight_transitions` is the bound over all of them: it is the learner's memory for what has not been stored. A
    peer that says nothing for `lease_seconds` is dropped as gone, one that pings with a standing step counter and
    unused credit for `hang_seconds` as hung. `max_policy_lag` is in policy versions.
    """

    run: str
    run_id: str
    token: str = field(repr=False)
    epoch: int
    environment: str
    layout: str
    actor_floats: int
    transition_bytes: int
    segment_transitions: int
    max_policy_lag: int
    window: int = LEAST_WINDOW
    inflight_transitions: int = 65_536
    lease_seconds: float = 6.0
    hang_seconds: float = 15.0

    @property
    def largest_message(self) -> int:
        """Bytes of the longest arena that a worker may send: one segment, or a bundle of small ones."""
        return max(BUNDLE_BYTES, self.segment_transitions * self.transition_bytes)

    def objection(self, hello: Hello) -> tuple[Refusal, str] | None:
        """Return why `hello` is refused, or None. The token comes first: strangers learn nothing else."""
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()):
            return Refusal.TOKEN, "its token is not this run's; give it the run's token file"
        if (hello.run, hello.run_id) != (self.run, self.run_id):
            ours = f"this is the learner of {self.run} ({self.run_id})"
            theirs = f"it belongs to run {hello.run} ({hello.run_id})"
            return Refusal.RUN, f"{theirs} and {ours}; check its endpoint"
        names = ["environment", "actor_floats", *(["layout"] if hello.segment_transitions else [])]
        for name in names:
            has, needs = getattr(hello, name), getattr(self, name)
            if has != needs:
                return Refusal.SCHEMA, f"its {name} is {has} and the learner's {needs}; give both the same settings"
        if hello.segment_transitions > self.segment_transitions:
            sizes = f"of {hello.segment_transitions} transitions, above the learner's {self.segment_transitions}"
            return Refusal.SCHEMA, f"its segments are {sizes}; give both the same settings"
        return None


@dataclass(slots=True)
class Member:
    """A peer that is connected now. Times are the events' `now`, in seconds."""

    route: bytes
    hello: Hello
    account: Account
    joined: float
    heard: float
    moved: float
    limit: int
    ping: Ping | None = None
    """The latest one."""
    asked_again: float = float("-inf")
    told: Ack | None = None
    told_misfit: int = 0
    """How many of its misfits people have been told of."""
    shadowed: float | None = None
    """Since when an older process of the same pod has been asking to join."""
    waits: bool = False
    """Whether it stands in the queue for credit."""

    @property
    def outstanding(self) -> int:
        """Segments granted and not yet seen."""
        return max(0, self.limit - self.account.last_seq)

    @property
    def is_worker(self) -> bool:
        """Whether it collects; an evaluator does not."""
        return self.hello.segment_transitions > 0
