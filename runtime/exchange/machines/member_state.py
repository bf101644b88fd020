"""Requirements of a learner on its peers, its state for each peer, and the accounts of their segments.

The accounts say how many segments each worker sent and the outcome of each. They are part of every checkpoint, so
that the counts agree with the stored experience.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from runtime.exchange.protocol.messages import BUNDLE_BYTES, TAIL_LIMIT, Ack, Hello, Ping, RefusalCode

MAX_OPEN_ACCOUNTS: Final = 1024
"""Maximum number of separate accounts; older ones are merged into a sum, so that a checkpoint stays small."""

OWN_ACCOUNT: Final = "learner"
"""Name of the account for transitions that the learner itself collects."""


@dataclass(slots=True)
class Account:
    """Number of segments of one incarnation of one worker, by outcome.

    ``sent = accepted + stale + misfit + lost + missing`` and, of what arrived,
    ``received = accepted + stale + misfit + duplicate + early``. `sent` is the highest sequence number that the
    worker is known to have used. Missing ones are in flight while the worker lives, and died with it otherwise.
    """

    name: str
    last_seq: int = 0
    sent: int = 0
    accepted: int = 0
    stale: int = 0
    misfit: int = 0
    lost: int = 0
    duplicate: int = 0
    early: int = 0
    transitions: int = 0

    @property
    def received(self) -> int:
        """Number of segments that arrived, in this or an earlier epoch."""
        return self.accepted + self.stale + self.misfit + self.duplicate + self.early

    @property
    def missing(self) -> int:
        """Number of segments that were sent but have not arrived."""
        return max(0, self.sent - self.last_seq)

    def raise_sent(self, sent: int) -> None:
        """Record that the worker has used the sequence numbers up to `sent`."""
        self.sent = max(self.sent, sent)

    def lose_before(self, oldest: int) -> None:
        """Count segments as lost that the worker can no longer send: all before `oldest` that never arrived."""
        missing = oldest - 1 - self.last_seq
        if missing > 0:
            self.lost += missing
            self.last_seq += missing
        self.raise_sent(oldest - 1)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all accounts, in segments, with the equations of `Account`; `transitions` are env steps."""

    sent: int
    missing: int
    received: int
    accepted: int
    stale: int
    misfit: int
    lost: int
    duplicate: int
    early: int
    transitions: int


@dataclass(slots=True)
class Accounts:
    """All accounts of a run, by `pod@incarnation`.

    Attributes:
        closed: Sum of the oldest accounts, which are no longer stored separately.
        durable: Last sequence number of each account in a durable checkpoint.
        active: Names of the connected workers' accounts, which stay separate however many they are.
        awaited: Names of those that were connected when the checkpoint was written, likewise.
    """

    by_name: dict[str, Account] = field(default_factory=dict)
    closed: Account = field(default_factory=lambda: Account(""))
    durable: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    awaited: frozenset[str] = frozenset()

    def open(self, pod: str, incarnation: int) -> Account:
        """Return the account of this incarnation, creating it if necessary, and mark it as most recently used."""
        name = f"{pod}@{incarnation}"
        account = self.by_name.pop(name, None) or Account(name)
        self.by_name[name] = (
            account  # at the end: a dict iterates in order of insertion, so the first is the oldest
        )
        while len(self.by_name) > MAX_OPEN_ACCOUNTS + len(self.active) + len(self.awaited):
            oldest = self.by_name.pop(next(iter(self.by_name)))
            if oldest.name in self.active or oldest.name in self.awaited:
                self.by_name[oldest.name] = oldest
                continue
            self.durable.pop(oldest.name, None)
            oldest.lose_before(oldest.sent + 1)  # its worker ended long ago, so missing segments never come
            _add(self.closed, oldest)
        return account

    def settle_own(self, transitions: int) -> None:
        """Count a rollout that the learner itself collected, in an account like the workers' accounts."""
        account = self.open(OWN_ACCOUNT, 0)
        account.last_seq += 1
        account.raise_sent(account.last_seq)
        account.accepted += 1
        account.transitions += transitions

    def durable_seq(self, name: str) -> int:
        """Return the last sequence number of the account that is in a durable checkpoint."""
        return self.durable.get(name, 0)

    def last_seqs(self) -> dict[str, int]:
        """Return the last settled sequence number of each account, by its name."""
        return {name: account.last_seq for name, account in self.by_name.items()}

    @property
    def totals(self) -> Totals:
        """Sums over all accounts of the run, including closed ones."""
        everything, missing = Account(""), 0
        for account in (self.closed, *self.by_name.values()):
            _add(everything, account)
            missing += account.missing
        # Missing is not a field but computed per account: the difference of two sums would let one hide another.
        names = [item.name for item in fields(Totals) if item.name != "missing"]
        return Totals(missing=missing, **{name: getattr(everything, name) for name in names})

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        accounts = [asdict(account) for account in self.by_name.values()]
        return {"accounts": accounts, "closed": asdict(self.closed), "active": sorted(self.active)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Accounts:
        """Return the accounts of a checkpoint, all of them durable. Raises ValueError if it has none."""
        try:
            open_accounts = [Account(**fields_) for fields_ in state["accounts"]]
            closed = Account(**state["closed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of accounts: {error}") from error
        awaited = frozenset(state.get("active", ()))  # earlier versions did not save it
        accounts = cls({account.name: account for account in open_accounts}, closed, awaited=awaited)
        accounts.durable = accounts.last_seqs()
        return accounts


def _add(total: Account, account: Account) -> None:
    for item in fields(Account):
        if item.name not in {"name", "last_seq"}:
            setattr(total, item.name, getattr(total, item.name) + getattr(account, item.name))


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
