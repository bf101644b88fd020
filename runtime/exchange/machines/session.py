"""Peer's side of the exchange as a state machine: messages to send, and handling of the learner's answers.

No sockets, no threads, no clock: times are arguments. A queued segment gets a sequence number and is retained until
a checkpoint of the learner contains it. After a crash the learner therefore receives again the segments that its
checkpoint lacks. Only `Refused` and `Done` end a session, whatever else the learner does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from runtime.exchange.machines.member_state import MOST_PING_SECONDS, PING_SECONDS
from runtime.exchange.protocol import messages
from runtime.exchange.protocol.framing import SegmentArena

APART_BYTES: Final = 64 * 1024
"""Segments beyond this size that are not adjacent in memory go in separate messages: a second message is cheaper
than the copy that joins them.
"""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Periods in seconds, and bounds on memory and on the size of a message.

    `kept_bytes` limits the segments that are acknowledged but not yet in a checkpoint. Beyond it the oldest are
    dropped; if the learner needs them later, it counts them as lost. Segments that come faster than one per
    `linger_seconds` are gathered until a message has half of `bundle_bytes`. With a ring it is half of
    `ring_bundle_bytes`: only the rows go through the socket, and fewer messages wake the two processes less often.
    """

    hello_seconds: float = 1.0
    ping_seconds: float = PING_SECONDS
    silence_seconds: float = 5.0
    kept_bytes: int = 64 * 1024 * 1024
    linger_seconds: float = 0.002
    bundle_bytes: int = messages.BUNDLE_BYTES
    ring_bundle_bytes: int = 2 * messages.BUNDLE_BYTES


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to send, with the arenas of its segments in order."""

    message: messages.Message
    arenas: tuple[SegmentArena, ...] = ()


UnsavedSegment = tuple[int, messages.Trajectory, SegmentArena]
"""Sequence number, row and memory of a segment that may have to be sent again."""


@dataclass(slots=True)
class PeerSession:
    """State machine of one peer.

    Attributes:
        hello: Description of the peer; `oldest` is filled in whenever it is sent.
        epoch: Epoch of the learner that welcomed this peer; 0 before the first.
        policy_version: Newest version that the learner has announced.
        refused: Why the learner permanently refused this peer. done: Why the run has ended. Both are None
            otherwise.
        notes: Sentences for the log; the caller empties the list.
        window: Maximum number of segments in flight, as announced by the learner.
        slots: Size of the ring that the learner has accepted; 0 while segments go through the socket.
        offered: Highest sequence number that was assigned to a segment.
        ping_seconds: Interval of its pings: that of `config`, or what the learner of many workers has asked for.
    """

    hello: messages.Hello
    config: SessionConfig = field(default_factory=SessionConfig)
    epoch: int = 0
    is_joined: bool = False
    policy_version: int = 0
    max_policy_lag: int = 0
    refused: messages.Refused | None = None
    done: str | None = None
    notes: list[str] = field(default_factory=list)
    window: int = 0
    slots: int = 0
    offered: int = 0
    ping_seconds: float = field(init=False)
    _ring: messages.RingOffer | None = None
    _ring_sent: bool = False
    # Sequence numbers, with _acked <= _sent <= offered and _sent <= _limit: acknowledged by the learner, sent in
    # this epoch, assigned to a segment, and the credit limit.
    _limit: int = 0
    _acked: int = 0
    _sent: int = 0
    _unsaved: deque[UnsavedSegment] = field(default_factory=deque)
    _unsaved_bytes: int = 0
    _last_offered: int = 0
    """Value of `offered` at the last call of `outgoing`."""
    _burst: int = 0
    """Consecutive calls of `outgoing` that found a new segment within `linger_seconds` of the previous one."""
    _offered_at: float = float("-inf")
    _heard: float = float("-inf")
    _hello_at: float = float("-inf")
    _ping_at: float = float("-inf")
    _has_complained: bool = False

    def __post_init__(self) -> None:
        self.ping_seconds = self.config.ping_seconds

    # --- for the peer's loop ---
    @property
    def pause_seconds(self) -> float:
        """Time by which the learner's answers may be further apart than in a run with few workers."""
        return self.ping_seconds - self.config.ping_seconds

    @property
    def has_credit(self) -> bool:
        """True if one more segment could be sent immediately, so that it is worth collecting now."""
        return self.is_joined and self.offered < self._limit

    @property
    def unsettled(self) -> int:
        """Number of queued segments that the learner has not acknowledged."""
        return self.offered - self._acked

    @property
    def patience(self) -> float:
        """Seconds after which `outgoing` must be called again, even if nothing has arrived."""
        waits = self.is_joined and self._sent < min(self.offered, self._limit)
        return self.config.linger_seconds if waits else self.config.ping_seconds

    def queue_segment(self, segment: messages.Trajectory, arena: SegmentArena) -> None:
        """Queue a segment and assign its sequence number. `arena` must not be written afterwards."""
        self.offered += 1
        self._unsaved.append((self.offered, segment, arena))
        self._unsaved_bytes += arena.nbytes
        # Only acknowledged segments may be dropped: otherwise a gap could never be filled.
        while self._unsaved_bytes > self.config.kept_bytes and self._unsaved[0][0] <= self._acked:
            self._unsaved_bytes -= self._unsaved.popleft()[2].nbytes

    def outgoing(self, now: float, env_steps: int, env_steps_per_second: float, own_version: int) -> list[Outgoing]:
        """Return the messages to send now, in order."""
        if self.refused or self.done is not None:
            return []
        if self.is_joined and now - self._heard > self.config.silence_seconds + self.pause_seconds:
            self.is_joined = False
            self._complain("the learner does not answer; waiting for it to come back")
        if not self.is_joined:
            if not self._has_complained and self._hello_at > float("-inf") and self.epoch == 0:
                self._complain(f"waiting for the learner of run {self.hello.run}")
            if now - self._hello_at < self.config.hello_seconds:
                return []
            self._hello_at = now
            return [Outgoing(self._hello())]
        outgoing: list[Outgoing] = []
        if self._ring is not None and not self._ring_sent:
            self._ring_sent = True
            outgoing.append(Outgoing(replace(self._ring, epoch=self.epoch)))
        # The ping comes last: its `sent` then includes the segments above, which the learner has seen by then.
        if bundles := self._bundles(may_wait=self._may_wait_for_more(now)):
            outgoing += bundles
            self._ping_at = now  # segments are answered too, and say that this peer makes progress
        if now - self._ping_at >= self.ping_seconds:
            self._ping_at = now
            ping = messages.Ping(self.epoch, self._sent, env_steps, own_version, env_steps_per_second)
            outgoing.append(Outgoing(ping))
        return outgoing

    def reconnected(self) -> None:
        """Ping at once: the learner behind a new connection may not know this peer."""
        self._ping_at = float("-inf")

    def unsent(self, message: messages.Message) -> None:
        """Mark a message as not sent, because the transport has no connection."""
        if isinstance(message, messages.Segments):
            self._sent = min(self._sent, message.seq - 1)
        elif isinstance(message, messages.RingOffer):
            self._ring_sent = False

    def offer_ring(self, ring: messages.RingOffer | None) -> None:
        """Set the ring of `window` slots to offer to the learner; None if this process has none."""
        self._ring, self._ring_sent, self.slots = ring, False, 0

    def farewell(self, reason: str) -> list[Outgoing]:
        """Return the goodbye of a peer that ends on its own; empty if it has not joined."""
        return [Outgoing(messages.Bye(self.epoch, self.offered, reason))] if self.is_joined else []

    def evaluation(self, evaluation: messages.EvaluationReport) -> Outgoing | None:
        """Return `evaluation` with the epoch filled in; None while no learner is connected."""
        return Outgoing(replace(evaluation, epoch=self.epoch)) if self.is_joined else None

    # --- messages of the learner ---
    def receive(self, now: float, message: messages.Message) -> None:
        """Handle one message of the learner."""
        match message:
            case messages.Welcome():
                self._welcome(now, message)
            case messages.Ack() if message.epoch == self.epoch and self.is_joined:
                self._heard = now
                self._limit = max(self._limit, message.limit)
                self.policy_version = max(self.policy_version, message.policy_version)
                self._settle(message.last_seq, message.durable_seq)
            case messages.Pace() if message.epoch == self.epoch:
                self.ping_seconds = min(max(message.ping_seconds, self.config.ping_seconds), MOST_PING_SECONDS)
            case messages.RingAccepted() if (
                message.epoch == self.epoch and self._ring and message.nonce == self._ring.nonce
            ):
                self.slots = self._ring.slots if message.is_taken else 0
            case messages.RejoinRequest():
                self._heard = now
                # A second request while the Hello is in transit must not cause another Hello.
                if self.is_joined:
                    self.is_joined = False
                    self._hello_at = float("-inf")
            case messages.Refused():
                self.refused = message
            case messages.Done():
                self.done = message.reason
            case _:
                pass  # an Ack of an earlier epoch, an answer about an earlier ring, or a kind that no learner sends

    def _welcome(self, now: float, welcome: messages.Welcome) -> None:
        if self.epoch and welcome.epoch != self.epoch:
            resent = self.offered - welcome.last_seq
            self.notes.append(f"the learner came back as a new process; {resent} segments go to it again")
        elif self._has_complained or not self.epoch:
            self.notes.append("joined the learner")
        self._has_complained = False
        self.is_joined = True
        self.epoch = welcome.epoch
        self.ping_seconds = self.config.ping_seconds
        self._heard = now
        # Assigned, not maximised: a learner that resumed an older checkpoint may have accepted fewer segments.
        self._limit = welcome.limit
        self._acked = 0
        self.window = welcome.window
        self.slots, self._ring_sent = 0, False  # the learner unmapped the ring when it forgot this peer
        self.policy_version = welcome.policy_version
        self.max_policy_lag = welcome.max_policy_lag
        # The learner may know higher numbers (from another process with this incarnation): never reuse one.
        self.offered = max(self.offered, welcome.last_seq)
        self._settle(welcome.last_seq, welcome.durable_seq)
        self._sent = welcome.last_seq  # go-back-N: everything after it is sent again

    # --- bundles ---
    def _may_wait_for_more(self, now: float) -> bool:
        """Return true if an incomplete message should wait, because segments come in quick succession.

        More can follow only while there is credit, or while an acknowledgement that brings credit is outstanding.
        Compare Nagle's algorithm (RFC 896).
        """
        if self.offered > self._last_offered:
            self._burst = self._burst + 1 if now - self._offered_at < self.config.linger_seconds else 0
            self._last_offered, self._offered_at = self.offered, now
        may_follow = self.offered < self._limit or self._acked < self._sent
        return self._burst > 0 and may_follow and now - self._offered_at < self.config.linger_seconds

    def _bundles(self, *, may_wait: bool) -> list[Outgoing]:
        """Return the unsent segments within the credit, in as few messages as the limits allow.

        With `may_wait`, the last message is withheld until it is half full; waiting for more would starve the
        learner. With a ring, a message ends where the ring wraps around and around a segment that does not fill its
        slot: the learner reads one contiguous piece. Without one, it ends where large arenas are not adjacent.
        """
        outgoing: list[Outgoing] = []
        unsaved, sent, last = self._unsaved, self._sent, min(self.offered, self._limit)
        if sent >= last:
            return outgoing
        bundle, size, due, slab, end, is_full = list[UnsavedSegment](), 0, 0, None, 0, False
        slots, full = self.slots, self.hello.segment_transitions
        max_bytes = self.config.ring_bundle_bytes if slots else self.config.bundle_bytes
        # Negative indices: a deque is indexed from its nearer end, and unsent segments are at the right end.
        for index in range(-min(self.offered - sent, len(unsaved)), 0):
            seq, row, arena = segment = unsaved[index]
            if seq > last:
                break
            if seq <= sent:
                continue
            was_full, is_full = is_full, row.transitions == full
            if bundle:
                if slots:
                    is_apart = seq % slots == 0 or not (was_full and is_full)
                else:
                    is_apart = size > APART_BYTES and (arena.slab is not slab or arena.start != end)
                if is_apart or seq != due or size + arena.nbytes > max_bytes or len(bundle) == messages.MAX_BUNDLE:
                    outgoing.append(self._bundle(bundle))
                    bundle, size = [], 0
            bundle.append(segment)
            size += arena.nbytes
            due, slab, end = seq + 1, arena.slab, arena.start + arena.nbytes
        # `_sent` stops before a withheld message, so the next call builds it again with newer segments.
        if bundle and may_wait and 2 * size < max_bytes and 2 * len(bundle) < messages.MAX_BUNDLE:
            last = bundle[0][0] - 1
        elif bundle:
            outgoing.append(self._bundle(bundle))
        self._sent = last
        return outgoing

    def _bundle(self, bundle: list[UnsavedSegment]) -> Outgoing:
        numbers, rows, arenas = zip(*bundle, strict=True)
        segments = messages.Segments(self.epoch, numbers[0], self.slots > 0, rows)
        return Outgoing(segments, arenas)

    def _settle(self, last_seq: int, durable_seq: int) -> None:
        self._acked = max(self._acked, min(last_seq, self.offered))
        while self._unsaved and self._unsaved[0][0] <= durable_seq:
            self._unsaved_bytes -= self._unsaved.popleft()[2].nbytes

    def _hello(self) -> messages.Hello:
        oldest = self._unsaved[0][0] if self._unsaved else self.offered + 1
        return replace(self.hello, oldest=oldest)

    def _complain(self, sentence: str) -> None:
        """Log that the learner is absent, once until it is back."""
        if not self._has_complained:
            self._has_complained = True
            self.notes.append(sentence)
