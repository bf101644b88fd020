"""A peer's side of the exchange as a machine: what to say to the learner, what its answers mean.

No sockets, no threads, no clock. A segment that is offered gets a sequence number and is kept until a checkpoint
of the learner holds it; so a learner that was killed gets again what its checkpoint lacks. Nothing that the
learner does or fails to do ends a session except `Refused` and `Done`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from runtime.framing import Arena
from runtime.messages import (
    BUNDLE_BYTES,
    MAX_BUNDLE,
    Ack,
    Bye,
    Done,
    Evaluation,
    Hello,
    Message,
    Ping,
    Refused,
    Ring,
    Ringed,
    Rows,
    Segments,
    Trajectory,
    Welcome,
    Who,
)

APART_BYTES: Final = 64 * 1024
"""What is longer than this is not copied to go with what lies elsewhere."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Periods in seconds, and how much is kept for a learner that comes back.

    `kept_bytes` bounds the segments that are taken but not yet in a checkpoint; beyond it the oldest are let go,
    and the learner counts them as lost if it should need them. Segments that come faster than one in
    `linger_seconds` wait for each other until half of `bundle_bytes` are together, or half of `ring_bundle_bytes`
    where they lie in a ring: of those only the rows go through the socket, and each message wakes both ends.
    """

    hello_seconds: float = 1.0
    ping_seconds: float = 1.0
    silence_seconds: float = 5.0
    kept_bytes: int = 64 * 1024 * 1024
    linger_seconds: float = 0.002
    bundle_bytes: int = BUNDLE_BYTES
    ring_bundle_bytes: int = 2 * BUNDLE_BYTES


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to send, with the arenas of its segments if it has any, in order."""

    message: Message
    arenas: tuple[Arena, ...] = ()


Kept = tuple[int, Trajectory, Arena]
"""Number, row and memory of a segment, until it is in a checkpoint of the learner."""


