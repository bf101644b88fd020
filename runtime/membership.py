"""The learner's view of its peers as a machine: events in, instructions out; no sockets, no threads, no clock.

What it guarantees, for every incarnation of every worker:

- every sequence number up to `last_seq` is in exactly one of accepted, stale, misfit or lost;
- every segment that arrived is in exactly one of accepted, stale, misfit, duplicate or early (early ones are
  asked for again, so that a hole never gets past);
- the transitions that may be on their way never exceed what `Terms` and the pace allow.

Credits are absolute: a worker may send up to sequence number `limit`. Whoever is not known in this epoch (the
learner was restarted, or it gave the peer up) hears `Who` and says Hello again.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.accounts import Account, Accounts
from runtime.contract import PROTOCOL_VERSION
from runtime.events import (
    Arrived,
    Evaluated,
    Event,
    Finished,
    Garbled,
    Instruction,
    Note,
    Published,
    Saved,
    Send,
    Store,
    Ticked,
)
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
    Trajectory,
    Welcome,
    Who,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the learner asks of its peers, and what it grants them.

    `window` is the most segments that one worker may have on their way, `inflight_transitions` the bound over
    all of them: it is the learner's memory for what has not been stored. A peer that says nothing for
    `lease_seconds` is dropped as gone, one that pings with a standing step counter and unused credit for
    `hang_seconds` as hung. `max_policy_lag` is in policy versions.
    """

    run: str
    run_id: str
    token: str = field(repr=False)
    epoch: int
    environment: str
    obs_dim: int
    act_dim: int
    actor_floats: int
    transition_bytes: int
    segment_transitions: int
    max_policy_lag: int
    window: int = 4
    inflight_transitions: int = 65_536
    lease_seconds: float = 6.0
    hang_seconds: float = 15.0


@dataclass(slots=True)
class Member:
    """A peer that is connected now. Times are the events' `now`, in seconds."""

    route: bytes
    hello: Hello
    account: Account
    heard: float
    moved: float
    limit: int
    env_steps: int = -1
    asked_again: float = float("-inf")
    told: Ack | None = None

    @property
    def outstanding(self) -> int:
        """Segments granted and not yet seen."""
        return max(0, self.limit - self.account.last_seq)


