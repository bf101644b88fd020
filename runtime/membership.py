"""The learner's view of its peers as a machine: events in, instructions out; no sockets, no threads, no clock.

What it guarantees, for every incarnation of every worker:

- every sequence number up to `last_seq` is in exactly one of accepted, stale, misfit or lost;
- every segment that arrived is in exactly one of accepted, stale, misfit, duplicate or early (early ones are
  asked for again, so that a hole never gets past);
- the transitions that may be on their way never exceed what `Terms` and the pace allow.

Credits are absolute: a worker may send up to sequence number `limit`. Whoever is not known in this epoch (the
learner was restarted, or it gave the peer up) hears `Who` and says Hello again.

The work for a segment does not grow with the number of peers: credit is handed out by `runtime.credits`, and
acknowledgements are gathered until the next tick.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from runtime.accounts import Accounts
from runtime.contract import PROTOCOL_VERSION
from runtime.credits import Credits
from runtime.events import (
    Arrived,
    Attach,
    Detach,
    Evaluated,
    Event,
    Finished,
    Garbled,
    Instruction,
    Keep,
    Note,
    Published,
    Saved,
    Send,
    Ticked,
)
from runtime.members import Member, Terms
from runtime.messages import (
    Ack,
    Bye,
    Done,
    Evaluation,
    ForeignVersionError,
    Hello,
    Ping,
    Refusal,
    Refused,
    Ring,
    Ringed,
    Segments,
    Trajectory,
    Welcome,
    Who,
)

LOOK_SECONDS: Final = 0.25
"""Shortest time between two looks at all leases."""
_FromMembers = Segments | Ring | Ping | Bye | Evaluation
"""What only a member may say."""


@dataclass(slots=True)
class Membership:
    """The machine. `accounts` holds what a checkpoint keeps; everything else is rebuilt from Hellos."""

    terms: Terms
    accounts: Accounts = field(default_factory=Accounts)
    policy_version: int = 0
    members: dict[bytes, Member] = field(default_factory=dict)
    garbled: int = 0
    foreign: int = 0
    parted: set[str] = field(default_factory=set)
    """Pods that said goodbye and have not come back."""
    env_steps: int = field(init=False)
    credits: Credits = field(init=False)
    _finished: str | None = None
    _ticked: float | None = None
    _looked: float = float("-inf")
    _workers: int = 0
    _dirty: dict[bytes, None] = field(default_factory=dict)
    """Routes that may have to be told something at the next tick."""

    def __post_init__(self) -> None:
        self.env_steps = self.accounts.totals.transitions
        self.credits = Credits(self.terms)

    @property
    def workers(self) -> int:
        """Connected peers that collect."""
        return self._workers

    @property
    def inflight_transitions(self) -> int:
        """Transitions that workers may send and that have not come."""
        return self.credits.inflight

    @property
    def ceiling(self) -> int:
        """Env steps that the pace allows in all."""
        return self.credits.ceiling

    # --- events ---
    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in order."""
        return list(self._handle(event))

    def _handle(self, event: Event) -> Iterable[Instruction]:
        match event:
            case Arrived():
                return self._arrived(event)
            case Ticked():
                return self._tick(event)
            case Published():
                self.policy_version = event.policy_version
                self._dirty = dict.fromkeys(self.members)
            case Saved():
                self.accounts.durable = dict(event.last_seqs)
                self._dirty = dict.fromkeys(self.members)
            case Garbled():
                self.garbled += 1
                if isinstance(event.error, ForeignVersionError):
                    return [_refused(event.route, Refusal.PROTOCOL, str(event.error))]
            case Finished():
                self._finished = event.reason
                return [Send(each, Done(self.terms.epoch, event.reason)) for each in self.members]
        return []

    def _arrived(self, event: Arrived) -> Iterable[Instruction]:
        message = event.message
        if isinstance(message, Hello):
            return self._hello(event.now, event.route, message)
        if not isinstance(message, _FromMembers):
            self.garbled += 1  # a learner's own kinds coming back
            return []
        member = self.members.get(event.route)
        if member is None or message.epoch != self.terms.epoch:
            self.foreign += 1
            return [] if isinstance(message, Bye) else [Send(event.route, Who(self.terms.epoch))]
        member.heard = event.now
        match message:
            case Segments():
                return self._segments(member, message, event)
            case Ring():
                return [self._ring(member, message)]
            case Ping():
                return self._ping(event.now, member, message)
            case Evaluation():
                return [Evaluated(member.hello.pod, message)]
            case Bye():
                return self._bye(member, message)

    # --- registration ---
    def _hello(self, now: float, route: bytes, hello: Hello) -> Iterator[Instruction]:
        refusal = self.terms.objection(hello)
        if refusal is not None:
            yield _refused(route, *refusal)
            yield Note(f"{hello.role} {hello.pod} was refused: {refusal[1]}")
            return
        twin = next((each for each in self.members.values() if each.hello.pod == hello.pod), None)
        if twin is not None and twin.hello.incarnation > hello.incarnation:
            yield from self._shadow(now, route, twin)
            return
        if twin is not None:
            yield from self._part(twin)
            if twin.hello.incarnation != hello.incarnation:
                reason = f"another process of pod {hello.pod} has taken its place"
                yield _refused(twin.route, Refusal.SUPERSEDED, reason)
        account = self.accounts.open(hello.pod, hello.incarnation)
        account.lose_before(hello.oldest)
        if route in self.members:  # a pod that has changed its name and not its address
            yield from self._part(self.members[route])
        member = Member(route, hello, account, joined=now, heard=now, moved=now, limit=account.last_seq)
        self.members[route] = member
        self.parted.discard(hello.pod)
        self._workers += member.is_worker
        self.credits.queue(member)
        self._grant()
        member.told = self._ack(member)
        yield Send(
            route,
            Welcome(
                epoch=self.terms.epoch,
                last_seq=account.last_seq,
                durable_seq=self.accounts.durable_seq(member.account.name),
                limit=member.limit,
                window=self.terms.window,
                policy_version=self.policy_version,
                max_policy_lag=self.terms.max_policy_lag,
            ),
        )
        if twin is None or twin.hello.incarnation != hello.incarnation:
            yield Note(f"{_who(member)} joined; {self._count()}")
        if self._finished is not None:  # it was welcomed to learn which weights are the last
            yield Send(route, Done(self.terms.epoch, self._finished))

    def _shadow(self, now: float, route: bytes, newer: Member) -> Iterator[Instruction]:
        """An older process of a pod asks. It is refused once it is sure that the newer one is alive beside it.

        Before that it may be the only one: a clock that was set back makes the newest process look old.
        """
        if newer.shadowed is None:
            newer.shadowed = now
        elif now - newer.shadowed > self.terms.lease_seconds:
            yield _refused(route, Refusal.SUPERSEDED, f"a newer process of pod {newer.hello.pod} is connected")

    def _part(self, member: Member) -> Iterator[Instruction]:
        """Forget a member; what it was granted and has not sent is nobody's any more."""
        del self.members[member.route]
        self._workers -= member.is_worker
        self._dirty.pop(member.route, None)
        self.credits.give_back(member, member.outstanding)
        yield Detach(member.route)

    def _bye(self, member: Member, bye: Bye) -> Iterator[Instruction]:
        member.account.claim(bye.sent)
        yield from self._part(member)
        self.parted.add(member.hello.pod)
        yield Send(member.route, self._ack(member))
        yield Note(f"{_who(member)} left: {bye.reason}; {self._count()}")

    def _ring(self, member: Member, ring: Ring) -> Instruction:
        """A ring must have the size that was agreed: one slot for each segment that may be on its way."""
        needed = self.terms.window, member.hello.segment_transitions * self.terms.transition_bytes
        if (ring.slots, ring.slot_bytes) == needed and member.is_worker:
            return Attach(member.route, ring)
        return Send(member.route, Ringed(self.terms.epoch, ring.nonce, is_taken=False))

    # --- segments ---
    def _segments(self, member: Member, message: Segments, event: Arrived) -> Iterator[Instruction]:
        """Book every segment of the message; accepted ones that follow one another are kept together."""
        account, last = member.account, message.seq + len(message.rows) - 1
        transitions = sum(message.rows.columns.transitions)
        fits = event.arena_bytes == self.terms.transition_bytes * transitions
        account.claim(last)
        if fits and not event.spoiled and self._is_welcome(member, message, last):
            self._accept(member, last - account.last_seq, transitions)
            account.last_seq = last
            yield Keep(member.hello.pod, message.seq, message.rows, 0)
        else:
            yield from self._one_by_one(member, message, event, fits=fits)
        member.moved = event.now
        self.credits.queue(member)
        self._dirty[member.route] = None

    def _is_welcome(self, member: Member, message: Segments, last: int) -> bool:
        """Say whether all segments of a message are the next ones, possible and fresh: nearly every message is."""
        columns = message.rows.columns
        return (
            message.seq == member.account.last_seq + 1
            and last <= member.limit
            and 0 < min(columns.transitions) <= max(columns.transitions) <= member.hello.segment_transitions
            and all(map(operator.le, columns.policy_version_min, columns.policy_version_max))
            and self.policy_version - min(columns.policy_version_min) <= self.terms.max_policy_lag
        )

    def _accept(self, member: Member, segments: int, transitions: int) -> None:
        self.credits.give_back(member, segments)
        member.account.accepted += segments
        member.account.transitions += transitions
        self.env_steps += transitions

    def _one_by_one(
        self, member: Member, message: Segments, event: Arrived, *, fits: bool
    ) -> Iterator[Instruction]:
        """Book a message of which some segments are not what a learner wants."""
        account, rows = member.account, message.rows
        run: int | None = None  # the place where a stretch of segments that are kept begins
        start = end = 0  # of that stretch, in bytes of the arena
        for number in range(len(rows)):
            seq, row = message.seq + number, rows[number]
            if seq > account.last_seq + 1 or seq > member.limit:
                account.early += len(rows) - number
                yield from self._again(event.now, member)
                break
            is_new = seq == account.last_seq + 1
            if is_new and self._book(member, row, is_sound=fits and number not in event.spoiled):
                if run is None:
                    run, start = number, end
            else:
                if run is not None:
                    yield Keep(member.hello.pod, message.seq + run, rows.part(run, number), start)
                    run = None
                if not is_new:
                    account.duplicate += 1
            end += row.transitions * self.terms.transition_bytes
        else:
            number = len(rows)
        if run is not None:
            yield Keep(member.hello.pod, message.seq + run, rows.part(run, number), start)
        if account.misfit > member.told_misfit:
            member.told_misfit = account.misfit
            yield Note(
                f"{_who(member)} sent segments that are not what it declared, or not finite; they are not used "
                f"({account.misfit} so far)"
            )

    def _book(self, member: Member, row: Trajectory, *, is_sound: bool) -> bool:
        """Write the next segment of a worker into one column of its account; say whether it is to be kept."""
        account, full = member.account, member.hello.segment_transitions
        account.last_seq += 1
        is_possible = 0 < row.transitions <= full and row.policy_version_min <= row.policy_version_max
        is_fresh = self.policy_version - row.policy_version_min <= self.terms.max_policy_lag
        if is_sound and is_possible and is_fresh:
            self._accept(member, 1, row.transitions)
            return True
        self.credits.give_back(member, 1)
        if is_sound and is_possible:
            account.stale += 1
        else:
            account.misfit += 1
        return False

    def _again(self, now: float, member: Member) -> Iterator[Instruction]:
        """Ask once a second at most: everything behind a hole arrives early too."""
        if now - member.asked_again >= 1.0:
            member.asked_again = now
            yield Send(member.route, Who(self.terms.epoch))

    def _ping(self, now: float, member: Member, ping: Ping) -> Iterator[Instruction]:
        if member.ping is None or ping.env_steps != member.ping.env_steps or not member.outstanding:
            member.moved = now
        member.ping = ping
        member.account.claim(ping.sent)
        if ping.sent > member.account.last_seq:
            yield from self._again(now, member)  # its connection broke and took segments with it
        member.told = None  # a ping is always answered: that is how the peer knows that we live
        self._dirty[member.route] = None

    # --- leases, credits, acknowledgements ---
    def _tick(self, event: Ticked) -> Iterator[Instruction]:
        yield from self._expire(event.now)
        self.credits.ceiling = event.ceiling
        self._grant()
        yield from self._tell()

    def _expire(self, now: float) -> Iterator[Instruction]:
        terms = self.terms
        if self._ticked is not None and now - self._ticked > terms.lease_seconds / 2:
            for member in self.members.values():  # it was the learner that stood still
                member.heard = member.moved = now
        self._ticked = now
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for member in list(self.members.values()):
            silent = now - member.heard > terms.lease_seconds
            hung = member.is_worker and now - member.moved > terms.hang_seconds
            if silent or hung:
                yield from self._part(member)
                why = (
                    f"it said nothing for {terms.lease_seconds:g} s"
                    if silent
                    else f"its steps stood still for {terms.hang_seconds:g} s"
                )
                yield Note(f"{_who(member)} was given up: {why}; {self._count()}")

    def _grant(self) -> None:
        """Hand out credit, unless the run is done; who got some is told at the next tick."""
        if self._finished is None:
            self._dirty.update(dict.fromkeys(self.credits.grant(self.members, self._workers, self.env_steps)))

    def _tell(self) -> Iterator[Instruction]:
        dirty, self._dirty = self._dirty, {}
        for route in dirty:
            member = self.members.get(route)
            if member is not None and (ack := self._ack(member)) != member.told:
                member.told = ack
                yield Send(route, ack)

    def _ack(self, member: Member) -> Ack:
        return Ack(
            epoch=self.terms.epoch,
            last_seq=member.account.last_seq,
            durable_seq=self.accounts.durable_seq(member.account.name),
            limit=member.limit,
            policy_version=self.policy_version,
        )

    def _count(self) -> str:
        return "1 worker connected" if self.workers == 1 else f"{self.workers} workers connected"


def _who(member: Member) -> str:
    return f"{member.hello.role} {member.hello.pod}"


def _refused(route: bytes, code: Refusal, reason: str) -> Send:
    return Send(route, Refused(PROTOCOL_VERSION, code.value, reason))
