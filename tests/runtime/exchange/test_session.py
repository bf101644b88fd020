"""A peer's session machine, separately and together with the learner's over a lossy link to a learner that dies."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.machines.events import Arrived, Keep, Saved, Send, Ticked
from runtime.exchange.machines.member_state import MOST_PING_SECONDS, Accounts, SessionTerms
from runtime.exchange.machines.membership import Membership
from runtime.exchange.machines.session import APART_BYTES, PeerSession, SessionConfig
from runtime.exchange.protocol.framing import SegmentArena
from runtime.exchange.protocol.messages import (
    Ack,
    Bye,
    Done,
    EvaluationReport,
    Hello,
    Message,
    Pace,
    Ping,
    Refused,
    RejoinRequest,
    RingAccepted,
    RingOffer,
    Segments,
    Trajectory,
    Welcome,
)

HELLO = Hello(PROTOCOL_VERSION, "r", "r-1", "", "worker", "w-0", 1, 1, "racing", "obs:f4", 100, 8)
SEGMENT = Trajectory(8, 0, 0, 0, 0.0, 0.0)
WELCOME = Welcome(epoch=5, last_seq=0, durable_seq=0, limit=2, window=4, policy_version=1, max_policy_lag=9)


def out(session: PeerSession, now: float) -> list[Message]:
    return [outgoing.message for outgoing in session.outgoing(now, 0, 0.0, 0)]


def segments(session: PeerSession, now: float) -> list[int]:
    return [seq for message in out(session, now) if isinstance(message, Segments) for seq in numbers(message)]


def numbers(message: Segments) -> list[int]:
    return [message.seq + place for place in range(len(message.rows))]


def arena(content: bytes = b"x") -> SegmentArena:
    return SegmentArena.of(content)


def joined(limit: int = 2) -> PeerSession:
    session = PeerSession(HELLO)
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=limit))
    return session


def test_it_says_hello_once_a_second_until_it_is_welcomed() -> None:
    session = PeerSession(HELLO)
    assert out(session, 0.0) == [HELLO]
    assert out(session, 0.5) == []
    assert out(session, 1.0) == [HELLO]
    session.receive(1.1, WELCOME)
    assert [type(message) for message in out(session, 1.1)] == [Ping]


def test_it_pings_only_after_a_second_without_segments() -> None:
    session = joined(limit=100)
    sent = []
    for tenth in range(1, 31):
        if tenth % 5 == 0:
            session.queue_segment(SEGMENT, arena())
        sent += [type(message) for message in out(session, tenth / 10)]
        session.receive(tenth / 10, Ack(5, session.offered, 0, 100, 1))
    assert sent == [Ping] + [Segments] * 6
    assert [type(message) for message in out(session, 3.9)] == []
    assert [type(message) for message in out(session, 4.0)] == [Ping]


def test_it_pings_as_often_as_the_learner_of_many_asks_and_waits_longer_for_its_answers() -> None:
    session = joined(limit=0)
    session.receive(0.0, Pace(4, 30.0))
    assert session.ping_seconds == 1.0, "that was another learner"
    session.receive(0.0, Pace(5, 30.0))
    assert [second for second in range(31) if Ping in map(type, out(session, second))] == [0, 30]
    assert session.is_joined, "no answer was due"
    session.reconnected()
    assert [type(message) for message in out(session, 30.1)] == [Ping], "another learner may be there"
    assert [type(message) for message in out(session, 35.5)] == [Hello], "the one of before would have answered"
    session.receive(36.0, WELCOME)
    assert [second for second in range(36, 40) if Ping in map(type, out(session, second))] == [36, 37, 38, 39]


@pytest.mark.parametrize(("asked", "used"), [(0.0, 1.0), (-3.0, 1.0), (1e9, MOST_PING_SECONDS)])
def test_the_interval_of_pings_is_bounded_whatever_is_asked(asked: float, used: float) -> None:
    session = joined()
    session.receive(0.0, Pace(5, asked))
    assert session.ping_seconds == used


def test_it_says_once_that_the_learner_is_away() -> None:
    session = joined()
    for second in range(1, 60):
        out(session, second)
    assert session.notes.count("the learner does not answer; waiting for it to come back") == 1
    session.receive(60.0, replace(WELCOME, epoch=6))
    assert "came back" in session.notes[-1]


def test_it_sends_within_its_credit_and_asks_for_no_more_than_that() -> None:
    session = joined(limit=1)
    assert session.has_credit
    session.queue_segment(SEGMENT, arena(b"1"))
    assert not session.has_credit
    session.queue_segment(SEGMENT, arena(b"2"))
    (first,) = [message for message in out(session, 0.1) if isinstance(message, Segments)]
    assert (first.epoch, numbers(first)) == (5, [1])
    session.receive(0.2, Ack(5, 1, 0, 2, 1))
    assert segments(session, 0.2) == [2]


def test_a_new_learner_gets_what_it_lacks_and_nothing_else() -> None:
    session = joined(limit=4)
    for _ in range(4):
        session.queue_segment(SEGMENT, arena())
    out(session, 0.1)
    session.receive(0.2, Ack(5, 4, 2, 8, 1))
    session.receive(0.3, RejoinRequest(6))
    (hello,) = out(session, 0.3)
    assert isinstance(hello, Hello)
    assert hello.oldest == 3
    session.receive(0.4, replace(WELCOME, epoch=6, last_seq=2, durable_seq=2, limit=6))
    (again,) = [message for message in out(session, 0.4) if isinstance(message, Segments)]
    assert (again.epoch, numbers(again)) == (6, [3, 4])


def test_what_the_transport_did_not_take_is_sent_again() -> None:
    session = joined()
    session.queue_segment(SEGMENT, arena())
    (first,) = [message for message in out(session, 0.1) if isinstance(message, Segments)]
    session.unsent(first)
    assert segments(session, 0.2) == numbers(first)


def test_a_ring_that_the_transport_did_not_take_is_offered_again() -> None:
    session = joined()
    session.offer_ring(RingOffer(0, "here", 1, 2, 4, 80, "n"))
    (offer,) = [message for message in out(session, 0.1) if isinstance(message, RingOffer)]
    assert not [message for message in out(session, 0.2) if isinstance(message, RingOffer)]
    session.unsent(offer)
    assert [message for message in out(session, 0.3) if isinstance(message, RingOffer)] == [offer]


def test_a_peer_that_nobody_has_welcomed_has_nothing_and_may_send_nothing() -> None:
    session = PeerSession(HELLO)
    assert (session.epoch, session.policy_version, session.max_policy_lag) == (0, 0, 0)
    assert (session.window, session.slots, session.offered) == (0, 0, 0)
    assert not session.is_joined
    session.queue_segment(SEGMENT, arena())
    assert segments(session, 0.0) == []


def test_a_message_in_a_ring_may_be_twice_as_large() -> None:
    config = SessionConfig()
    assert config.ring_bundle_bytes == 2 * config.bundle_bytes


def test_an_acknowledgement_of_a_learner_that_is_gone_changes_nothing() -> None:
    session = joined()
    session.receive(0.1, Ack(4, 9, 9, 9, 9))
    session.queue_segment(SEGMENT, arena())
    assert session.unsettled == 1
    assert session.policy_version == 1


def test_what_it_keeps_is_bounded_but_what_was_not_taken_is_never_let_go() -> None:
    session = PeerSession(HELLO, SessionConfig(kept_bytes=10))
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=100))
    for _ in range(5):
        session.queue_segment(SEGMENT, arena(b"12345"))
    assert len(segments(session, 0.1)) == 5
    session.receive(0.2, Ack(5, 5, 0, 100, 1))
    session.queue_segment(SEGMENT, arena(b"12345"))
    session.receive(0.3, RejoinRequest(5))
    (hello,) = out(session, 0.3)
    assert isinstance(hello, Hello)
    assert hello.oldest == 5


def test_segments_that_come_fast_go_together_and_a_slow_one_goes_at_once() -> None:
    session = PeerSession(HELLO, SessionConfig(bundle_bytes=20, linger_seconds=0.01))
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=100, window=100))
    now, sizes = 1.0, []
    for _ in range(9):
        session.queue_segment(SEGMENT, arena(b"12345"))
        sizes += [len(message.rows) for message in out(session, now) if isinstance(message, Segments)]
        now += 0.001
    assert sizes == [1, 2, 2, 2, 2]
    session.queue_segment(SEGMENT, arena(b"12345"))
    assert segments(session, now) == []
    assert session.patience == 0.01, "the withheld segment goes soon"
    assert len(segments(session, now + 0.011)) == 1
    assert session.patience == session.config.ping_seconds
    session.queue_segment(SEGMENT, arena(b"12345"))
    assert len(segments(session, now + 1.0)) == 1


def test_full_messages_go_at_once_and_only_the_last_waits_for_company() -> None:
    session = PeerSession(HELLO, SessionConfig(bundle_bytes=20, linger_seconds=0.01))
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=100, window=100))
    session.queue_segment(SEGMENT, arena(b"12345"))
    assert segments(session, 1.0) == [1]
    for _ in range(9):
        session.queue_segment(SEGMENT, arena(b"12345"))
    assert segments(session, 1.001) == list(range(2, 10))
    assert segments(session, 1.002) == []
    session.queue_segment(SEGMENT, arena(b"12345"))
    assert segments(session, 1.02) == [10, 11]


def test_a_withheld_segment_goes_after_its_time_however_often_it_is_asked_for() -> None:
    session = PeerSession(HELLO, SessionConfig(bundle_bytes=20, linger_seconds=0.01))
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=100, window=100))
    session.queue_segment(SEGMENT, arena())
    assert segments(session, 1.0) == [1]
    session.queue_segment(SEGMENT, arena())
    went = [number for step in range(1, 13) for number in segments(session, 1.0 + step / 1000)]
    assert went == [2]


def test_what_is_long_and_lies_apart_goes_in_messages_of_its_own() -> None:
    session = PeerSession(HELLO)
    out(session, 0.0)
    session.receive(0.0, replace(WELCOME, limit=100, window=100))
    slabs = [memoryview(bytes(3 * APART_BYTES)) for _ in range(2)]
    for slab in slabs:
        for start in range(0, 3 * APART_BYTES, APART_BYTES):
            session.queue_segment(SEGMENT, SegmentArena(slab, start, APART_BYTES))
    for _ in range(2):
        session.queue_segment(SEGMENT, arena(b"short"))
    assert [numbers(message) for message in out(session, 1.0) if isinstance(message, Segments)] == [
        [1, 2, 3],
        [4, 5, 6],
        [7, 8],
    ]


def test_a_ring_is_used_once_the_learner_took_it_and_its_end_parts_a_bundle() -> None:
    session = joined(limit=8)
    session.offer_ring(RingOffer(0, "here", 1, 2, 4, 80, "n"))
    (offer,) = [message for message in out(session, 0.1) if isinstance(message, RingOffer)]
    assert offer.epoch == 5
    session.receive(0.2, RingAccepted(5, "of another", True))
    assert session.slots == 0
    session.receive(0.2, RingAccepted(5, "n", True))
    for _ in range(5):
        session.queue_segment(SEGMENT, arena())
    bundles = [message for message in out(session, 0.3) if isinstance(message, Segments)]
    assert [(message.seq, len(message.rows), message.ring) for message in bundles] == [(1, 3, True), (4, 2, True)]
    session.receive(0.4, replace(WELCOME, epoch=6, limit=8))
    again = out(session, 0.5)
    assert [message.epoch for message in again if isinstance(message, RingOffer)] == [6]
    assert [message.ring for message in again if isinstance(message, Segments)] == [False]


def test_a_segment_that_does_not_fill_its_slot_of_a_ring_goes_in_a_message_of_its_own() -> None:
    session = joined(limit=8)
    session.offer_ring(RingOffer(0, "here", 1, 2, 16, 80, "n"))
    out(session, 0.1)
    session.receive(0.2, RingAccepted(5, "n", True))
    for transitions in (8, 3, 8, 8, 3):
        session.queue_segment(SEGMENT._replace(transitions=transitions), arena())
    bundles = [message for message in out(session, 0.3) if isinstance(message, Segments)]
    assert [numbers(message) for message in bundles] == [[1], [2], [3, 4], [5]]


def test_a_message_stands_for_more_of_what_lies_in_a_ring() -> None:
    sizes = []
    for has_ring in (False, True):
        session = PeerSession(HELLO, SessionConfig(bundle_bytes=2, ring_bundle_bytes=4))
        out(session, 0.0)
        session.receive(0.0, replace(WELCOME, limit=8, window=16))
        if has_ring:
            session.offer_ring(RingOffer(0, "here", 1, 2, 16, 80, "n"))
            out(session, 0.1)
            session.receive(0.2, RingAccepted(5, "n", True))
        for _ in range(8):
            session.queue_segment(SEGMENT, arena())
        sizes.append([len(message.rows) for message in out(session, 0.3) if isinstance(message, Segments)])
    assert sizes == [[2, 2, 2, 2], [4, 4]]


def test_only_refused_and_done_end_it() -> None:
    for last, attribute in ((Refused(1, "token", "no"), "refused"), (Done(5, "enough"), "done")):
        session = joined()
        session.receive(1.0, last)
        assert getattr(session, attribute)
        assert out(session, 9.0) == []


def test_goodbye_and_evaluations_are_for_a_learner_that_listens() -> None:
    evaluation = EvaluationReport(0, 1, 4, 1.0, 2.0, 0.5, 0.2, None, 0, False, None)
    silent = PeerSession(HELLO)
    assert silent.farewell("x") == []
    assert silent.evaluation(evaluation) is None
    session = joined()
    assert [outgoing.message for outgoing in session.farewell("x")] == [Bye(5, 0, "x")]
    answer = session.evaluation(evaluation)
    assert answer is not None
    assert answer.message == replace(evaluation, epoch=5)


TERMS = SessionTerms("r", "r-1", "", 1, "racing", "obs:f4", 100, 10, 8, max_policy_lag=10)


@dataclass
class World:
    """A learner with checkpoints and some workers, joined by a link that may lose everything in flight."""

    seed: int
    workers: int
    now: float = 0.0
    epoch: int = 1
    sessions: dict[bytes, PeerSession] = field(default_factory=dict)
    offered: dict[bytes, int] = field(default_factory=dict)
    stored: list[tuple[str, int]] = field(default_factory=list)
    saved_stored: list[tuple[str, int]] = field(default_factory=list)
    saved_accounts: dict[str, object] | None = None
    loss: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.learner: Membership | None = Membership(TERMS)
        for index in range(self.workers):
            name = f"w-{index}"
            self.sessions[name.encode()] = PeerSession(replace(HELLO, pod=name))
            self.offered[name.encode()] = 0

    def step(self, collect: bool = True) -> None:
        """Half a second in which each party does all due work."""
        self.now += 0.5
        if self.learner is not None:
            self._perform(self.learner.handle(Ticked(self.now, 1_000_000)))
        for route, session in self.sessions.items():
            if collect and session.has_credit:
                self.offered[route] += 1
                session.queue_segment(SEGMENT, arena(b"x" * 80))
            for outgoing in session.outgoing(self.now, self.offered[route], 0.0, 0):
                if self.learner is None:
                    session.unsent(outgoing.message)
                elif self.random.random() >= self.loss:
                    size = 80 * len(outgoing.message.rows) if isinstance(outgoing.message, Segments) else 0
                    self._perform(self.learner.handle(Arrived(self.now, route, outgoing.message, size)))

    def _perform(self, instructions: list[object]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Keep):
                self.stored += [
                    (instruction.pod, instruction.seq + index) for index in range(len(instruction.rows))
                ]
            if isinstance(instruction, Send) and self.random.random() >= self.loss:
                self.sessions[instruction.route].receive(self.now, instruction.message)

    def save(self) -> None:
        if self.learner is not None:
            self.saved_accounts = self.learner.accounts.state()
            self.saved_stored = list(self.stored)
            self._perform(self.learner.handle(Saved(self.learner.accounts.last_seqs())))

    def kill(self) -> None:
        self.learner = None

    def restart(self) -> None:
        if self.learner is None:
            self.epoch += 1
            accounts = Accounts.from_state(self.saved_accounts) if self.saved_accounts else Accounts()
            self.learner = Membership(dataclasses.replace(TERMS, epoch=self.epoch), accounts)
            self.stored = list(self.saved_stored)


@settings(deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.lists(st.sampled_from(["step", "step", "step", "lose", "heal", "save", "kill", "restart"]), max_size=60),
)
def test_every_segment_is_learned_from_exactly_once_whatever_breaks(
    seed: int, workers: int, story: list[str]
) -> None:
    world = World(seed, workers)
    for word in story:
        match word:
            case "lose":
                world.loss = 0.5
            case "heal":
                world.loss = 0.0
            case "step":
                world.step()
            case _:
                getattr(world, word)()
    world.loss = 0.0
    world.restart()
    for _ in range(40):
        world.step(collect=False)
    expected = [(route.decode(), seq) for route, count in world.offered.items() for seq in range(1, count + 1)]
    assert sorted(world.stored) == sorted(expected)
    assert world.learner is not None
    totals = world.learner.accounts.totals
    assert (totals.accepted, totals.lost, totals.stale, totals.misfit) == (len(expected), 0, 0, 0)
    assert all(session.unsettled == 0 for session in world.sessions.values())


@pytest.mark.parametrize("epoch_gap", [0.0, 5.0])
def test_a_learner_that_comes_back_is_joined_within_a_second(epoch_gap: float) -> None:
    world = World(1, 2)
    for _ in range(4):
        world.step()
    world.save()
    world.kill()
    world.now += epoch_gap
    world.step()
    world.restart()
    world.step()
    world.step()
    assert world.learner is not None
    assert world.learner.workers == 2
