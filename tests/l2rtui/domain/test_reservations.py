"""Reservations: the slots of a place, permissions, the ledger and placement, and their text."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from l2rtui.domain import reservations as rules
from l2rtui.domain.change import NodeChanged, apply
from l2rtui.domain.ledger import DeviceUsage, Holder, SlotState, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node, SlotId, SlotReservation
from l2rtui.domain.placement import parse_pins, place
from l2rtui.domain.queue import released
from l2rtui.domain.reservations import MOST_TEXT, read_reservations, reservations_text
from l2rtui.domain.snapshot import ClusterSnapshot, PodView
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec

NOW = 1_750_000_000.0
UNTIL = NOW + 3600
ANNA = SlotReservation(0, 0, "anna", UNTIL, "figures")
TEXT = "reserved by anna until 2025-06-15 16:06 UTC (figures)"


def node(*reservations: SlotReservation, name: str = "n1", **facts: object) -> Node:
    gpus = tuple(Gpu(name, index, slots=2) for index in range(2))
    cpu = Gpu(name, CPU, slots=2, is_cpu=True)
    return Node(name, gpus, cpu=cpu, reservations=reservations, **facts)


def ids(*texts: str) -> tuple[SlotId, ...]:
    return tuple(map(SlotId.parse, texts))


def spec(replicas: int) -> RunSpec:
    workers = SetSpec("w", Role.WORKER, ("w",), replicas=replicas)
    return RunSpec(Kind.LEARNER_WORKERS, "r", "r", (workers,))


@pytest.mark.parametrize(
    ("places", "slots"),
    [
        (["n1/0"], ids("n1/0.0", "n1/0.1")),
        (["n1/1.1", "n1/0.0"], ids("n1/0.0", "n1/1.1")),
        (["n1/0-1.0,n1/cpu.1"], ids("n1/0.0", "n1/1.0", "n1/cpu.1")),
        (["n1"], ids("n1/0.0", "n1/0.1", "n1/1.0", "n1/1.1", "n1/cpu.0", "n1/cpu.1")),
    ],
)
def test_a_place_is_a_node_a_gpu_or_a_slot(places, slots):
    assert rules.slots_named(places, build_ledger([node()], [])) == slots


@pytest.mark.parametrize(
    ("place", "sentence"),
    [("n2", "there is no slot n2"), ("n1/0-2", "there is no slot n1/2"), ("n1/x", "names no slot")],
)
def test_a_place_that_is_not_there_is_named(place, sentence):
    with pytest.raises(ValueError, match=sentence):
        rules.slots_named([place], build_ledger([node()], []))


def test_a_time_has_bounds():
    assert rules.span_problem(3600) == ""
    assert "from 1 minute to 14 days" in rules.span_problem(1)
    assert rules.span_problem(15 * 86_400)


def test_a_slot_that_others_have_reserved_is_closed_and_ones_own_is_free():
    ledger = build_ledger([node(ANNA, replace(ANNA, slot=1, is_mine=True), replace(ANNA, slot=9))], [])
    theirs, mine = ledger.slots[ids("n1/0.0")[0]], ledger.slots[ids("n1/0.1")[0]]
    assert (theirs.state, theirs.is_withheld, theirs.use) == (SlotState.RESERVED, True, TEXT)
    assert (mine.state, mine.is_withheld, mine.use) == (SlotState.FREE, False, "free")
    assert ANNA.text == TEXT
    assert replace(ANNA, note="").text == TEXT.removesuffix(" (figures)")
    assert ledger.slots[ids("n1/1.0")[0]].reservation is None


def test_a_pod_on_a_reserved_slot_stays_and_a_node_that_is_off_is_off():
    holder = Holder("u", "p", "n1", "bob", "run", "w", (DeviceUsage(0, 0),))
    slot = build_ledger([node(ANNA)], [holder]).slots[ids("n1/0.0")[0]]
    assert (slot.state, slot.reservation, slot.use) == (SlotState.BUSY, ANNA, "held by p")
    assert released(build_ledger([node(ANNA)], [holder]), ["run"]).free() == build_ledger([node(ANNA)], []).free()
    off = build_ledger([node(ANNA, is_schedulable=False)], [])
    assert off.count(SlotState.OFF) == 6
    unplaced = Holder("u", "p", "n1", "bob", "run", "w", (DeviceUsage(None),))
    unsure = build_ledger([node(replace(ANNA, is_mine=True))], [unplaced]).slots[ids("n1/0.0")[0]]
    assert (unsure.state, unsure.reservation is None) == (SlotState.UNKNOWN, False)


def test_a_change_of_reservations_alone_makes_the_ledger_of_the_node_anew():
    pod = PodView("u", "p", "n1", devices=(DeviceUsage(1, 1),))
    snapshot = ClusterSnapshot({"n1": node()}, {"u": pod})
    assert snapshot.ledger.count(SlotState.RESERVED) == 0
    assert apply(snapshot, [NodeChanged(node(ANNA))]).ledger.count(SlotState.RESERVED) == 1


def test_placement_avoids_what_others_have_reserved_and_says_who():
    ledger = build_ledger([node(ANNA)], [])
    placed = place([spec(3)], ledger)
    assert [str(seat.slots[0]) for seat in placed.seats] == ["n1/0.1", "n1/1.0", "n1/1.1"]
    (conflict,) = place([spec(4)], ledger).conflicts
    assert "3 of 4 slots are free for the whole plan, 1 reserved by anna" in conflict
    for overcommit in (False, True):
        conflicts = place([spec(1)], ledger, pins=parse_pins("n1/0.0"), overcommit=overcommit).conflicts
        assert f"slot n1/0.0 is {TEXT}" in conflicts
    shared = place([spec(4)], ledger, overcommit=True)
    assert ids("n1/0.0")[0] not in [slot for seat in shared.seats for slot in seat.slots]
    pinned = place([spec(2)], ledger, pins=parse_pins("n1/1.1")).conflicts[0]
    assert "anna" not in pinned
    own = build_ledger([node(replace(ANNA, is_mine=True))], [])
    assert place([spec(4)], own).conflicts == ()


def test_a_slot_is_reserved_by_who_has_it_or_where_nobody_is():
    of_bob = Holder("u", "p", "n1", "bob", "run", "w", (DeviceUsage(1, 0),))
    nameless = Holder("v", "q", "n1", "", "", "", (DeviceUsage(1, 1),))
    ledger = build_ledger([node(ANNA)], [of_bob, nameless])
    assert rules.obstacle(ids("n1/0.1", "n1/1.0"), ledger, "bob") == ""
    assert rules.obstacle(ids("n1/1.0"), ledger, "anna") == "slot n1/1.0 is held by p of bob"
    assert rules.obstacle(ids("n1/1.1"), ledger, "anna") == "slot n1/1.1 is held by q"
    assert rules.obstacle(ids("n1/0.0"), ledger, "anna") == ""
    assert rules.obstacle(ids("n1/0.0"), ledger, "bob") == f"slot n1/0.0 is {TEXT}"
    assert rules.obstacle(ids("n9/0.0"), ledger, "bob") == "there is no slot n9/0.0"
    assert rules.reserved(ids("n1/0.0", "n1/0.1", "n9/0.0"), ledger) == [(ids("n1/0.0")[0], ANNA)]


def test_reservations_of_a_node_are_added_replaced_and_taken_away():
    added = rules.with_added((ANNA,), ids("n1/1.0", "n1/cpu.0"), "bob", UNTIL, " a\n\x1b[31m b  ")
    assert [(item.gpu, item.owner) for item in added] == [(CPU, "bob"), (0, "anna"), (1, "bob")]
    assert added[0].note == "a b" or "\x1b" not in added[0].note
    longer = rules.with_added((ANNA,), ids("n1/0.0"), "anna", UNTIL + 1, "")
    assert [(item.until, item.note) for item in longer] == [(UNTIL + 1, "")]
    assert rules.without(added, ids("n1/1.0", "n1/0.0")) == added[:1]
    assert rules.others_on((ANNA,), ids("n1/0.0"), "bob") == ANNA
    assert rules.others_on((ANNA,), ids("n1/0.0"), "anna") is None
    assert rules.others_on((ANNA,), ids("n1/0.1"), "bob") is None
    assert rules.by_node(ids("n2/0.0", "n1/0.0", "n1/0.1")) == {
        "n1": [*ids("n1/0.0", "n1/0.1")],
        "n2": [*ids("n2/0.0")],
    }


def test_their_text_is_read_back_and_what_is_over_is_left_out():
    reservations = (ANNA, replace(ANNA, slot=1, owner="bob", until=UNTIL + 60))
    text = reservations_text(reservations)
    assert reservations_text(()) == ""
    assert read_reservations(text, NOW, "bob") == (ANNA, replace(reservations[1], is_mine=True))
    assert read_reservations(text, UNTIL, "anna") == reservations[1:]
    assert read_reservations("", NOW, "anna") == ()
    double = [*json.loads(text), {"owner": "eve", "until": UNTIL, "slots": ["0.0"]}]
    assert read_reservations(json.dumps(double), NOW, "x")[0].owner == "anna"


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MOST_TEXT + 1),
        "{",
        "{}",
        "[" * 100_000,
        "[1]",
        '[{"until": 1e10, "slots": ["0.0"]}]',
        '[{"owner": "", "until": 1750003600, "slots": ["0.0"]}]',
        '[{"owner": "a", "until": true, "slots": ["0.0"]}]',
        '[{"owner": "a", "until": "x", "slots": ["0.0"]}]',
        '[{"owner": "a", "until": NaN, "slots": ["0.0"]}]',
        '[{"owner": "a", "until": 9999999999, "slots": ["0.0"]}]',
        '[{"owner": "a", "until": 1750003600, "slots": "0.0"}]',
        '[{"owner": "a", "until": 1750003600, "slots": [0, "x.0", "0.x", "0", "0.9999999999999"]}]',
    ],
)
def test_what_is_no_text_of_reservations_reserves_nothing(text):
    assert read_reservations(text, NOW, "a") == ()


def test_a_note_that_is_no_text_is_left_out_and_a_long_one_is_cut():
    entries = [
        {"owner": "a", "until": UNTIL, "note": note, "slots": [f"0.{n}"]} for n, note in enumerate((7, "x" * 999))
    ]
    assert [len(item.note) for item in read_reservations(json.dumps(entries), NOW, "a")] == [0, 100]