@dataclass(slots=True)
class Membership:
    """The machine. `accounts` holds what a checkpoint keeps; everything else is rebuilt from Hellos."""

    terms: Terms
    accounts: Accounts = field(default_factory=Accounts)
    policy_version: int = 0
    ceiling: int = 0
    members: dict[bytes, Member] = field(default_factory=dict)
    garbled: int = 0
    foreign: int = 0
    env_steps: int = field(init=False)
    _finished: str | None = None
    _ticked: float | None = None
    _turn: int = 0

    def __post_init__(self) -> None:
        self.env_steps = self.accounts.totals.transitions

    @property
    def workers(self) -> int:
        """Connected peers that collect."""
        return sum(1 for each in self.members.values() if each.hello.segment_transitions)

    # --- events ---
    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in order."""
        return list(self._handle(event))

    def _handle(self, event: Event) -> Iterator[Instruction]:
        match event:
            case Arrived():
                yield from self._arrived(event)
            case Ticked():
                yield from self._expire(event.now)
                self.ceiling = event.ceiling
            case Published():
                self.policy_version = event.policy_version
            case Saved():
                self.accounts.durable = dict(event.last_seqs)
            case Garbled():
                self.garbled += 1
                if isinstance(event.error, ForeignVersionError):
                    yield _refused(event.route, Refusal.PROTOCOL, str(event.error))
                return
            case Finished():
                self._finished = event.reason
                for member in self.members.values():
                    yield Send(member.route, Done(self.terms.epoch, event.reason))
                return
        self._grant()
        yield from self._tell()

    def _arrived(self, event: Arrived) -> Iterator[Instruction]:
        message = event.message
        if isinstance(message, Hello):
            yield from self._hello(event.now, event.route, message)
            return
        if not isinstance(message, Trajectory | Ping | Bye | Evaluation):
            self.garbled += 1  # a learner's own kinds coming back
            return
        member = self.members.get(event.route)
        if member is None or message.epoch != self.terms.epoch:
            self.foreign += 1
            if not isinstance(message, Bye):
                yield Send(event.route, Who(self.terms.epoch))
            return
        member.heard = event.now
        match message:
            case Trajectory():
                yield from self._trajectory(member, message, event)
            case Ping():
                yield from self._ping(event.now, member, message)
            case Evaluation():
                yield Evaluated(member.hello.pod, message)
            case Bye():
                del self.members[event.route]
                yield Send(event.route, self._ack(member))
                yield Note(f"{_who(member)} left: {message.reason}; {self._count()}")

    # --- registration ---
    def _hello(self, now: float, route: bytes, hello: Hello) -> Iterator[Instruction]:
        refusal = self._objection(hello)
        if refusal is not None:
            yield _refused(route, *refusal)
            yield Note(f"{hello.role} {hello.pod} was refused: {refusal[1]}")
            return
        if self._finished is not None:
            yield Send(route, Done(self.terms.epoch, self._finished))
            return
        twin = next((each for each in self.members.values() if each.hello.pod == hello.pod), None)
        if twin is not None and twin.hello.incarnation > hello.incarnation:
            return  # an older process of the pod: it may come back when the newer one has gone
        if twin is not None:
            del self.members[twin.route]
            if twin.hello.incarnation != hello.incarnation:
                reason = f"another process of pod {hello.pod} has taken its place"
                yield _refused(twin.route, Refusal.SUPERSEDED, reason)
        account = self.accounts.open(hello.pod, hello.incarnation)
        account.lose_before(hello.oldest)
        member = Member(route, hello, account, heard=now, moved=now, limit=account.last_seq)
        self.members[route] = member
        self._grant()
        member.told = self._ack(member)
        yield Send(
            route,
            Welcome(
                epoch=self.terms.epoch,
                last_seq=account.last_seq,
                durable_seq=self.accounts.durable_seq(member.account.name),
                limit=member.limit,
                policy_version=self.policy_version,
                max_policy_lag=self.terms.max_policy_lag,
            ),
        )
        if twin is None or twin.hello.incarnation != hello.incarnation:
            yield Note(f"{_who(member)} joined; {self._count()}")

    def _objection(self, hello: Hello) -> tuple[Refusal, str] | None:
        """Return why `hello` is refused, or None. The token comes first: strangers learn nothing else."""
        terms = self.terms
        if not hmac.compare_digest(hello.token.encode(), terms.token.encode()):
            return Refusal.TOKEN, "its token is not this run's; give it the run's token file"
        if (hello.run, hello.run_id) != (terms.run, terms.run_id):
            ours = f"this is the learner of {terms.run} ({terms.run_id})"
            theirs = f"it belongs to run {hello.run} ({hello.run_id})"
            return Refusal.RUN, f"{theirs} and {ours}; check its endpoint"
        names = ["environment", "obs_dim", "act_dim", "actor_floats"]
        if hello.segment_transitions:
            names.append("transition_bytes")
        for name in names:
            has, needs = getattr(hello, name), getattr(terms, name)
            if has != needs:
                return Refusal.SCHEMA, f"its {name} is {has} and the learner's {needs}; give both the same settings"
        if hello.segment_transitions > terms.segment_transitions:
            sizes = f"of {hello.segment_transitions} transitions, above the learner's {terms.segment_transitions}"
            return Refusal.SCHEMA, f"its segments are {sizes}; give both the same settings"
        return None

    # --- segments ---
    def _trajectory(self, member: Member, segment: Trajectory, event: Arrived) -> Iterator[Instruction]:
        account, hello, now, arena_bytes = member.account, member.hello, event.now, event.arena_bytes
        if segment.seq <= account.last_seq:
            account.duplicate += 1
            return
        if segment.seq > account.last_seq + 1 or segment.seq > member.limit:
            account.early += 1
            yield from self._again(now, member)
            return
        account.last_seq = segment.seq
        member.moved = now
        fits = (
            0 < segment.transitions <= hello.segment_transitions
            and arena_bytes == segment.transitions * hello.transition_bytes
            and segment.policy_version_min <= segment.policy_version_max
            and event.is_finite
        )
        if not fits:
            account.misfit += 1
            yield Note(
                f"{_who(member)} sent a segment of {segment.transitions} transitions in {arena_bytes} bytes "
                f"that {'does not fit what it declared' if event.is_finite else 'is not finite'}; it is not used"
            )
        elif self.policy_version - segment.policy_version_min > self.terms.max_policy_lag:
            account.stale += 1
        else:
            account.accepted += 1
            account.transitions += segment.transitions
            self.env_steps += segment.transitions
            yield Store(hello.pod, segment)

    def _again(self, now: float, member: Member) -> Iterator[Instruction]:
        """Ask once a second at most: everything behind a hole arrives early too."""
        if now - member.asked_again >= 1.0:
            member.asked_again = now
            yield Send(member.route, Who(self.terms.epoch))

    def _ping(self, now: float, member: Member, ping: Ping) -> Iterator[Instruction]:
        if ping.env_steps != member.env_steps or not member.outstanding:
            member.env_steps = ping.env_steps
            member.moved = now
        if ping.sent > member.account.last_seq:
            yield from self._again(now, member)  # its connection broke and took segments with it
        member.told = None  # a ping is always answered: that is how the peer knows that we live

    # --- leases, credits, acknowledgements ---
    def _expire(self, now: float) -> Iterator[Instruction]:
        terms = self.terms
        if self._ticked is not None and now - self._ticked > terms.lease_seconds / 2:
            for member in self.members.values():  # it was the learner that stood still
                member.heard = member.moved = now
        self._ticked = now
        for member in list(self.members.values()):
            silent = now - member.heard > terms.lease_seconds
            hung = bool(member.hello.segment_transitions) and now - member.moved > terms.hang_seconds
            if silent or hung:
                del self.members[member.route]
                why = (
                    f"it said nothing for {terms.lease_seconds:g} s"
                    if silent
                    else f"its steps stood still for {terms.hang_seconds:g} s"
                )
                yield Note(f"{_who(member)} was given up: {why}; {self._count()}")

    def _grant(self) -> None:
        """Hand out segments one at a time, to those with the fewest first, as far as pace and memory allow."""
        workers = [each for each in self.members.values() if each.hello.segment_transitions]
        if not workers or self._finished is not None:
            return
        self._turn += 1  # who is first among equals changes, so that a tight pace starves nobody
        first = self._turn % len(workers)
        workers = workers[first:] + workers[:first]
        inflight = sum(each.outstanding * each.hello.segment_transitions for each in workers)
        while True:
            member = min(workers, key=lambda each: each.outstanding)
            size = member.hello.segment_transitions
            in_pace = self.env_steps + inflight + size <= self.ceiling
            starving = inflight == 0 and self.env_steps < self.ceiling
            in_memory = inflight + size <= max(self.terms.inflight_transitions, size)
            if member.outstanding >= self.terms.window or not (in_pace or starving) or not in_memory:
                return
            member.limit = max(member.limit, member.account.last_seq) + 1
            inflight += size

    def _tell(self) -> Iterator[Instruction]:
        for member in self.members.values():
            ack = self._ack(member)
            if ack != member.told:
                member.told = ack
                yield Send(member.route, ack)

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
