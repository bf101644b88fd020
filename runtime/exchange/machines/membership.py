"""Membership of peers at a learner as a state machine: events in, instructions out; no sockets, threads or clock.

Invariants, for every incarnation of every worker:

- every sequence number up to `last_seq` is counted in exactly one of accepted, stale, misfit or lost;
- every segment that arrived is counted in exactly one of accepted, stale, misfit, duplicate or early (early ones
  are requested again, so that no gap is ever passed over);
- the transitions in flight never exceed what `SessionTerms` and the rate limiter allow.

Credit is absolute: a worker may send up to sequence number `limit`. A peer that is unknown in this epoch, because
the learner restarted or dropped it, receives a `RejoinRequest` and sends Hello again.

The work for one event does not grow with the number of peers. `CreditQueue` grants credit, acknowledgements are
gathered until the next tick, pods are indexed by name, and leases wait in a heap. A new policy or checkpoint is
announced to a bounded number of peers in turn. The others learn of it by acknowledgements that are due anyway. The
more workers there are, the less often each pings.

Flow control: credit for the workers of a learner, granted in equal shares and in turn.

Transitions that are granted but have not arrived never exceed the limits of `SessionTerms` and the rate limiter.
Their sum is updated with each event, and workers that need credit wait in a queue, so the work for one segment does
not grow with the number of workers.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.machines import events
from runtime.exchange.machines.member_state import (
    MIN_WINDOW,
    MOST_PING_SECONDS,
    PING_SECONDS,
    PINGS_PER_SECOND,
    Accounts,
    Member,
    SessionTerms,
)
from runtime.exchange.protocol import messages


@dataclass(slots=True)
class CreditQueue:
    """Queue of workers that need credit, and the number of transitions in flight.

    The limits themselves are in the members, as absolute sequence numbers that only increase within an epoch.

    Attributes:
        ceiling: Total number of env steps that the rate limiter allows.
        inflight: Transitions that are granted but have not arrived, over all members.
    """

    terms: SessionTerms
    ceiling: int = 0
    inflight: int = 0
    _waiting: deque[bytes] = field(default_factory=deque)
    """Routes of the workers with less than a window of credit; the first has waited longest."""

    def queue(self, member: Member) -> None:
        """Add a worker to the queue unless it is already there or has a full window of credit."""
        if not member.waits and member.is_worker and member.outstanding < self.terms.window:
            member.waits = True
            self._waiting.append(member.route)

    def give_back(self, member: Member, segments: int) -> None:
        """Subtract `segments` granted segments that have arrived or never will."""
        self.inflight -= member.hello.segment_transitions * segments

    def grant(self, members: Mapping[bytes, Member], workers: int, env_steps: int) -> Iterator[bytes]:
        """Grant equal shares in turn, within rate limiter and memory; yield the routes that got one.

        A worker with more than half of its window left gets nothing now: small grants cause small messages (silly
        window syndrome, Clark 1982, RFC 813). Scarce credit is granted one segment at a time. No worker gets more
        than half of its share of the remaining rate limit, so that at the end of a batch fast workers do not wait
        for slow ones: guided self-scheduling (Polychronopoulos and Kuck 1987).
        """
        while self._waiting:
            member = members.get(self._waiting[0])
            window = self._window(member, workers, env_steps) if member is not None else 0
            # Entries are not removed from the middle of the deque when a member leaves or is served elsewhere: a
            # stale entry is dropped here, when its turn comes.
            if member is None or not member.waits or 2 * member.outstanding > window:
                if member is not None:
                    member.waits = False
                self._waiting.popleft()
                continue
            size = member.hello.segment_transitions
            room = self.ceiling - env_steps - self.inflight
            if self.inflight == 0 and env_steps < self.ceiling:
                # One segment always fits; otherwise a limiter whose band is shorter than a segment would block
                # forever.
                room = max(room, size)
            room = min(room, max(self.terms.inflight_transitions, size) - self.inflight)
            if room < size:
                return
            share = max(1, room // (size * len(self._waiting)))
            # The limit may be behind `last_seq` if numbers were written off as lost: credit counts from there.
            more = min(share, window - member.outstanding)
            self.inflight += size * more
            member.limit = max(member.limit, member.account.last_seq) + more
            yield member.route
            self._waiting.rotate(-1)

    def _window(self, member: Member, workers: int, env_steps: int) -> int:
        """Return how many segments from one worker may be in flight now.

        Never more than its share of the memory: otherwise a worker that does not use its credit would accumulate
        the others' credit, and leave them one segment at a time.
        """
        size = member.hello.segment_transitions
        memory = max(1, self.terms.inflight_transitions // (workers * size))
        pace = max(MIN_WINDOW, (self.ceiling - env_steps) // (2 * workers * size))
        return min(self.terms.window, memory, pace)


MOST_ANNOUNCED: Final = 128
"""Maximum number of peers to which a new policy or checkpoint is announced. In a larger run the others learn of it
with its next segments or ping, whose answer names it.
"""
_FITS: Final = 0.8, 1.25
"""Share of the workers for which an interval of pings was chosen, within which it stays."""
_MemberMessage = messages.Segments | messages.RingOffer | messages.Ping | messages.Bye | messages.EvaluationReport
"""Messages that only a member may send."""


@dataclass(slots=True)
class Membership:
    """State machine of a learner.

    Attributes:
        accounts: The only part that is saved in checkpoints; everything else is rebuilt from the peers' Hellos.
        members: Connected peers by route; the first is the next to which something is announced.
        malformed: Number of messages that could not be decoded or that peers may not send.
        foreign: Number of messages from routes of non-members, or of another epoch.
        departed: Pods that said goodbye and have not returned.
        workers: Number of connected peers that collect.
        env_steps: Accepted transitions in the history of this run.
    """

    terms: SessionTerms
    accounts: Accounts = field(default_factory=Accounts)
    policy_version: int = 0
    members: OrderedDict[bytes, Member] = field(default_factory=OrderedDict)
    malformed: int = 0
    foreign: int = 0
    departed: set[str] = field(default_factory=set)
    workers: int = 0
    env_steps: int = field(init=False)
    credits: CreditQueue = field(init=False)
    _finished: str | None = None
    _ticked: float | None = None
    _by_pod: dict[str, Member] = field(default_factory=dict)
    _leases: list[tuple[float, int, Member]] = field(default_factory=list)
    """Heap with an entry for each member: a time at which its lease may have ended, and a number that breaks ties.
    An entry may be out of date: the member may have been heard since, or have left.
    """
    _serials: Iterator[int] = field(default_factory=itertools.count)
    _dirty: dict[bytes, None] = field(default_factory=dict)
    """Routes that may need an acknowledgement at the next tick; a dict because it is an ordered set."""

    def __post_init__(self) -> None:
        self.env_steps = self.accounts.totals.transitions
        self.credits = CreditQueue(self.terms)

    # --- events ---
    def handle(self, event: events.Event) -> list[events.Instruction]:
        """Handle one event; return the resulting instructions, in order."""
        return list(self._handle(event))

    def _handle(self, event: events.Event) -> Iterable[events.Instruction]:
        match event:
            case events.Arrived():
                return self._arrived(event)
            case events.Ticked():
                return self._tick(event)
            case events.Published():
                self.policy_version = event.policy_version
                self._announce()
            case events.Saved():
                self.accounts.durable = dict(event.last_seqs)
                self._announce()
            case events.Collected():
                self.accounts.settle_own(event.transitions)
                self.env_steps += event.transitions
            case events.MalformedMessage():
                self.malformed += 1
                if isinstance(event.error, messages.ForeignVersionError):
                    return [_refused(event.route, messages.RefusalCode.PROTOCOL, str(event.error))]
            case events.Finished():
                return self._finish(event.reason)
        return []

    def _arrived(self, event: events.Arrived) -> Iterable[events.Instruction]:
        message = event.message
        if isinstance(message, messages.Hello):
            return self._hello(event.now, event.route, message)
        if not isinstance(message, _MemberMessage):
            self.malformed += 1  # a kind that only learners send, or one of the model socket
            return []
        member = self.members.get(event.route)
        if member is None or message.epoch != self.terms.epoch:
            self.foreign += 1
            # A goodbye gets no answer: a closing peer would join again.
            return (
                []
                if isinstance(message, messages.Bye)
                else [events.Send(event.route, messages.RejoinRequest(self.terms.epoch))]
            )
        member.heard = event.now
        match message:
            case messages.Segments():
                return self._segments(member, message, event)
            case messages.RingOffer():
                return [self._ring(member, message)]
            case messages.Ping():
                return self._ping(event.now, member, message)
            case messages.EvaluationReport():
                return [events.Evaluated(member.hello.pod, message)]
            case messages.Bye():
                return self._bye(member, message)

    # --- registration ---
    def _hello(self, now: float, route: bytes, hello: messages.Hello) -> Iterator[events.Instruction]:
        refusal = self.terms.objection(hello)
        if refusal is not None:
            yield _refused(route, *refusal)
            yield events.Note(f"{hello.role} {hello.pod} was refused: {refusal[1]}")
            return
        twin = self._by_pod.get(hello.pod)
        if twin is not None and twin.hello.incarnation > hello.incarnation:
            yield from self._shadow(now, route, twin)
            return
        if twin is not None:
            yield from self._drop_member(twin)
            if twin.hello.incarnation != hello.incarnation:
                reason = f"another process of pod {hello.pod} has taken its place"
                yield _refused(twin.route, messages.RefusalCode.SUPERSEDED, reason)
        account = self.accounts.open(hello.pod, hello.incarnation)
        account.lose_before(hello.oldest)  # before the limit below is derived from `last_seq`
        if route in self.members:  # the same routing id with another pod name
            yield from self._drop_member(self.members[route])
        member = Member(route, hello, account, joined=now, heard=now, moved=now, limit=account.last_seq)
        self.members[route] = self._by_pod[hello.pod] = member
        self.accounts.active.add(account.name)
        self._watch_lease(member)
        self.departed.discard(hello.pod)
        self.workers += member.is_worker
        self.credits.queue(member)
        self._grant()
        member.last_ack = self._ack(member)  # the Welcome contains the same, so no Ack has to follow it
        yield events.Send(
            route,
            messages.Welcome(
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
            yield events.Note(f"{_label(member)} joined; {self._count()}")
        # A peer that asks after the end is welcomed first: it needs the version of the last weights to fetch them.
        if self._finished is not None:
            yield events.Send(route, messages.Done(self.terms.epoch, self._finished))

    def _shadow(self, now: float, route: bytes, newer: Member) -> Iterator[events.Instruction]:
        """Refuse an older process of a pod once the newer one has outlived a lease while both tried to be
        connected.

        Before that the older-looking process may be the only one: incarnations are times of the pod's clock, and
        after the clock was set back the newest process looks old.
        """
        if newer.shadowed is None:
            newer.shadowed = now
        elif now - newer.shadowed > self.terms.lease_seconds:
            reason = f"a newer process of pod {newer.hello.pod} is connected"
            yield _refused(route, messages.RefusalCode.SUPERSEDED, reason)

    def _drop_member(self, member: Member) -> Iterator[events.Instruction]:
        """Forget a member and return its unused credit to the others."""
        del self.members[member.route], self._by_pod[member.hello.pod]
        self.accounts.active.discard(member.account.name)
        self.workers -= member.is_worker
        self._dirty.pop(member.route, None)
        self.credits.give_back(member, member.outstanding)
        yield events.Detach(member.route)

    def _bye(self, member: Member, bye: messages.Bye) -> Iterator[events.Instruction]:
        member.account.raise_sent(bye.sent)
        yield from self._drop_member(member)
        self.departed.add(member.hello.pod)
        yield events.Send(member.route, self._ack(member))
        yield events.Note(f"{_label(member)} left: {bye.reason}; {self._count()}")

    def _ring(self, member: Member, ring: messages.RingOffer) -> events.Instruction:
        """Return the answer to a ring offer. The ring must have one slot of full size for each segment of the
        window.
        """
        needed = self.terms.window, self.terms.most_bytes(member.hello.segment_transitions)
        if (ring.slots, ring.slot_bytes) == needed and member.is_worker:
            return events.Attach(member.route, ring)
        return events.Send(member.route, messages.RingAccepted(self.terms.epoch, ring.nonce, is_taken=False))

    # --- segments ---
    def _segments(
        self, member: Member, message: messages.Segments, event: events.Arrived
    ) -> Iterator[events.Instruction]:
        """Process every segment of a message; adjacent accepted ones are stored by one instruction."""
        account, last = member.account, message.seq + len(message.rows) - 1
        before = account.transitions
        columns = message.table.columns
        transitions = sum(columns.transitions)
        expected = self.terms.transition_bytes * transitions + self.terms.tail_bytes * sum(columns.tail)
        fits = event.arena_bytes == expected
        account.raise_sent(last)
        # Fast path: nearly every message is accepted as a whole, so its segments are not handled one by one.
        if fits and not event.non_finite and self._is_acceptable(member, message, last):
            self._accept(member, last - account.last_seq, transitions)
            account.last_seq = last
            yield events.Keep(member.hello.pod, message.seq, message.table, 0)
        else:
            member.last_ack = None  # answered even if nothing is settled: it replaces a ping
            yield from self._settle_each(member, message, event, fits=fits)
        member.collected(event.now, account.transitions - before, columns.policy_version_max[-1])
        self.credits.queue(member)
        self._dirty[member.route] = None

    def _is_acceptable(self, member: Member, message: messages.Segments, last: int) -> bool:
        """Return true if all segments of a message are in sequence, within the credit, well-formed and fresh."""
        columns = message.table.columns
        return (
            message.seq == member.account.last_seq + 1
            and last <= member.limit
            and 0 < min(columns.transitions) <= max(columns.transitions) <= member.hello.segment_transitions
            and all(map(operator.le, columns.policy_version_min, columns.policy_version_max))
            and self.terms.has_possible_tails(columns.transitions, columns.tail)
            and self.policy_version - min(columns.policy_version_min) <= self.terms.max_policy_lag
        )

    def _accept(self, member: Member, segments: int, transitions: int) -> None:
        self.credits.give_back(member, segments)
        member.account.accepted += segments
        member.account.transitions += transitions
        self.env_steps += transitions

    def _settle_each(
        self, member: Member, message: messages.Segments, event: events.Arrived, *, fits: bool
    ) -> Iterator[events.Instruction]:
        """Process a message of which some segments are not accepted."""
        account, rows = member.account, message.table
        run: int | None = None  # index of the first segment of the current series of accepted ones
        for number in range(len(rows)):
            seq, row = message.seq + number, rows[number]
            if seq > account.last_seq + 1 or seq > member.limit:
                # A gap, or more than was granted: later segments are not used, and all of them come again.
                account.early += len(rows) - number
                yield from self._request_rejoin(event.now, member)
                break
            is_new = seq == account.last_seq + 1
            if is_new and self._settle(member, row, is_sound=fits and number not in event.non_finite):
                run = number if run is None else run
            else:
                if run is not None:
                    yield events.Keep(member.hello.pod, message.seq + run, rows.part(run, number), run)
                    run = None
                if not is_new:
                    account.duplicate += 1
        else:
            number = len(rows)
        if run is not None:
            yield events.Keep(member.hello.pod, message.seq + run, rows.part(run, number), run)
        if account.misfit > member.noted_misfit:
            member.noted_misfit = account.misfit
            yield events.Note(
                f"{_label(member)} sent segments that are not finite or not as declared; they are not used "
                f"({account.misfit} so far)"
            )

    def _settle(self, member: Member, row: messages.Trajectory, *, is_sound: bool) -> bool:
        """Count the next segment of a worker under its outcome; return true if it should be stored."""
        account, full = member.account, member.hello.segment_transitions
        account.last_seq += 1
        is_possible = (
            0 < row.transitions <= full
            and row.policy_version_min <= row.policy_version_max
            and self.terms.has_possible_tails((row.transitions,), (row.tail,))
        )
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

    def _request_rejoin(self, now: float, member: Member) -> Iterator[events.Instruction]:
        """Request missing segments, at most once per second: every message after a gap would cause a request."""
        if now - member.rejoin_requested >= 1.0:
            member.rejoin_requested = now
            yield events.Send(member.route, messages.RejoinRequest(self.terms.epoch))

    def _ping(self, now: float, member: Member, ping: messages.Ping) -> Iterator[events.Instruction]:
        # Without credit a worker cannot step, so an unchanged counter does not mean that it hangs.
        if ping.env_steps != member.pinged_steps or not member.outstanding:
            member.moved = now
        member.pinged(now, ping)
        member.account.raise_sent(ping.sent)
        if ping.sent > member.account.last_seq:
            # ZeroMQ delivers in order, so segments sent before the ping were lost with a broken connection.
            yield from self._request_rejoin(now, member)
        member.last_ack = None  # a ping is always answered: the Ack proves that the learner is alive
        self._dirty[member.route] = None
        if member.is_worker and not _FITS[0] <= max(self.workers, PINGS_PER_SECOND) / member.paced_for <= _FITS[1]:
            yield self._paced(member)

    def _paced(self, member: Member) -> events.Send:
        """Choose the interval of a worker's pings, so that all together stay below `PINGS_PER_SECOND`."""
        member.paced_for = max(self.workers, PINGS_PER_SECOND)
        mean = member.paced_for / PINGS_PER_SECOND
        # Spread from half of it to one and a half, in the order of the golden ratio: workers that have joined
        # together must not ping together.
        share = next(self._serials) * 0.618034 % 1.0
        member.ping_seconds = PING_SECONDS * (1.0 if mean == 1 else min(mean * (0.5 + share), MOST_PING_SECONDS))
        return events.Send(member.route, messages.Pace(self.terms.epoch, member.ping_seconds))

    # --- leases, credits, acknowledgements ---
    def _tick(self, event: events.Ticked) -> Iterator[events.Instruction]:
        yield from self._expire(event.now)
        self.credits.ceiling = event.ceiling
        self._grant()
        yield from self._acknowledge()

    def _expire(self, now: float) -> Iterator[events.Instruction]:
        """Decide which workers and evaluators are dead or hang, and drop them."""
        terms = self.terms
        if self._ticked is not None and now - self._ticked > terms.lease_seconds / 2:
            # The learner itself was suspended (SIGSTOP, swap): the peers' messages are still in its sockets.
            for member in self.members.values():
                member.heard = member.moved = now
        self._ticked = now
        while self._leases and self._leases[0][0] < now:
            _, _, member = heapq.heappop(self._leases)
            if self.members.get(member.route) is not member:
                continue
            if self._lease_end(member) >= now:
                self._watch_lease(member)
                continue
            yield from self._drop_member(member)
            pause = member.pause_seconds
            reason = f"its steps stood still for {terms.hang_seconds + pause:.3g} s"
            if now - member.heard > terms.lease_seconds + pause:
                reason = f"it said nothing for {terms.lease_seconds + pause:.3g} s"
            yield events.Note(f"{_label(member)} was given up: {reason}; {self._count()}")

    def _watch_lease(self, member: Member) -> None:
        heapq.heappush(self._leases, (self._lease_end(member), next(self._serials), member))

    def _lease_end(self, member: Member) -> float:
        pause = member.pause_seconds
        silent = member.heard + self.terms.lease_seconds + pause
        return min(silent, member.moved + self.terms.hang_seconds + pause) if member.is_worker else silent

    def _grant(self) -> None:
        """Grant credit unless the run is finished; the next tick announces it."""
        if self._finished is None:
            self._dirty.update(dict.fromkeys(self.credits.grant(self.members, self.workers, self.env_steps)))

    def _announce(self) -> None:
        """Mark the next members to receive the newest policy version and durable segment with the next tick."""
        for _ in range(min(MOST_ANNOUNCED, len(self.members))):
            route = next(iter(self.members))
            self.members.move_to_end(route)
            self._dirty[route] = None

    def _finish(self, reason: str) -> Iterator[events.Instruction]:
        """Tell all members of the last policy, which they may still fetch, and of the end."""
        self._finished = reason
        self._dirty = dict.fromkeys(self.members)
        yield from self._acknowledge()
        for route in self.members:
            yield events.Send(route, messages.Done(self.terms.epoch, reason))

    def _acknowledge(self) -> Iterator[events.Instruction]:
        dirty, self._dirty = self._dirty, {}
        for route in dirty:
            member = self.members.get(route)
            if member is not None and (ack := self._ack(member)) != member.last_ack:
                member.last_ack = ack
                yield events.Send(route, ack)

    def _ack(self, member: Member) -> messages.Ack:
        return messages.Ack(
            epoch=self.terms.epoch,
            last_seq=member.account.last_seq,
            durable_seq=self.accounts.durable_seq(member.account.name),
            limit=member.limit,
            policy_version=self.policy_version,
        )

    def _count(self) -> str:
        return "1 worker connected" if self.workers == 1 else f"{self.workers} workers connected"


def _label(member: Member) -> str:
    return f"{member.hello.role} {member.hello.pod}"


def _refused(route: bytes, code: messages.RefusalCode, reason: str) -> events.Send:
    return events.Send(route, messages.Refused(PROTOCOL_VERSION, code.value, reason))
