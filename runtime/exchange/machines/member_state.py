"""Requirements of a learner on its peers, and its state for each peer."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from runtime.exchange.machines.sequence_ledger import Account
from runtime.exchange.protocol.messages import BUNDLE_BYTES, TAIL_LIMIT, Ack, Hello, Ping, RefusalCode

MIN_WINDOW: Final = 4
"""Minimum number of segments that a worker may have in flight, so that it need not wait for each
acknowledgement.
"""
MAX_WINDOW: Final = 512
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of one worker's segments in flight, and the size of its ring; rate limiter and memory may allow
less.

It must keep both ends busy until the other is scheduled again. Measured: half of it costs a tenth of the
throughput, a quarter of it a fifth.
"""

PING_SECONDS: Final = 1.0
"""Interval of a peer's pings while it sends no segments, in a run with few workers."""
PINGS_PER_SECOND: Final = 250
"""Most pings a second that a learner asks for: beyond so many workers each pings less often."""
MOST_PING_SECONDS: Final = 60.0
"""Longest interval of pings."""
RATE_SECONDS: Final = 1.0
"""Shortest time over which the rate of a worker's steps is counted."""


def window_of(segment_bytes: int) -> int:
    """Return how many segments of `segment_bytes` one worker may have in flight."""
    return max(MIN_WINDOW, min(MAX_WINDOW, WINDOW_BYTES // segment_bytes))


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """Requirements that a peer must meet, and the bounds that hold for it.

    Attributes:
        epoch: Epoch of this learner process; larger than the epochs of earlier ones of the run.
        window: Maximum number of segments that one worker may have in flight, if the rate limiter allows.
        inflight_transitions: Limit over all workers: the learner's memory for segments that are not stored yet.
        tail_bytes: Size of one tail row of a segment; 0 if segments have no tail.
        lease_seconds: A peer that is silent for longer is dropped.
        hang_seconds: A worker that pings for longer, with unused credit and an unchanged step counter, is dropped.
        max_policy_lag: In policy versions.
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
    window: int = MIN_WINDOW
    inflight_transitions: int = 65_536
    lease_seconds: float = 6.0
    hang_seconds: float = 15.0
    tail_bytes: int = 0

    @property
    def largest_message(self) -> int:
        """Bytes of the longest arena that a worker may send: one large segment, or several small ones."""
        return max(BUNDLE_BYTES, self.most_bytes(self.segment_transitions))

    def most_bytes(self, transitions: int) -> int:
        """Return the maximum size of a segment with this many transitions."""
        return transitions * (self.transition_bytes + TAIL_LIMIT * self.tail_bytes)

    def has_possible_tails(self, transitions: Sequence[int], tails: Sequence[int]) -> bool:
        """Return true if segments with these numbers of transitions may have these numbers of tail rows."""
        if not self.tail_bytes:
            return not any(tails)
        return all(tail <= TAIL_LIMIT * count for tail, count in zip(tails, transitions, strict=True))

    def objection(self, hello: Hello) -> tuple[RefusalCode, str] | None:
        """Return code and reason for refusing `hello`, or None."""
        # The token comes first: an unauthenticated peer must learn nothing else about the run.
        if not hmac.compare_digest(hello.token.encode(), self.token.encode()):
            return RefusalCode.TOKEN, "its token is not this run's; give it the run's token file"
        if (hello.run, hello.run_id) != (self.run, self.run_id):
            ours = f"this is the learner of {self.run} ({self.run_id})"
            theirs = f"it belongs to run {hello.run} ({hello.run_id})"
            return RefusalCode.RUN, f"{theirs} and {ours}; check its endpoint"
        # An evaluator sends no segments, so their layout does not matter.
        names = ["environment", "actor_floats", *(["layout"] if hello.segment_transitions else [])]
        for name in names:
            has, needs = getattr(hello, name), getattr(self, name)
            if has != needs:
                reason = f"its {name} is {has} and the learner's {needs}; give both the same settings"
                return RefusalCode.SCHEMA, reason
        if hello.segment_transitions > self.segment_transitions:
            sizes = f"of {hello.segment_transitions} transitions, above the learner's {self.segment_transitions}"
            return RefusalCode.SCHEMA, f"its segments are {sizes}; give both the same settings"
        return None


@dataclass(slots=True)
class Member:
    """Connected peer. Times are the events' `now`, in seconds.

    Attributes:
        moved: When its step counter changed, a segment arrived, or it had no credit to use.
        limit: Highest sequence number that it may send.
        env_steps: Steps of its process; between two pings, only those whose segments have arrived.
        policy_version: Newest policy with which it is known to act.
        pinged_steps: Value of `env_steps` in the latest ping; None before the first.
        last_ack: Latest acknowledgement; None if one must be sent even if nothing has changed.
        noted_misfit: Value of the account's `misfit` when it was last logged.
        shadowed: Time since which an older process of the same pod has been trying to join.
        waits: True while it is in the queue for credit.
        ping_seconds: Interval of its pings, unless it is of a version that pings every second.
        paced_for: Number of workers for which that interval was chosen.
    """

    route: bytes
    hello: Hello
    account: Account
    joined: float
    heard: float
    moved: float
    limit: int
    env_steps: int = 0
    env_steps_per_second: float = 0.0
    policy_version: int = 0
    pinged_steps: int | None = None
    rated: tuple[float, int] = (0.0, 0)
    """Time and `env_steps` from which the rate is counted."""
    rejoin_requested: float = float("-inf")
    last_ack: Ack | None = None
    noted_misfit: int = 0
    shadowed: float | None = None
    waits: bool = False
    ping_seconds: float = PING_SECONDS
    paced_for: int = PINGS_PER_SECOND

    def pinged(self, now: float, ping: Ping) -> None:
        """Record the peer's description of itself."""
        self.env_steps = self.pinged_steps = ping.env_steps
        self.env_steps_per_second, self.policy_version = ping.env_steps_per_second, ping.policy_version
        self.rated = now, ping.env_steps

    def collected(self, now: float, transitions: int, policy_version: int) -> None:
        """Note the arrival of segments. A peer that sends some each second sends no pings."""
        self.moved = now
        self.env_steps += transitions
        self.policy_version = max(self.policy_version, policy_version)
        since, env_steps = self.rated
        if now - since >= RATE_SECONDS and now > self.joined:
            self.env_steps_per_second = (self.env_steps - env_steps) / (now - max(since, self.joined))
            self.rated = now, self.env_steps

    @property
    def pause_seconds(self) -> float:
        """Time by which its pings may be further apart than in a run with few workers."""
        return self.ping_seconds - PING_SECONDS

    @property
    def has_acted(self) -> bool:
        """True once the peer has said with which policy it acts."""
        return self.pinged_steps is not None or self.env_steps > 0

    @property
    def outstanding(self) -> int:
        """Number of segments that are granted but have not arrived."""
        return max(0, self.limit - self.account.last_seq)

    @property
    def is_worker(self) -> bool:
        """True for a peer that collects; false for an evaluator."""
        return self.hello.segment_transitions > 0
