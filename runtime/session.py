"""A peer's side of the exchange as a machine: what to say to the learner, what its answers mean.

No sockets, no threads, no clock. A segment that is offered gets a sequence number and is kept until a checkpoint
of the learner holds it; so a learner that was killed gets again what its checkpoint lacks. Nothing that the
learner does or fails to do ends a session except `Refused` and `Done`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field

from runtime.framing import Buffer
from runtime.messages import Ack, Bye, Done, Evaluation, Hello, Message, Ping, Refused, Trajectory, Welcome, Who


@dataclass(frozen=True, slots=True)
class Habits:
    """Periods in seconds, and how much is kept for a learner that comes back.

    `kept_bytes` bounds the segments that are taken but not yet in a checkpoint; beyond it the oldest are let go,
    and the learner counts them as lost if it should need them.
    """

    hello_seconds: float = 1.0
    ping_seconds: float = 1.0
    silence_seconds: float = 5.0
    kept_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to send, with its arena if it has one."""

    message: Message
    arena: Buffer | None = None


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
    _limit: int = 0
    _acked: int = 0
    _sent: int = 0
    _offered: int = 0
    _kept: deque[tuple[int, Trajectory, Buffer]] = field(default_factory=deque)
    _kept_bytes: int = 0
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
    def unsettled(self) -> int:
        """Segments that the learner has not yet taken."""
        return self._offered - self._acked

    def offer(self, segment: Trajectory, arena: Buffer) -> None:
        """Queue a segment; its `epoch` and `seq` are filled in here. `arena` must not be written any more."""
        self._offered += 1
        self._kept.append((self._offered, segment, arena))
        self._kept_bytes += memoryview(arena).nbytes
        self._forget()

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
        found = [
            Outgoing(dataclasses.replace(segment, epoch=self.epoch, seq=seq), arena)
            for seq, segment, arena in self._kept
            if self._sent < seq <= self._limit
        ]
        self._sent = max(self._sent, min(self._offered, self._limit))
        if now - self._ping_at >= self.habits.ping_seconds:
            self._ping_at = now
            found.append(Outgoing(Ping(self.epoch, self._sent, env_steps, own_version, env_steps_per_second)))
        return found

    def unsent(self, message: Message) -> None:
        """Take back a message that the transport could not take: it has no connection just now."""
        if isinstance(message, Trajectory):
            self._sent = min(self._sent, message.seq - 1)

    def farewell(self, reason: str) -> list[Outgoing]:
        """Return the goodbye of a peer that ends by its own will."""
        return [Outgoing(Bye(self.epoch, reason))] if self.is_joined else []

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
        self.policy_version = welcome.policy_version
        self.max_policy_lag = welcome.max_policy_lag
        # A learner may know more than we: a number that we have not given out yet must not be used again.
        self._offered = max(self._offered, welcome.last_seq)
        self._settle(welcome.last_seq, welcome.durable_seq)
        self._sent = welcome.last_seq

    def _settle(self, last_seq: int, durable_seq: int) -> None:
        self._acked = max(self._acked, min(last_seq, self._offered))
        while self._kept and self._kept[0][0] <= durable_seq:
            self._drop_oldest()

    def _forget(self) -> None:
        while self._kept_bytes > self.habits.kept_bytes and self._kept[0][0] <= self._acked:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, _, arena = self._kept.popleft()
        self._kept_bytes -= memoryview(arena).nbytes

    def _hello(self) -> Hello:
        oldest = self._kept[0][0] if self._kept else self._offered + 1
        return dataclasses.replace(self.hello, oldest=oldest)

    def _say(self, sentence: str) -> None:
        """Log that the learner is away, once until it is back."""
        if not self._complained:
            self._complained = True
            self.notes.append(sentence)
