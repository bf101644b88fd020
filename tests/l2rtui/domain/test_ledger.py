"""The ledger: every case by name, and the invariant that a held slot never looks free."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.ledger import Basis, Count, DeviceUsage, Holder, Ledger, NodeLedger, SlotState, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node, Resource, SlotId, SlotReservation


def node(name="n", gpus=2, slots=4, **state):
    return Node(name, tuple(Gpu(name, index, slots=slots) for index in range(gpus)), **state)


def holder(pod, *devices, on="n", **state):
    return Holder(f"uid-{pod}", pod, on, "me", "run", "w", devices, **state)


def states(ledger: Ledger, name="n", gpu=0):
    return "".join(
        {"free": ".", "busy": "B", "unknown": "?", "off": "-", "failed": "F"}[slot.state]
        for slot in ledger.of_gpu(name, gpu)
    )


def test_an_empty_node_is_free():
    ledger = build_ledger([node()], [])
    assert ledger.count(SlotState.FREE) == 8
    assert ledger.free()[0] == SlotId("n", 0, 0)
    assert list(ledger.slots) == sorted(ledger.slots)
    assert ledger.problems == ()


def test_a_numbered_claim_takes_its_slot_and_names_its_holder():
    ledger = build_ledger([node()], [holder("p", DeviceUsage(0, 2))])
    slot = ledger.slots[SlotId("n", 0, 2)]
    assert states(ledger) == "..B."
    assert (slot.state, slot.owner, slot.run, slot.set_name, slot.pod, slot.pod_uid) == (
        SlotState.BUSY, "me", "run", "w", "p", "uid-p",
    )  # fmt: skip
    assert SlotId("n", 0, 2) not in ledger.free()


def test_slots_that_are_taken_before_their_pods_can_be_seen_are_busy():
    ledger = build_ledger([node(gpus=1)], [holder("p", DeviceUsage(0, 0))])
    later = ledger.without([SlotId("n", 0, 0), SlotId("n", 0, 2), SlotId("gone", 0, 0)])
    assert [str(slot) for slot in later.free()] == ["n/0.1", "n/0.3"]
    assert later.slots[SlotId("n", 0, 0)].pod == "p"
    assert len(ledger.free()) == 3


def test_only_free_slots_are_taken_before_their_pods_can_be_seen():
    mine, theirs = SlotReservation(0, 0, "x", 1e12, is_mine=True), SlotReservation(0, 1, "x", 1e12)
    held = replace(node(gpus=1), reservations=(mine, theirs))
    ledger = build_ledger([held, node("off", gpus=1, ready=False)], [])
    later = ledger.without(ledger.slots)
    assert {slot.state for slot in later.of_gpu("off", 0)} == {SlotState.OFF}
    assert [slot.state for slot in later.of_gpu("n", 0)] == [
        SlotState.BUSY, SlotState.RESERVED, SlotState.BUSY, SlotState.BUSY,
    ]  # fmt: skip


def test_a_reservation_of_a_slot_that_the_device_no_longer_has_is_left_out():
    reservations = tuple(SlotReservation(0, slot, "x", 1e12) for slot in (3, 4, 9))
    ledger = build_ledger([replace(node(gpus=1), reservations=reservations)], [])
    assert [slot.state for slot in ledger.of_gpu("n", 0)] == [SlotState.FREE] * 3 + [SlotState.RESERVED]


def test_a_failing_holder_still_holds():
    assert states(build_ledger([node()], [holder("p", DeviceUsage(0, 0), is_failing=True)])) == "F..."


def test_an_unnumbered_claim_takes_the_highest_free_slots_whoever_comes_first():
    holders = [holder("a", DeviceUsage(0, None, 2)), holder("b", DeviceUsage(0, 3))]
    for order in (holders, holders[::-1]):
        ledger = build_ledger([node()], order)
        assert states(ledger) == ".BBB"
        assert ledger.slots[SlotId("n", 0, 3)].pod == "b"
        assert ledger.problems == ()


def test_a_claim_on_an_unknown_device_makes_the_free_slots_of_its_node_unknown():
    ledger = build_ledger([node(), node("m")], [holder("p", DeviceUsage(None)), holder("q", DeviceUsage(1, 0))])
    assert (states(ledger), states(ledger, gpu=1), states(ledger, "m")) == ("????", "B???", "....")
    assert ledger.unplaced == {"n": ("p",)}


def test_pods_that_may_not_be_listed_leave_unknown_slots():
    ledger = build_ledger([node(is_use_known=False)], [holder("p", DeviceUsage(0, 1))])
    assert states(ledger) == "?B??"
    assert ledger.free() == ()


def test_a_node_that_is_down_or_cordoned_is_off_and_still_shows_holders():
    for state in ({"ready": False}, {"is_schedulable": False}):
        ledger = build_ledger([node(**state)], [holder("p", DeviceUsage(0, 1)), holder("q", DeviceUsage(None))])
        assert states(ledger) == "-B--"


def test_two_on_one_slot_are_told_and_the_first_is_shown():
    ledger = build_ledger([node()], [holder("b", DeviceUsage(0, 0)), holder("a", DeviceUsage(0, 0))])
    assert ledger.slots[SlotId("n", 0, 0)].pod == "a"
    assert ledger.problems == ("b and a both hold slot n/0.0",)
    assert ledger.mismatches == dict.fromkeys(("uid-a", "uid-b"), ledger.problems)


def test_a_device_that_is_not_there_is_told():
    ledger = build_ledger(
        [node()],
        [
            holder("p", DeviceUsage(7, 0)),
            holder("q", DeviceUsage(0, 0), on="gone"),
            holder("r", DeviceUsage(0), on=""),
        ],
    )
    assert ledger.problems == (
        "p names device 7 of n, which has no such device",
        "q names the node gone, which is not in the cluster",
    )
    assert states(ledger) == "...."


def test_more_than_a_device_has_is_over_committed():
    ledger = build_ledger(
        [node()],
        [
            holder("p", DeviceUsage(0, None, 3)),
            holder("q", DeviceUsage(0, None, 3)),
            holder("r", DeviceUsage(1, 9)),
        ],
    )
    assert states(ledger) == "BBBB"
    assert len(ledger.problems) == 2
    assert all("over-committed" in problem for problem in ledger.problems)


USAGES = st.builds(
    DeviceUsage,
    gpu=st.one_of(st.none(), st.integers(0, 3)),
    slot=st.one_of(st.none(), st.integers(0, 5)),
    count=st.integers(1, 6),
)
HOLDERS = st.lists(
    st.builds(
        lambda pod, on, devices, is_failing: holder(pod, *devices, on=on, is_failing=is_failing),
        pod=st.sampled_from("pqrstu"),
        on=st.sampled_from(["n", "m", "gone"]),
        devices=st.lists(USAGES, max_size=3),
        is_failing=st.booleans(),
    ),
    max_size=6,
)
NODES = st.builds(
    lambda first, second, gpus, slots: [
        replace(node("n", gpus, slots), **first),
        replace(node("m", gpus, slots), **second),
    ],
    first=st.fixed_dictionaries({}, optional={"ready": st.booleans(), "is_use_known": st.booleans()}),
    second=st.fixed_dictionaries({}, optional={"is_schedulable": st.booleans()}),
    gpus=st.integers(0, 3),
    slots=st.integers(0, 4),
)


@given(NODES, HOLDERS)
def test_a_held_slot_never_looks_free(nodes, holders):
    ledger = build_ledger(nodes, holders)
    unnumbered: Counter[tuple[str, int]] = Counter()
    for one in holders:
        for usage in one.devices:
            if usage.gpu is None:
                assert not [slot for slot in ledger.free() if slot.node == one.node]
            elif usage.slot is None:
                unnumbered[one.node, usage.gpu] += usage.count
            else:
                assert SlotId(one.node, usage.gpu, usage.slot) not in ledger.free()
    for (on, gpu), count in unnumbered.items():
        slots = ledger.of_gpu(on, gpu)
        free = sum(slot.state is SlotState.FREE for slot in slots)
        assert free <= max(0, len(slots) - count)


@given(NODES, HOLDERS)
def test_every_slot_appears_once_and_free_ones_have_no_holder(nodes, holders):
    ledger = build_ledger(nodes, holders)
    assert list(ledger.slots) == [slot for one in nodes for gpu in one.gpus for slot in gpu.slot_ids()]
    assert sum(ledger.count(state) for state in SlotState) == len(ledger.slots)
    for slot in ledger.slots.values():
        assert (slot.state in (SlotState.BUSY, SlotState.FAILED)) == bool(slot.pod)


@given(NODES, HOLDERS)
def test_the_order_of_pods_does_not_matter_to_what_is_free(nodes, holders):
    assert build_ledger(nodes, holders).free() == build_ledger(nodes, holders[::-1]).free()


def test_what_does_not_fit_together_is_told_once():
    there = replace(
        holder("p", DeviceUsage(7)), flags=("names device 7 of n, which has no such device", "sees all GPUs")
    )
    idle = replace(holder("q"), flags=("sees all GPUs",))
    assert build_ledger([node()], [there, idle]).problems == (
        "p names device 7 of n, which has no such device",
        "p sees all GPUs",
        "q sees all GPUs",
    )


def test_a_pod_that_does_not_fit_its_place_is_flagged_in_its_slots():
    astray = replace(
        holder("p", DeviceUsage(0, 1)), flags=("names device 3, its plan says 0", "is on n, its plan says m")
    )
    ledger = build_ledger([node()], [astray, holder("q", DeviceUsage(0, 2))])
    assert ledger.mismatches == {"uid-p": ("p names device 3, its plan says 0", "p is on n, its plan says m")}
    assert [slot.id.slot for slot in ledger.slots.values() if slot.is_mismatched] == [1]
    # It is repaired, and only its node is checked again.
    mended = build_ledger([node()], [holder("p", DeviceUsage(0, 1))], Basis(ledger, frozenset("n")))
    assert not mended.mismatches
    assert not any(slot.is_mismatched for slot in mended.slots.values())


def test_slots_of_unknown_devices_are_counted_by_node():
    ledger = build_ledger(
        [node(), node("m")], [holder("p", DeviceUsage(None, None, 4)), holder("q", DeviceUsage(None))]
    )
    assert (ledger.nodes["n"].unplaced, ledger.nodes["n"].unplaced_slots) == (("p", "q"), 5)
    assert ledger.nodes["m"].unplaced_slots == 0


def test_an_untouched_node_keeps_its_part():
    before = build_ledger(
        [node(), node("m")], [holder("p", DeviceUsage(0, 0)), holder("q", DeviceUsage(0, 0), on="m")]
    )
    after = build_ledger([node(), node("m")], [holder("r", DeviceUsage(1, 0))], Basis(before, frozenset({"n"})))
    assert after.nodes["m"] is before.nodes["m"]
    assert (states(after), states(after, gpu=1), states(after, "m")) == ("....", "B...", "B...")


@given(NODES, HOLDERS, NODES, HOLDERS)
def test_building_on_an_earlier_ledger_gives_the_same_as_building_anew(nodes, holders, new_nodes, new_holders):
    basis = Basis(build_ledger(nodes, holders), frozenset())
    touched = {"n", "m", "gone"}  # two arbitrary worlds differ in everything
    assert build_ledger(new_nodes, new_holders, basis.touching(touched)) == build_ledger(new_nodes, new_holders)
    on_n = [one for one in new_holders if one.node == "n"]
    mixed = [*on_n, *(one for one in holders if one.node != "n")]
    mixed_nodes = [new_nodes[0], nodes[1]]
    built = build_ledger(mixed_nodes, on_n, basis.touching({"n"}))
    anew = build_ledger(mixed_nodes, mixed)
    assert (dict(built.slots), built.unplaced, set(built.problems)) == (
        dict(anew.slots),
        anew.unplaced,
        set(anew.problems),
    )


def workstation(**state):
    return Node("n", (Gpu("n", 0),), cpu=Gpu("n", CPU, slots=3, is_cpu=True), **state)


def test_cpu_slots_are_held_and_counted_beside_those_of_gpus():
    ledger = build_ledger([workstation()], [holder("p", DeviceUsage(CPU, 1)), holder("q", DeviceUsage(0, 1))])
    assert (states(ledger), states(ledger, gpu=CPU)) == (".B..", ".B.")
    assert [slot.is_cpu for slot in ledger.slots.values()] == [False] * 4 + [True] * 3
    assert ledger.count(SlotState.FREE) == 5
    assert ledger.slots[SlotId("n", CPU, 1)].use == "held by p"
    assert ledger.slots[SlotId("n", CPU, 0)].use == "free"


def test_a_gpu_that_is_not_known_is_no_cpu():
    ledger = build_ledger([workstation()], [holder("p", DeviceUsage(None))])
    assert (states(ledger), states(ledger, gpu=CPU)) == ("????", "...")


def test_cpu_slots_whose_use_cannot_be_seen_are_unknown():
    ledger = build_ledger([workstation(is_use_known=False)], [])
    assert states(ledger, gpu=CPU) == "???"
    assert (ledger.has_cpu_slots(), ledger.has_cpu_slots(is_use_known=False)) == (False, True)
    assert not build_ledger([node()], []).has_cpu_slots(is_use_known=False)


def test_a_cpu_that_is_not_there_is_named():
    ledger = build_ledger([node()], [holder("p", DeviceUsage(CPU, 0))])
    assert ledger.problems == ("p names device cpu of n, which has no such device",)


def test_all_pods_on_an_overcommitted_slot_are_named():
    pods = [holder(pod, DeviceUsage(0, 0)) for pod in "abc"]
    slot = build_ledger([node()], pods).slots[SlotId("n", 0, 0)]
    assert (slot.pod, slot.sharing) == ("a", ("b", "c"))


def with_cards(cards=3, **state):
    others = tuple(Gpu("n", 1 + index, slots=1, resource="amd.com/gpu") for index in range(cards))
    return Node("n", (Gpu("n", 0, slots=2), *others), **state)


def cards(ledger: Ledger):
    return [(slot.id.gpu, slot.state, slot.pod) for slot in ledger.slots.values() if slot.resource]


def test_devices_that_a_plugin_chose_count_from_the_last_and_leave_gpus_free():
    ledger = build_ledger([with_cards()], [holder("p", DeviceUsage(None, None, 2, "amd.com/gpu"))])
    assert cards(ledger) == [(1, SlotState.FREE, ""), (2, SlotState.BUSY, "p"), (3, SlotState.BUSY, "p")]
    assert states(ledger) == ".."
    assert not ledger.problems
    assert not ledger.unplaced


def test_a_device_that_is_known_is_taken_before_the_plugin_chooses_among_the_rest():
    chosen, known = holder("a", DeviceUsage(None, None, 1, "amd.com/gpu")), holder("b", DeviceUsage(3, 0))
    for order in ([chosen, known], [known, chosen]):
        ledger = build_ledger([with_cards()], order)
        assert cards(ledger) == [(1, SlotState.FREE, ""), (2, SlotState.BUSY, "a"), (3, SlotState.BUSY, "b")]
        assert ledger.problems == ()


def test_an_unknown_gpu_leaves_devices_of_plugins_free():
    ledger = build_ledger([with_cards()], [holder("p", DeviceUsage(None))])
    assert states(ledger) == "??"
    assert {state for _, state, _ in cards(ledger)} == {SlotState.FREE}


def test_more_devices_of_a_plugin_than_there_are_is_told():
    usage = DeviceUsage(None, None, 2, "amd.com/gpu")
    ledger = build_ledger([with_cards()], [holder("a", usage), holder("b", usage)])
    assert ledger.problems == ("b holds 2 amd.com/gpu of n, which has 1 left",)
    assert all(state is SlotState.BUSY for _, state, _ in cards(ledger))


def test_devices_of_a_node_that_may_not_be_listed_are_unplaced():
    ledger = build_ledger([], [holder("p", DeviceUsage(None, None, 2, "amd.com/gpu"))])
    assert ledger.unplaced == {"n": ("p",)}
    assert not ledger.problems


def test_a_device_that_a_pod_may_use_is_unknown_and_names_it():
    ledger = build_ledger([node()], [holder("p", DeviceUsage(0, is_unsure=True), DeviceUsage(1, is_unsure=True))])
    for gpu in (0, 1):
        assert states(ledger, gpu=gpu) == "...?"
        assert ledger.of_gpu("n", gpu)[-1].pod == "p"


def test_a_pod_that_may_use_as_many_gpus_as_there_are_is_not_said_to_use_them_all():
    surely = build_ledger([node()], [holder("p", DeviceUsage(None, count=8), is_bound=True)])
    assert states(surely) == states(surely, gpu=1) == "BBBB"
    maybe = build_ledger([node()], [holder("p", DeviceUsage(None, count=8, is_unsure=True), is_bound=True)])
    assert states(maybe) == states(maybe, gpu=1) == "????"


def test_the_reservation_of_a_slot_is_named_to_others_alone():
    mine, theirs = SlotReservation(0, 0, "me", 2e9, is_mine=True), SlotReservation(0, 1, "anna", 2e9)
    ledger = build_ledger([replace(node(gpus=1), reservations=(mine, theirs))], [])
    own, other, free, _ = ledger.of_gpu("n", 0)
    assert (own.use, free.use) == ("free", "free")
    assert other.use == theirs.text
    assert "anna" in other.use


def test_pods_on_unknown_gpus_are_said_with_the_units_that_the_plugin_counts():
    whole = Count(Resource("nvidia.com/gpu", 8, 8), 3)
    shares = Count(Resource("nvidia.com/gpu.shared", 16, 16, is_share=True), 2)
    idle = Count(Resource("nvidia.com/gpu.other", 4, 4), 0)
    counts = {count.resource.name: count for count in (whole, shares, idle)}
    assert NodeLedger({}, unplaced=("p", "q", "p"), counts=counts).unseen == (
        "3 of 8 GPUs in use through the device plugin and "
        "2 of 16 shares of GPUs in use through the device plugin (p, q)"
    )
    assert NodeLedger({}, unplaced=("p", "q", "r", "s", "t")).unseen == (
        "GPUs are used that cannot be told apart (p, q, r and 2 more)"
    )
    assert NodeLedger({}).unseen == ""