@dataclass(slots=True)
class Session:
    """The machine. `hello` says who the peer is; its `oldest` is filled in each time it is said."""

    hello: Hello
    habits: Habits = field(default_factory=Habits)
    epoch: int = 0
    """Of the learner that welcomed us; 0 before the first."""
    is_joined: bool = False
    policy_version: int = 0
    """Newest version that the learner told of."""
    max_policy_lag: int = 0
    refused: Refused | None = None
    done: str | None = None
    notes: list[str] = field(default_factory=list)
    """Sentences for the log; the caller takes and clears them."""
    window: int = 0
    """Most segments that may be on their way, as the learner said."""
    slots: int = 0
    """Of the ring that the learner took; 0 while segments go through the socket."""
    _ring: Ring | None = None
    _ring_said: bool = False
    _limit: int = 0
    _acked: int = 0
    _sent: int = 0
    _offered: int = 0
    _kept: deque[Kept] = field(default_factory=deque)
    _kept_bytes: int = 0
    _seen: int = 0
    """Segments that were offered when `outgoing` was last asked."""
    _burst: int = 0
    _seen_at: float = float("-inf")
    _heard: float = float("-inf")
    _hello_at: float = float("-inf")
    _ping_at: float = float("-inf")
    _complained: bool = False

    # --- what the peer's loop asks ---
    @property
    def has_credit(self) -> bool:
        """Whether a further segment could be sent at once, so that collecting it is welcome now."""
        return self.is_joined and self._offered < self._limit

    @property
    def offered(self) -> int:
        """The highest number that a segment has got."""
        return self._offered

    @property
    def unsettled(self) -> int:
        """Segments that the learner has not yet taken."""
        return self._offered - self._acked

    @property
    def patience(self) -> float:
        """Seconds after which `outgoing` should be asked again, even if nothing comes in."""
        waits = self.is_joined and self._sent < min(self._offered, self._limit)
        return self.habits.linger_seconds if waits else self.habits.ping_seconds

    def offer(self, segment: Trajectory, arena: Arena) -> None:
        """Queue a segment; it gets its number here. `arena` must not be written any more."""
        self._offered += 1
        self._kept.append((self._offered, segment, arena))
        self._kept_bytes += arena.nbytes
        while self._kept_bytes > self.habits.kept_bytes and self._kept[0][0] <= self._acked:
            self._kept_bytes -= self._kept.popleft()[2].nbytes

    def outgoing(self, now: float, env_steps: int, env_steps_per_second: float, own_version: int) -> list[Outgoing]:
        """Return what is to be sent now, in order."""
        if self.refused or self.done is not None:
            return []
        if self.is_joined and now - self._heard > self.habits.silence_seconds:
            self.is_joined = False
            self._say("the learner does not answer; waiting for it to come back")
        if not self.is_joined:
            if not self._complained and self._hello_at > float("-inf") and self.epoch == 0:
                self._say(f"waiting for the learner of run {self.hello.run}")
            if now - self._hello_at < self.habits.hello_seconds:
                return []
            self._hello_at = now
            return [Outgoing(self._hello())]
        found: list[Outgoing] = []
        if self._ring is not None and not self._ring_said:
            self._ring_said = True
            found.append(Outgoing(dataclasses.replace(self._ring, epoch=self.epoch)))
        found += self._bundles(may_wait=self._expects_more(now))
        if now - self._ping_at >= self.habits.ping_seconds:
            self._ping_at = now
            found.append(Outgoing(Ping(self.epoch, self._sent, env_steps, own_version, env_steps_per_second)))
        return found

    def unsent(self, message: Message) -> None:
        """Take back a message that the transport could not take: it has no connection just now."""
        if isinstance(message, Segments):
            self._sent = min(self._sent, message.seq - 1)
        elif isinstance(message, Ring):
            self._ring_said = False

    def bring_ring(self, ring: Ring | None) -> None:
        """Offer the learner a ring of `window` slots; None if there is none to be had."""
        self._ring, self._ring_said, self.slots = ring, False, 0

    def farewell(self, reason: str) -> list[Outgoing]:
        """Return the goodbye of a peer that ends by its own will."""
        return [Outgoing(Bye(self.epoch, self._offered, reason))] if self.is_joined else []

    def evaluation(self, evaluation: Evaluation) -> Outgoing | None:
        """Return `evaluation` stamped with the epoch, or None while no learner listens."""
        return Outgoing(dataclasses.replace(evaluation, epoch=self.epoch)) if self.is_joined else None

    # --- what the learner says ---
    def receive(self, now: float, message: Message) -> None:
        """Take one message of the learner."""
        match message:
            case Welcome():
                self._welcome(now, message)
            case Ack() if message.epoch == self.epoch and self.is_joined:
                self._heard = now
                self._limit = max(self._limit, message.limit)
                self.policy_version = max(self.policy_version, message.policy_version)
                self._settle(message.last_seq, message.durable_seq)
            case Ringed() if message.epoch == self.epoch and self._ring and message.nonce == self._ring.nonce:
                self.slots = self._ring.slots if message.is_taken else 0
            case Who():
                self._heard = now
                if self.is_joined:
                    self.is_joined = False
                    self._hello_at = float("-inf")
            case Refused():
                self.refused = message
            case Done():
                self.done = message.reason
            case _:
                pass  # an Ack of an epoch that is over, or a kind that no learner sends

    def _welcome(self, now: float, welcome: Welcome) -> None:
        if self.epoch and welcome.epoch != self.epoch:
            resent = self._offered - welcome.last_seq
            self.notes.append(f"the learner came back as a new process; {resent} segments go to it again")
        elif self._complained or not self.epoch:
            self.notes.append("joined the learner")
        self._complained = False
        self.is_joined = True
        self.epoch = welcome.epoch
        self._heard = now
        self._limit = welcome.limit
        self._acked = 0
        self.window = welcome.window
        self.slots, self._ring_said = 0, False
        self.policy_version = welcome.policy_version
        self.max_policy_lag = welcome.max_policy_lag
        # A learner may know more than we: a number that we have not given out yet must not be used again.
        self._offered = max(self._offered, welcome.last_seq)
        self._settle(welcome.last_seq, welcome.durable_seq)
        self._sent = welcome.last_seq

    # --- bundles ---
    def _expects_more(self, now: float) -> bool:
        """Say whether a message that has room should wait: segments come fast, and more may follow soon.

        More may follow while there is credit, or while acknowledgements are on their way that will bring some.
        """
        if self._offered > self._seen:
            self._burst = self._burst + 1 if now - self._seen_at < self.habits.linger_seconds else 0
            self._seen, self._seen_at = self._offered, now
        has_company = self._offered < self._limit or self._acked < self._sent
        return self._burst > 0 and has_company and now - self._seen_at < self.habits.linger_seconds

    def _bundles(self, *, may_wait: bool) -> list[Outgoing]:
        """Return what may be sent and has not been, as few messages as the bounds on their size allow.

        If `may_wait`, the last of them is kept back until it is half full; to wait for more would let the learner
        run dry.
        In a ring a message ends where that begins anew, and around a segment that does not fill its slot. Elsewhere
        it ends where much would have to be brought together that lies apart: one more message is cheaper.
        """
        found: list[Outgoing] = []
        kept, sent, last = self._kept, self._sent, min(self._offered, self._limit)
        if sent >= last:
            return found
        bundle, size, due, slab, end, is_full = list[Kept](), 0, 0, None, 0, False
        slots, full = self.slots, self.hello.segment_transitions
        most = self.habits.ring_bundle_bytes if slots else self.habits.bundle_bytes
        for place in range(-min(self._offered - sent, len(kept)), 0):  # from the new end, where it is quick
            seq, row, arena = each = kept[place]
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
                if is_apart or seq != due or size + arena.nbytes > most or len(bundle) == MAX_BUNDLE:
                    found.append(self._bundle(bundle))
                    bundle, size = [], 0
            bundle.append(each)
            size += arena.nbytes
            due, slab, end = seq + 1, arena.slab, arena.start + arena.nbytes
        if bundle and may_wait and 2 * size < most and 2 * len(bundle) < MAX_BUNDLE:
            last = bundle[0][0] - 1
        elif bundle:
            found.append(self._bundle(bundle))
        self._sent = last
        return found

    def _bundle(self, bundle: list[Kept]) -> Outgoing:
        numbers, rows, arenas = zip(*bundle, strict=True)
        return Outgoing(Segments(self.epoch, numbers[0], self.slots > 0, Rows(rows)), arenas)

    def _settle(self, last_seq: int, durable_seq: int) -> None:
        self._acked = max(self._acked, min(last_seq, self._offered))
        while self._kept and self._kept[0][0] <= durable_seq:
            self._kept_bytes -= self._kept.popleft()[2].nbytes

    def _hello(self) -> Hello:
        oldest = self._kept[0][0] if self._kept else self._offered + 1
        return dataclasses.replace(self.hello, oldest=oldest)

    def _say(self, sentence: str) -> None:
        """Log that the learner is away, once until it is back."""
        if not self._complained:
            self._complained = True
            self.notes.append(sentence)
