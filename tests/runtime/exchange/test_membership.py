"""The learner's membership machine, event by event; no sockets, no clock."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from runtime.base.contract import PROTOCOL_VERSION
from runtime.exchange.machines.events import (
    Arrived,
    Attach,
    Detach,
    Evaluated,
    Finished,
    Instruction,
    Keep,
    MalformedMessage,
    Note,
    Published,
    Saved,
    Send,
    Ticked,
)
from runtime.exchange.machines.member_state import MAX_OPEN_ACCOUNTS, PINGS_PER_SECOND, Accounts, SessionTerms
from runtime.exchange.machines.membership import MOST_ANNOUNCED, Membership
from runtime.exchange.protocol.messages import (
    BUNDLE_BYTES,
    Ack,
    Bye,
    Done,
    EvaluationReport,
    ForeignVersionError,
    Get,
    Hello,
    Message,
    Pace,
    Ping,
    ProtocolError,
    Refused,
    RejoinRequest,
    RingAccepted,
    RingOffer,
    SegmentRows,
    Segments,
    Trajectory,
    Welcome,
)
from tests.bench.exchange.members import costs

TERMS = SessionTerms(
    run="r",
    run_id="r-1",
    token="secret",
    epoch=5,
    environment="racing",
    layout="obs:f4[2] done:u1[2]",
    actor_floats=100,
    transition_bytes=10,
    segment_transitions=8,
    max_policy_lag=4,
    window=3,
    inflight_transitions=1_000,
)
HELLO = Hello(
    PROTOCOL_VERSION, "r", "r-1", "secret", "worker", "w-0", 1, 1, "racing", "obs:f4[2] done:u1[2]", 100, 8
)


def machine(terms: SessionTerms = TERMS, ceiling: int = 10_000, accounts: Accounts | None = None) -> Membership:
    made = Membership(terms, accounts or Accounts())
    made.handle(Ticked(0.0, ceiling))
    return made


def arrive(
    membership: Membership, message: Message, now: float = 0.0, route: bytes = b"a", size: int | None = None
) -> list[Instruction]:
    """Return the instructions for a message and for the tick after it."""
    arena_bytes = 10 * sum(message.table.columns.transitions) if isinstance(message, Segments) else 0
    done = membership.handle(Arrived(now, route, message, arena_bytes if size is None else size))
    return done + membership.handle(Ticked(now, membership.credits.ceiling))


def tick(membership: Membership, now: float = 0.0) -> list[Instruction]:
    return membership.handle(Ticked(now, membership.credits.ceiling))


def stored(instructions: list[Instruction]) -> list[int]:
    return [
        instruction.seq + index
        for instruction in instructions
        if isinstance(instruction, Keep)
        for index in range(len(instruction.rows))
    ]


def sent(instructions: list[Instruction], kind: type[Message]) -> list[Message]:
    return [
        instruction.message
        for instruction in instructions
        if isinstance(instruction, Send) and isinstance(instruction.message, kind)
    ]


def row(version: int = 0, transitions: int = 8) -> Trajectory:
    return Trajectory(transitions, version, version, 0, 0.0, 0.0)


def bundle(seq: int, *rows: Trajectory, epoch: int = 5, ring: bool = False) -> Segments:
    return Segments(epoch, seq, ring, rows)


def segment(seq: int, version: int = 0, epoch: int = 5, transitions: int = 8) -> Segments:
    return bundle(seq, row(version, transitions), epoch=epoch)


def test_much_room_is_granted_at_once_and_the_end_of_it_in_small_parts() -> None:
    """For a fast worker: each worker has at most half of its share of the remaining room, or a few segments."""
    membership = machine(dataclasses.replace(TERMS, window=100), ceiling=8 * 64)
    arrive(membership, HELLO)
    assert membership.members[b"a"].limit == 32
    arrive(membership, replace(HELLO, pod="w-1"), route=b"b")
    assert membership.members[b"b"].limit == 16
    arrive(membership, bundle(1, *[row()] * 30))
    assert membership.members[b"a"].outstanding == 8
    assert membership.members[b"b"].outstanding == 16
    arrive(membership, bundle(31, *[row()] * 8))
    arrive(membership, bundle(1, *[row()] * 16), route=b"b")
    assert [member.outstanding for member in membership.members.values()] == [6, 4]


def test_a_hello_is_welcomed_with_credit() -> None:
    membership = machine()
    (welcome,) = sent(arrive(membership, HELLO), Welcome)
    assert welcome == Welcome(
        epoch=5, last_seq=0, durable_seq=0, limit=3, window=3, policy_version=0, max_policy_lag=4
    )
    assert membership.workers == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": "guess"}, "token"),
        ({"run_id": "r-2"}, "run"),
        ({"environment": "chess"}, "schema"),
        ({"layout": "obs:f4[4]"}, "schema"),
        ({"actor_floats": 101}, "schema"),
        ({"segment_transitions": 9}, "schema"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_with_a_sentence(change: dict[str, object], code: str) -> None:
    membership = machine()
    (refused,) = sent(arrive(membership, replace(HELLO, **change)), Refused)
    assert refused.code == code
    assert len(refused.reason.split()) > 4
    assert not membership.members


def test_what_is_written_of_a_message_or_of_the_terms_never_holds_the_token() -> None:
    assert TERMS.token == HELLO.token == "secret"
    for value in (TERMS, HELLO, Get("secret", 1, 1, "f4", ""), machine()):
        assert "secret" not in repr(value)


def test_another_protocol_version_is_refused_and_garbage_is_only_counted() -> None:
    membership = machine()
    (refused,) = sent(membership.handle(MalformedMessage(b"a", ForeignVersionError(9))), Refused)
    assert refused.code == "protocol"
    assert membership.handle(MalformedMessage(b"a", ProtocolError("noise"))) == []
    assert membership.malformed == 2


def test_an_accepted_segment_is_stored_and_acknowledged_with_new_credit() -> None:
    membership = machine()
    arrive(membership, HELLO)
    done = arrive(membership, segment(1))
    assert Keep("w-0", 1, SegmentRows((row(),)), 0) in done
    assert sent(done, Ack) == [Ack(epoch=5, last_seq=1, durable_seq=0, limit=3, policy_version=0)]
    assert membership.env_steps == 8
    done = arrive(membership, segment(2))  # half of the window is used
    assert sent(done, Ack) == [Ack(epoch=5, last_seq=2, durable_seq=0, limit=5, policy_version=0)]


def test_a_segment_that_comes_twice_is_stored_once() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    assert not stored(arrive(membership, segment(1)))
    assert membership.accounts.totals.duplicate == 1


def test_a_hole_is_asked_for_once_a_second_and_never_gets_past() -> None:
    membership = machine()
    arrive(membership, HELLO)
    assert sent(arrive(membership, segment(2), now=1.0), RejoinRequest) == [RejoinRequest(5)]
    assert sent(arrive(membership, segment(3), now=1.5), RejoinRequest) == []
    assert sent(arrive(membership, segment(3), now=2.1), RejoinRequest) == [RejoinRequest(5)]
    assert membership.env_steps == 0
    assert membership.accounts.totals.early == 3


def test_a_ping_that_tells_of_more_than_arrived_is_asked_about_it() -> None:
    membership = machine()
    arrive(membership, HELLO)
    assert sent(arrive(membership, Ping(5, 2, 16, 0, 1.0), now=1.0), RejoinRequest) == [RejoinRequest(5)]


def test_a_worker_that_ignores_its_credit_is_not_stored() -> None:
    membership = machine(ceiling=8)
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    assert not stored(arrive(membership, segment(2)))


@pytest.mark.parametrize(
    ("lie", "size"),
    [(segment(1), 79), (segment(1), 0), (segment(1, transitions=9), 90), (segment(1, transitions=0), 0)],
)
def test_a_segment_that_lies_about_its_size_is_counted_and_not_stored(lie: Segments, size: int) -> None:
    membership = machine()
    arrive(membership, HELLO)
    done = arrive(membership, lie, size=size)
    assert not stored(done)
    assert membership.accounts.totals.misfit == 1
    assert membership.accounts.by_name["w-0@1"].last_seq == 1


def test_a_segment_with_numbers_that_are_not_finite_is_counted_and_not_stored() -> None:
    membership = machine()
    arrive(membership, HELLO)
    done = membership.handle(Arrived(0.0, b"a", segment(1), 80, frozenset({0})))
    assert not stored(done)
    assert [
        instruction
        for instruction in done
        if isinstance(instruction, Note) and "not finite or not as declared; they are not used" in instruction.text
    ]
    assert membership.accounts.totals.misfit == 1
    assert stored(arrive(membership, segment(2)))
    membership.handle(Published(9))
    stale = arrive(membership, segment(3, version=0))
    assert not [instruction for instruction in stale if isinstance(instruction, Note)], "said once"


def test_a_segment_of_a_policy_too_old_is_refused_and_counted() -> None:
    membership = machine()
    arrive(membership, HELLO)
    membership.handle(Published(5))
    assert not stored(arrive(membership, segment(1, version=0)))
    assert stored(arrive(membership, segment(2, version=1)))
    assert membership.accounts.totals.stale == 1


@pytest.mark.parametrize(
    ("refused", "size"), [(row(version=0), 80), (row(version=5, transitions=9), 90)], ids=["stale", "misfit"]
)
def test_a_refused_segment_gives_its_credit_back_once(refused: Trajectory, size: int) -> None:
    membership = machine()
    arrive(membership, HELLO)
    membership.handle(Published(5))
    (member,) = membership.members.values()
    for seq in (1, 2, 3):
        arrive(membership, bundle(seq, refused), size=size)
        assert membership.credits.inflight == 8 * member.outstanding
    assert membership.accounts.totals.stale + membership.accounts.totals.misfit == 3


def test_everyone_hears_of_a_new_version() -> None:
    membership = machine()
    arrive(membership, HELLO)
    (ack,) = sent(membership.handle(Published(3)) + tick(membership), Ack)
    assert ack.policy_version == 3


def test_strangers_and_foreign_epochs_are_asked_who_they_are() -> None:
    membership = machine()
    assert sent(arrive(membership, segment(1)), RejoinRequest) == [RejoinRequest(5)]
    assert membership.foreign == 1
    arrive(membership, HELLO)
    assert sent(arrive(membership, segment(1, epoch=4)), RejoinRequest) == [RejoinRequest(5)]
    assert membership.foreign == 2
    arrive(membership, segment(1))
    assert membership.foreign == 2
    assert membership.env_steps == 8


def test_the_credits_of_all_stay_within_pace_and_memory() -> None:
    paced = machine(ceiling=40)
    for index in range(4):
        arrive(paced, replace(HELLO, pod=f"w-{index}"), route=bytes([index]))
    assert sum(member.outstanding * 8 for member in paced.members.values()) == 40

    small = machine(dataclasses.replace(TERMS, inflight_transitions=16))
    for index in range(4):
        arrive(small, replace(HELLO, pod=f"w-{index}"), route=bytes([index]))
    assert sum(member.outstanding * 8 for member in small.members.values()) == 16


def test_a_pace_smaller_than_a_segment_still_moves() -> None:
    membership = machine(ceiling=3)
    arrive(membership, HELLO)
    assert membership.members[b"a"].outstanding == 1


def test_a_tight_pace_reaches_every_worker_in_turn() -> None:
    membership = machine(ceiling=8)
    for index in range(3):
        arrive(membership, replace(HELLO, pod=f"w-{index}"), route=bytes([index]))
    served = set()
    seqs = [0, 0, 0]
    for turn in range(30):
        granted = [route for route, member in membership.members.items() if member.outstanding]
        assert len(granted) == 1
        served.add(granted[0])
        seqs[granted[0][0]] += 1
        arrive(membership, segment(seqs[granted[0][0]]), route=granted[0])
        membership.handle(Ticked(0.01 * turn, membership.env_steps + 8))
    assert served == {b"\0", b"\1", b"\2"}


def test_a_worker_that_does_not_use_its_credit_does_not_gather_that_of_the_others() -> None:
    membership = machine(dataclasses.replace(TERMS, window=100, inflight_transitions=64 * 8), ceiling=10**9)
    for index in range(4):
        arrive(membership, replace(HELLO, pod=f"w-{index}"), route=bytes([index]))
    seq = 1
    for _ in range(200):  # three are slow
        quick = membership.members[b"\0"]
        arrive(membership, bundle(seq, *[row()] * quick.outstanding), route=b"\0")
        seq = quick.account.last_seq + 1
        assert quick.outstanding == 16
    assert all(member.outstanding <= 64 for member in membership.members.values())
    assert membership.credits.inflight <= 64 * 8


def test_credit_comes_in_pieces_of_which_whole_messages_are_made() -> None:
    """Workers send as soon as they have credit; small messages must not lead to ever more small ones."""
    membership = machine(dataclasses.replace(TERMS, window=100, inflight_transitions=32 * 16 * 8), ceiling=10**9)
    routes = [bytes([index]) for index in range(32)]
    for route in routes:
        arrive(membership, replace(HELLO, pod=f"w-{route[0]}"), route=route)
    offered = dict.fromkeys(routes, 0)
    under_way: deque[tuple[bytes, int]] = deque()
    for route in routes * 100:  # small pieces first
        if offered[route] < membership.members[route].limit:
            under_way.append((route, 1))
            offered[route] += 1
    sizes = []
    for _ in range(4_000):
        route, count = under_way.popleft()
        member = membership.members[route]
        arrive(membership, bundle(member.account.last_seq + 1, *[row()] * count), route=route)
        if member.limit > offered[route]:
            sizes.append(member.limit - offered[route])
            under_way.append((route, sizes[-1]))
            offered[route] = member.limit
    assert min(sizes[-1_000:]) >= 8, "half of a worker's part"
    assert membership.credits.inflight <= 32 * 16 * 8


def test_a_silent_peer_is_given_up_and_its_credit_goes_to_the_others() -> None:
    membership = machine(ceiling=8)
    arrive(membership, HELLO, route=b"a")
    arrive(membership, replace(HELLO, pod="w-1"), route=b"b")
    for second in range(1, 8):
        done = arrive(membership, Ping(5, 0, second, 0, 1.0), now=second, route=b"b")
    assert list(membership.members) == [b"b"]
    assert membership.members[b"b"].outstanding == 1
    assert any(isinstance(instruction, Note) and "said nothing" in instruction.text for instruction in done)


def test_a_hung_worker_pings_and_is_given_up_all_the_same() -> None:
    membership = machine()
    arrive(membership, HELLO)
    for second in range(1, 18):
        arrive(membership, Ping(5, 0, 42, 0, 0.0), now=second)
        membership.handle(Ticked(second, 10_000))
    assert not membership.members


def test_a_worker_without_credit_does_not_count_as_hung() -> None:
    membership = machine(ceiling=0)
    arrive(membership, HELLO)
    for second in range(1, 60):
        arrive(membership, Ping(5, 0, 42, 0, 0.0), now=second)
        membership.handle(Ticked(second, 0))
    assert membership.workers == 1


def test_a_learner_that_stood_still_blames_nobody() -> None:
    membership = machine()
    arrive(membership, HELLO)
    membership.handle(Ticked(1.0, 10_000))
    membership.handle(Ticked(600.0, 10_000))
    assert membership.workers == 1


def test_a_newer_process_of_a_pod_takes_the_place_of_the_older() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    done = arrive(membership, replace(HELLO, incarnation=2), route=b"b")
    assert [refusal.code for refusal in sent(done, Refused)] == ["superseded"]
    (welcome,) = sent(done, Welcome)
    assert welcome.last_seq == 0
    assert arrive(membership, HELLO, route=b"a") == []
    assert membership.env_steps == 8


def test_an_older_process_that_goes_on_asking_beside_the_newer_is_refused() -> None:
    membership = machine()
    arrive(membership, replace(HELLO, incarnation=2), route=b"b")
    for second in range(1, 9):
        arrive(membership, Ping(5, 0, second, 0, 1.0), now=second, route=b"b")
        answers = sent(arrive(membership, HELLO, now=second, route=b"a"), Refused)
        assert bool(answers) == (second - 1 > TERMS.lease_seconds)
    assert list(membership.members) == [b"b"]


def test_an_evaluator_gets_no_credit_and_its_result_is_kept() -> None:
    membership = machine()
    evaluator = replace(HELLO, role="evaluator", pod="e", segment_transitions=0)
    (welcome,) = sent(arrive(membership, evaluator), Welcome)
    assert welcome.limit == 0
    evaluation = EvaluationReport(5, 1, 4, 1.0, 2.0, 0.5, 0.2, 10.0, 0, False, None)
    assert Evaluated("e", evaluation) in arrive(membership, evaluation)
    assert membership.workers == 0


def test_goodbye_frees_the_place_and_the_credit() -> None:
    membership = machine()
    arrive(membership, HELLO)
    done = arrive(membership, Bye(5, 0, "SIGTERM"))
    assert sent(done, Ack)
    assert not membership.members


def test_who_joins_and_leaves_is_noted_with_the_number_of_those_here() -> None:
    membership = machine()
    notes = [
        instruction.text
        for message, route in (
            (HELLO, b"a"), (replace(HELLO, pod="w-1"), b"b"), (Bye(5, 0, "done"), b"a"), (Bye(5, 0, "done"), b"b"),
        )
        for instruction in arrive(membership, message, route=route)
        if isinstance(instruction, Note)
    ]  # fmt: skip
    assert [note.partition("; ")[2] for note in notes] == [
        "1 worker connected", "2 workers connected", "1 worker connected", "0 workers connected",
    ]  # fmt: skip


def test_a_message_that_only_learners_send_is_counted_and_answered_with_nothing() -> None:
    membership = machine()
    assert membership.handle(Arrived(0.0, b"a", RejoinRequest(5), 0)) == []
    assert (membership.malformed, membership.foreign) == (1, 0)


def test_the_end_of_the_run_is_told_to_those_here_and_those_who_ask() -> None:
    membership = machine()
    arrive(membership, HELLO)
    membership.handle(Published(7))
    assert sent(membership.handle(Finished("enough")), Done) == [Done(5, "enough")]
    late = replace(HELLO, pod="w-1", oldest=1)
    answers = arrive(membership, late, route=b"b")
    (welcome,) = sent(answers, Welcome)
    assert (welcome.limit, welcome.policy_version) == (0, 7), "it may send nothing, and fetch the last weights"
    assert sent(answers, Done) == [Done(5, "enough")]
    assert not membership.departed
    arrive(membership, Bye(5, 0, "the run is done"), route=b"b")
    assert membership.departed == {"w-1"}


def test_who_comes_back_after_a_goodbye_has_not_left() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, Bye(5, 0, "SIGTERM"))
    assert membership.departed == {"w-0"}
    arrive(membership, replace(HELLO, incarnation=HELLO.incarnation + 1))
    assert not membership.departed


def test_accounts_of_a_checkpoint_continue_where_they_were() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    saved = membership.accounts.state()
    arrive(membership, segment(2))
    restarted = machine(dataclasses.replace(TERMS, epoch=6), accounts=Accounts.from_state(saved))
    assert restarted.env_steps == 8
    (welcome,) = sent(arrive(restarted, replace(HELLO, oldest=1)), Welcome)
    assert (welcome.last_seq, welcome.durable_seq) == (1, 1)


def test_segments_of_a_bundle_are_booked_one_by_one_and_kept_in_runs() -> None:
    membership = machine(dataclasses.replace(TERMS, window=9))
    arrive(membership, HELLO)
    arrive(membership, segment(1, version=5))
    membership.handle(Published(6))
    mixed = bundle(1, row(6), row(6), row(6), row(0), row(6, transitions=4))
    done = arrive(membership, mixed)
    assert [instruction for instruction in done if isinstance(instruction, Keep)] == [
        Keep("w-0", 2, mixed.table.part(1, 3), 1),
        Keep("w-0", 5, mixed.table.part(4, 5), 4),
    ]
    totals = membership.accounts.totals
    assert (totals.accepted, totals.stale, totals.duplicate, totals.missing) == (4, 1, 1, 0)


def test_a_message_that_is_booked_one_by_one_may_use_the_credit_up() -> None:
    membership = machine()
    arrive(membership, HELLO)
    assert membership.members[b"a"].limit == TERMS.window
    done = arrive(membership, bundle(1, row(), row(transitions=0), row()))
    assert stored(done) == [1, 3]
    assert (membership.accounts.totals.misfit, membership.accounts.totals.early) == (1, 0)


def test_a_pause_of_the_learner_itself_of_half_a_lease_is_not_held_against_its_peers() -> None:
    membership = machine()
    arrive(membership, HELLO)
    for now in (4.0, 5.0, 6.0, 7.0, 8.0, 9.0):  # a second each after a pause of four
        tick(membership, now)
    assert membership.workers == 1
    for now in (10.0, 11.0):
        tick(membership, now)
    assert membership.workers == 0


def test_what_a_dead_worker_had_sent_is_missing_until_it_is_known_to_be_lost() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    arrive(membership, Ping(5, 3, 24, 0, 1.0))
    for second in range(1, 9):
        membership.handle(Ticked(float(second), 10_000))
    assert not membership.members
    totals = membership.accounts.totals
    assert (totals.sent, totals.accepted, totals.missing, totals.lost) == (3, 1, 2, 0)
    arrive(membership, replace(HELLO, oldest=4), now=9.0)
    totals = membership.accounts.totals
    assert (totals.sent, totals.accepted, totals.missing, totals.lost) == (3, 1, 0, 2)


def test_a_ring_of_the_agreed_size_is_taken_and_goes_with_its_member() -> None:
    membership = machine()
    arrive(membership, HELLO)
    ring = RingOffer(5, "here", 1, 2, 3, 80, "nonce")
    assert Attach(b"a", ring) in arrive(membership, ring)
    (answer,) = sent(arrive(membership, replace(ring, slots=4)), RingAccepted)
    assert not answer.is_taken
    assert Detach(b"a") in arrive(membership, Bye(5, 0, "x"))


def test_the_largest_message_is_a_segment_or_a_bundle_of_small_ones() -> None:
    assert TERMS.largest_message == BUNDLE_BYTES
    assert dataclasses.replace(TERMS, transition_bytes=10**6).largest_message == 8 * 10**6


def test_what_a_worker_no_longer_has_is_counted_as_lost() -> None:
    membership = machine()
    (welcome,) = sent(arrive(membership, replace(HELLO, oldest=4)), Welcome)
    assert welcome.last_seq == 3
    assert membership.accounts.totals.lost == 3


def test_saved_segments_become_durable() -> None:
    membership = machine()
    arrive(membership, HELLO)
    arrive(membership, segment(1))
    (ack,) = sent(membership.handle(Saved(membership.accounts.last_seqs())) + tick(membership), Ack)
    assert ack.durable_seq == 1


def test_accounts_are_bounded_and_their_sums_are_kept() -> None:
    accounts = Accounts()
    for incarnation in range(MAX_OPEN_ACCOUNTS + 10):
        accounts.open("w", incarnation).accepted = 1
    assert len(accounts.by_name) == MAX_OPEN_ACCOUNTS
    assert accounts.totals.accepted == MAX_OPEN_ACCOUNTS + 10


def test_the_accounts_of_connected_workers_stay_separate_however_many_they_are() -> None:
    count = MAX_OPEN_ACCOUNTS + 100
    terms = dataclasses.replace(TERMS, inflight_transitions=10**6, window=1)
    membership = machine(terms, ceiling=10**6)
    for number in range(count):
        route = b"%d" % number
        membership.handle(Arrived(0.0, route, replace(HELLO, pod=f"w-{number}")))
    for route in list(membership.members):
        membership.handle(Arrived(0.0, route, segment(1), 80))
    assert membership.accounts.totals.accepted == count
    assert len(membership.accounts.last_seqs()) == count
    saved = Accounts.from_state(membership.accounts.state())
    resumed = machine(dataclasses.replace(terms, epoch=6), accounts=saved)
    arrive(resumed, replace(HELLO, pod="another"))
    (welcome,) = sent(arrive(resumed, replace(HELLO, pod="w-0"), route=b"b"), Welcome)
    assert welcome.last_seq == 1, "nothing of it is taken twice"
    for number in range(count):
        membership.handle(Arrived(0.0, b"%d" % number, Bye(5, 1, "SIGTERM")))
    arrive(membership, replace(HELLO, pod="another"))
    assert len(membership.accounts.by_name) == MAX_OPEN_ACCOUNTS
    assert membership.accounts.totals.accepted == count


def test_a_publish_is_announced_to_some_members_in_turn_and_the_others_hear_of_it_with_the_next_answer() -> None:
    count = 2 * MOST_ANNOUNCED + 10
    membership = machine(dataclasses.replace(TERMS, inflight_transitions=10**6), ceiling=10**6)
    for number in range(count):
        membership.handle(Arrived(0.0, b"%d" % number, replace(HELLO, pod=f"w-{number}")))
    tick(membership)
    told: set[bytes] = set()
    for version in (1, 2, 3):
        membership.handle(Published(version))
        sends = [instruction for instruction in tick(membership) if isinstance(instruction, Send)]
        assert [send.message.policy_version for send in sends if isinstance(send.message, Ack)] == (
            [version] * MOST_ANNOUNCED
        )
        told |= {send.route for send in sends}
    assert told == set(membership.members)
    for number in range(count):
        (ack,) = sent(arrive(membership, Ping(5, 0, 0, 0, 0.0), 0.5, b"%d" % number), Ack)
        assert ack.policy_version == 3
    last = membership.handle(Finished("enough"))
    assert len(sent(last, Done)) == count


def test_the_end_comes_with_the_version_of_the_last_policy() -> None:
    membership = machine()
    arrive(membership, HELLO)
    membership.handle(Published(9))
    ack, done = [send.message for send in membership.handle(Finished("enough")) if isinstance(send, Send)]
    assert isinstance(ack, Ack)
    assert ack.policy_version == 9
    assert done == Done(5, "enough")


def test_the_steps_of_a_worker_without_pings_are_known_from_its_segments() -> None:
    membership = machine(dataclasses.replace(TERMS, window=40))
    arrive(membership, HELLO)
    for seq in range(1, 21):
        arrive(membership, segment(seq), now=seq / 4)
    member = membership.members[b"a"]
    assert member.env_steps == 20 * 8
    assert member.env_steps_per_second == pytest.approx(32.0)
    assert sent(arrive(membership, segment(20), now=5.1), Ack), "a repeated segment is answered too: it is no ping"
    assert member.env_steps == 20 * 8


def test_the_more_workers_there_are_the_less_often_each_pings_and_the_longer_its_lease_is() -> None:
    count = 8 * PINGS_PER_SECOND
    membership = machine(dataclasses.replace(TERMS, inflight_transitions=10**6), ceiling=0)
    evaluator = replace(HELLO, role="evaluator", pod="e", segment_transitions=0)
    membership.handle(Arrived(0.0, b"e", evaluator))
    routes = [b"%d" % number for number in range(count)]
    for number, route in enumerate(routes):
        membership.handle(Arrived(0.0, route, replace(HELLO, pod=f"w-{number}")))
    ping = Ping(5, 0, 0, 0, 0.0)
    paces = {
        route: pace.ping_seconds for route in routes for pace in sent(arrive(membership, ping, 0.5, route), Pace)
    }
    assert set(paces) == set(routes), "each is told with its first ping"
    assert sum(1 / seconds for seconds in paces.values()) == pytest.approx(PINGS_PER_SECOND, rel=0.15)
    for second in range(1, 14):
        due = sum(second < seconds <= second + 1 for seconds in paces.values())
        assert due <= 1.2 * PINGS_PER_SECOND, "those that joined together do not ping together"
        arrive(membership, ping, float(second), b"e")
        if slow := [route for route, seconds in paces.items() if second < seconds <= second + 1]:
            assert not sent(arrive(membership, ping, float(second + 1), slow[0]), Pace), "it has been told"
    assert not sent(arrive(membership, ping, 13.0, b"e"), Pace), "an evaluator needs each policy soon"
    assert len(membership.members) > count / 2, "silence between two pings ends no lease"
    for second in range(14, 40):
        arrive(membership, ping, float(second), b"e")
    assert list(membership.members) == [b"e"]


def test_a_worker_pings_every_second_again_when_most_others_have_left() -> None:
    membership = machine(dataclasses.replace(TERMS, inflight_transitions=10**6), ceiling=0)
    routes = [b"%d" % number for number in range(2 * PINGS_PER_SECOND)]
    for number, route in enumerate(routes):
        membership.handle(Arrived(0.0, route, replace(HELLO, pod=f"w-{number}")))
    (pace,) = sent(arrive(membership, Ping(5, 0, 0, 0, 0.0), route=routes[0]), Pace)
    assert pace.ping_seconds >= 1.0
    for route in routes[PINGS_PER_SECOND:]:
        arrive(membership, Bye(5, 0, "SIGTERM"), route=route)
    assert sent(arrive(membership, Ping(5, 0, 0, 0, 0.0), 1.0, routes[0]), Pace) == [Pace(5, 1.0)]
    assert not sent(arrive(membership, Ping(5, 0, 0, 0, 0.0), 2.0, routes[0]), Pace)


@pytest.mark.slow
def test_the_books_of_ten_thousand_members_cost_about_as_much_as_those_of_a_hundred() -> None:
    few, many = costs(100), costs(10_000)
    assert many.publish + many.pings <= 5 * (few.publish + few.pings)
    assert many.idle_pings <= 5 * few.idle_pings, "nobody may collect, so all ping"
    assert many.hellos <= 400 * few.hellos, "each joins at the same cost"


def test_a_state_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="accounts"):
        Accounts.from_state({"accounts": [{"nonsense": 1}]})


HELLOS = st.builds(
    replace,
    st.just(HELLO),
    pod=st.sampled_from(["w-0", "w-1"]),
    incarnation=st.integers(1, 2),
    oldest=st.integers(1, 3),
)


@st.composite
def bundles(draw: st.DrawFn) -> Segments:
    epoch, seq = draw(st.sampled_from([4, 5, 5, 5])), draw(st.integers(0, 6))
    versions, sizes = st.integers(0, 9), st.sampled_from([0, 8, 8, 8, 9])
    count = draw(st.integers(1, 4))
    return bundle(seq, *(row(draw(versions), draw(sizes)) for _ in range(count)), epoch=epoch)


MESSAGES = st.one_of(
    bundles(),
    st.builds(segment, st.integers(0, 6), st.integers(0, 9), st.sampled_from([4, 5, 5, 5]), st.integers(0, 9)),
    st.builds(Ping, st.sampled_from([4, 5, 5]), st.integers(0, 6), st.integers(0, 3), st.just(0), st.just(0.0)),
    HELLOS,
    st.builds(Bye, st.just(5), st.integers(0, 6), st.just("x")),
    st.just(RejoinRequest(5)),
)
SIZES = st.sampled_from([0, 79, 80, 80, 160, 240])
NON_FINITE = st.frozensets(st.integers(0, 3), max_size=1)


@dataclass(frozen=True)
class NextSegments:
    """Segments that a peer would send next, or its Hello. Random messages would hardly ever be accepted.

    Each is `ages` versions behind the learner's and has `sizes` transitions: some are accepted, others refused.
    """

    route: bytes
    ages: tuple[int, ...]
    sizes: tuple[int, ...]

    def arrival(self, membership: Membership, now: float) -> Arrived:
        member = membership.members.get(self.route)
        if member is None:
            return Arrived(now, self.route, replace(HELLO, pod=f"w-{self.route.decode()}", incarnation=3))
        versions = (max(0, membership.policy_version - age) for age in self.ages)
        rows = [row(version, size) for version, size in zip(versions, self.sizes, strict=True)]
        return Arrived(now, self.route, bundle(member.account.last_seq + 1, *rows), 10 * sum(self.sizes))


@st.composite
def next_segments(draw: st.DrawFn) -> NextSegments:
    ages, sizes = st.sampled_from([0, 0, 0, 4, 5]), st.sampled_from([8, 8, 8, 3, 0, 9])
    rows = draw(st.lists(st.tuples(ages, sizes), min_size=1, max_size=3))
    return NextSegments(draw(st.sampled_from([b"a", b"b"])), *zip(*rows, strict=True))


EVENTS = st.one_of(
    next_segments(),
    st.builds(Arrived, st.just(0.0), st.sampled_from([b"a", b"b", b"c"]), MESSAGES, SIZES, NON_FINITE),
    st.builds(Ticked, st.just(0.0), st.integers(0, 400)),
    st.builds(Published, st.integers(0, 9)),
    st.builds(MalformedMessage, st.just(b"a"), st.just(ProtocolError("noise"))),
)


def rows_of(event: object) -> int:
    message = event.message if isinstance(event, Arrived) else None
    return len(message.rows) if isinstance(message, Segments) else 0


AT_ONCE = [(MalformedMessage(b"a", ProtocolError("noise")), 1.0), *[(NextSegments(b"a", (0,), (8,)), 0.0)] * 2]
"""Segments at the moment of joining: no time has passed, over which a rate could be computed."""


@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.1, 1.0, 7.0])), max_size=60))
@example(AT_ONCE)
def test_the_accounts_are_exact_whatever_happens(events: list[tuple[object, float]]) -> None:
    membership = machine()
    now = 0.0
    stored_transitions = arrived = 0
    for template, passed in events:
        now += passed
        counted = membership.accounts.totals.received
        event = template
        if isinstance(template, NextSegments):
            event = template.arrival(membership, now)
        elif isinstance(template, Arrived | Ticked):
            event = dataclasses.replace(template, now=now)
        instructions = membership.handle(event)
        arrived += membership.accounts.totals.received - counted
        assert membership.accounts.totals.received - counted in {0, rows_of(event)}
        for keep in (instruction for instruction in instructions if isinstance(instruction, Keep)):
            size = sum(keep.rows.columns.transitions)
            assert keep.rows == event.message.table.part(keep.first, keep.first + len(keep.rows))
            stored_transitions += size
        members = membership.members.values()
        outstanding = sum(member.outstanding * member.hello.segment_transitions for member in members)
        assert membership.credits.inflight == outstanding
        assert outstanding <= TERMS.inflight_transitions
        for member in membership.members.values():
            assert member.outstanding <= TERMS.window
    totals = membership.accounts.totals
    assert membership.env_steps == totals.transitions == stored_transitions
    assert (
        totals.received
        == arrived
        == totals.accepted + totals.stale + totals.misfit + totals.duplicate + totals.early
    )
    for account in membership.accounts.by_name.values():
        assert account.last_seq == account.accepted + account.stale + account.misfit + account.lost
        assert account.sent == account.last_seq + account.missing
    assert totals.sent == totals.accepted + totals.stale + totals.misfit + totals.lost + totals.missing
    again = Accounts.from_state(membership.accounts.state())
    assert again.totals == totals


def test_rows_behind_the_transitions_are_counted_and_bounded() -> None:
    """A segment with a tail is longer; more rows than possible are a misfit, as are rows without a transition."""
    terms = dataclasses.replace(TERMS, tail_bytes=3)
    assert terms.most_bytes(8) == 8 * (10 + 2 * 3)
    membership = machine(terms)
    arrive(membership, HELLO)

    for seq, (tail, size) in enumerate([(16, 128), (16, 127), (17, 131), (0, 80)], 1):
        arrive(membership, bundle(seq, row()._replace(tail=tail)), size=size)
    totals = membership.accounts.totals
    assert (totals.accepted, totals.misfit) == (2, 2)
    plain = machine()
    arrive(plain, HELLO)
    arrive(plain, bundle(1, row()._replace(tail=1)))
    assert plain.accounts.totals.misfit == 1
