"""Placement: pins and seeds in user notation, and seats that never clash."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.containers import LabelRule, PodSettings, Scheduling, Toleration
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, Holder, SlotState, build_ledger
from l2rtui.domain.node import CPU, Gpu, GpuUse, Node, SlotId, Taint
from l2rtui.domain.placement import (
    Pin,
    PlacementPolicy,
    Seat,
    bound_to_cpu,
    can_wait,
    parse_pins,
    parse_seeds,
    place,
)
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec


def ledger(nodes=1, gpus=2, slots=4, held=()):
    every = [
        Node(f"n{number}", tuple(Gpu(f"n{number}", index, slots=slots) for index in range(gpus)))
        for number in range(nodes)
    ]
    return build_ledger(every, holders(held))


def holders(held):
    return [
        Holder(f"u{number}", f"other-{number}", slot.node, "u1", "", "", (DeviceUsage(slot.gpu, slot.slot),))
        for number, slot in enumerate(map(SlotId.parse, held))
    ]


def run(name="r", *sets):
    return RunSpec(Kind.LEARNER_WORKERS, name, name, sets)


def workers(replicas, slots=1, name="w"):
    return SetSpec(name, Role.WORKER, ("w",), replicas=replicas, slots=slots)


def slots_of(placement):
    return [" ".join(map(str, seat.slots)) for seat in placement.seats]


def test_pack_fills_one_device_after_the_other():
    placed = place([run("r", workers(5))], ledger())
    assert slots_of(placed) == ["n0/0.0", "n0/0.1", "n0/0.2", "n0/0.3", "n0/1.0"]
    assert [seat.pod for seat in placed.seats] == [f"r-w-{index}" for index in range(5)]


def test_spread_goes_round():
    placed = place([run("r", workers(5))], ledger(), policy=PlacementPolicy.SPREAD)
    assert slots_of(placed) == ["n0/0.0", "n0/1.0", "n0/0.1", "n0/1.1", "n0/0.2"]


def measured(*uses, **machine):
    gpus = tuple(Gpu("n0", use.gpu, memory_bytes=80) for use in uses)
    cpu = Gpu("n0", CPU, slots=2, is_cpu=True)
    return Node("n0", (*gpus, Gpu("n0", len(uses))), gpu_use=uses, cpu=cpu, **machine)


BUSY = measured(GpuUse(0, 95.0, 10), GpuUse(1, 5.0, 70), GpuUse(2, 20.0, 40))


@pytest.mark.parametrize(
    ("policy", "slots"),
    [
        # 5, then 30 with the first replica on it: the next is at 20, then both have their share.
        (PlacementPolicy.LEAST_BUSY, ["n0/1.0", "n0/2.0", "n0/1.1", "n0/2.1", "n0/1.2", "n0/2.2"]),
        # 70 free, each replica takes 20 of it; 40 free on the third GPU, 10 on the second.
        (PlacementPolicy.FREE_MEMORY, ["n0/0.0", "n0/0.1", "n0/2.0", "n0/0.2", "n0/2.1", "n0/0.3"]),
    ],
)
def test_replicas_go_where_most_is_left_and_count_as_their_share(policy, slots):
    cluster = build_ledger([BUSY], [])
    placed = place([run("r", workers(6))], cluster, policy=policy, nodes=[BUSY])
    assert slots_of(placed) == slots
    # The unmeasured device is last, and takes the replicas for which the others have no slots.
    filled = place([run("r", workers(14))], cluster, policy=policy, nodes=[BUSY])
    assert slots_of(filled)[-2:] == ["n0/3.0", "n0/3.1"]
    # Without any measurement they are placed in turn.
    assert slots_of(place([run("r", workers(3))], cluster, policy=policy)) == ["n0/0.0", "n0/1.0", "n0/2.0"]


def test_the_load_of_a_machine_counts_for_its_cpu_slots():
    nodes = [
        replace(Node(name, (Gpu(name, 0, slots=2, is_cpu=True),), cpu_cores=8.0, memory_bytes=100), **use)
        for name, use in (
            ("a", {"cpu_used": 6.0, "memory_used_bytes": 10}),
            ("b", {"cpu_used": 1.0, "memory_used_bytes": 90}),
        )
    ]
    for policy, name in ((PlacementPolicy.LEAST_BUSY, "b"), (PlacementPolicy.FREE_MEMORY, "a")):
        placed = place([run("r", without_gpu(1))], build_ledger(nodes, []), policy=policy, nodes=nodes)
        assert slots_of(placed) == [f"{name}/0.0"]


def test_an_elastic_job_goes_round_the_gpus_though_one_is_idle():
    nodes = replace(workers(3), bounds=(1, 4))
    idle = measured(GpuUse(0, 0.0), GpuUse(1, 90.0), GpuUse(2, 90.0))
    placed = place([run("r", nodes)], build_ledger([idle], []), policy=PlacementPolicy.LEAST_BUSY, nodes=[idle])
    assert len({seat.slots[0].gpu for seat in placed.seats}) == 3


def test_elastic_nodes_go_round_the_gpus_whatever_the_policy_also_when_scaled():
    nodes = replace(workers(3), bounds=(1, 4))
    placed = place([run("r", nodes)], ledger(gpus=3))
    assert slots_of(placed) == ["n0/0.0", "n0/1.0", "n0/2.0"]
    more = replace(nodes, replicas=4)
    added = place([run("r", more)], ledger(gpus=4, held=["n0/0.0", "n0/1.0", "n0/2.0"]), existing=placed.seats)
    assert slots_of(added) == ["n0/3.0"]
    # Slots named individually are taken in the named order.
    exact = place([run("r", replace(nodes, replicas=2))], ledger(), pins=parse_pins("n0/1.0-1,n0/0.0"))
    assert slots_of(exact) == ["n0/1.0", "n0/1.1"]


def test_several_slots_of_a_replica_are_on_one_device():
    placed = place([run("r", workers(2, slots=3))], ledger())
    assert slots_of(placed) == ["n0/0.0 n0/0.1 n0/0.2", "n0/1.0 n0/1.1 n0/1.2"]


def test_a_replica_without_a_device_needs_no_slot():
    placed = place([run("r", workers(2, slots=0))], ledger(gpus=0))
    assert [seat.slots for seat in placed.seats] == [(), ()]
    assert placed.conflicts == ()


def test_what_finds_no_place_is_said_in_a_sentence():
    placed = place([run("r", workers(4, slots=3))], ledger())
    assert len(placed.seats) == 2
    assert placed.conflicts == (
        ("r/w: 2 of 4 replicas of 3 slots on one device do not fit (8 of 8 slots are free for the whole plan)"),
    )


def test_held_slots_are_passed_over():
    assert slots_of(place([run("r", workers(2))], ledger(held=["n0/0.0", "n0/0.2"]))) == ["n0/0.1", "n0/0.3"]


def test_pins_are_used_alone_and_in_their_order():
    pins = parse_pins("n0/1.2,n0/0,n0/1.2")
    placed = place([run("r", workers(6))], ledger(), pins=pins)
    assert slots_of(placed) == ["n0/1.2", "n0/0.0", "n0/0.1", "n0/0.2", "n0/0.3"]
    assert placed.conflicts == (
        ("r/w: 1 of 6 replicas does not fit among n0/1.2, n0/0, n0/1.2 (5 of 5 slots are free for the whole plan)"),
    )


def test_who_holds_the_slots_of_pinned_devices_is_said():
    """Of the pinned devices alone: a free CPU or another GPU does not help."""
    held = ["n0/0.0", "n0/0.1", "n0/0.2", "n0/0.3", "n0/1.0"]
    for gpus, said in (
        ("n0/1", "(3 of 4 slots are free for the whole plan; n0/1.0 is held by other-4 (u1))"),
        (
            "n0/0",
            (
                "(0 of 4 slots are free for the whole plan; n0/0.0 is held by other-0 (u1); n0/0.1 is held by "
                "other-1 (u1); n0/0.2 is held by other-2 (u1) and 1 more is held)"
            ),
        ),
    ):
        (conflict,) = place([run("r", workers(5))], ledger(held=held), pins=parse_pins(gpus)).conflicts
        assert conflict.endswith(f"not fit among {gpus} {said}")
    unowned = [Holder("u", "theirs", "n0", "", "", "", (DeviceUsage(0, 0),))]
    cluster = build_ledger([Node("n0", (Gpu("n0", 0, slots=1),))], unowned)
    (conflict,) = place([run("r", workers(1))], cluster, pins=parse_pins("n0/0")).conflicts
    assert conflict.endswith("(0 of 1 slot are free for the whole plan; n0/0.0 is held by theirs)")


@pytest.mark.parametrize(
    ("number", "pins", "said"),
    [
        (1, (), "(0 of 1 slot are free for the whole plan; n0 is cordoned or not ready)"),
        (5, (), "(0 of 5 slots are free for the whole plan; n0, n1, n2 and 2 more are cordoned or not ready)"),
        (5, "n1/0,n3/0", "(0 of 2 slots are free for the whole plan; n1, n3 are cordoned or not ready)"),
    ],
)
def test_nodes_that_are_off_are_named(number, pins, said):
    nodes = [Node(f"n{index}", (Gpu(f"n{index}", 0, slots=1),), is_schedulable=False) for index in range(number)]
    placed = place([run("r", workers(1))], build_ledger(nodes, []), pins=parse_pins(pins) if pins else ())
    assert placed.conflicts[0].endswith(said)


def test_pins_that_cannot_be_had_are_named_with_their_holder():
    placed = place([run("r", workers(1))], ledger(held=["n0/0.0"]), pins=parse_pins("n0/0.0,n0/9,n5/0.1,n0/1"))
    assert placed.conflicts == (
        "slot n0/0.0 is held by other-0",
        "no slot n0/9 is known; `l2rtui slots` lists them",
        "no slot n5/0.1 is known; `l2rtui slots` lists them",
    )
    assert slots_of(placed) == ["n0/1.0"]


def test_a_pin_on_an_unknown_slot_has_no_holder_to_name():
    cluster = build_ledger([Node("n0", (Gpu("n0", 0),), is_use_known=False)], [])
    assert place([run("r")], cluster, pins=parse_pins("n0/0.0")).conflicts == ("slot n0/0.0 is unknown",)


def test_seats_that_exist_are_kept_out_of_the_result():
    taken = [Seat("r", "w", 1, (SlotId("n0", 0, 1),))]
    placed = place([run("r", workers(3))], ledger(held=["n0/0.1"]), existing=taken)
    assert [(seat.index, str(seat.slots[0])) for seat in placed.seats] == [(0, "n0/0.0"), (2, "n0/0.2")]


@pytest.mark.parametrize(
    ("text", "pins"),
    [
        ("n1/0", ["n1/0"]),
        ("n1/3.2", ["n1/3.2"]),
        ("n1/0-2", ["n1/0", "n1/1", "n1/2"]),
        ("n1/5.0-1", ["n1/5.0", "n1/5.1"]),
        ("n1/0-1.0-1", ["n1/0.0", "n1/0.1", "n1/1.0", "n1/1.1"]),
        (" n1/0 , gpu-7.lab/2.1 ", ["n1/0", "gpu-7.lab/2.1"]),
        ("n1/4-4", ["n1/4"]),
    ],
)
def test_pins_are_read(text, pins):
    assert [str(pin) for pin in parse_pins(text)] == pins


GARBAGE = [
    "", ",", "n1", "n1/", "/0", "n1/a", "n1/0.", "n1/0-", "n1/2-1", "n1/0.3-1", "n1/0,", "n1/0;n2/0", "n1/-1",
    "n1/\u0663", "n1/0-9999999", "n1/0." + "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", GARBAGE)
def test_pins_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"names no slot|is not a range|limit"):
        parse_pins(text)


@given(st.one_of(st.text(), st.text("n1/.-,0 ")))
def test_any_text_is_pins_or_a_value_error(text):
    with suppress(ValueError):
        pins = parse_pins(text)
        assert pins
        assert parse_pins(",".join(map(str, pins))) == pins


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0-11", tuple(range(12))),
        ("1,5,7", (1, 5, 7)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("3,1,3", (3, 1)),
        (" 2 , 4 ", (2, 4)),
        ("7-7", (7,)),
        ("5000-5002", (5000, 5001, 5002)),
        ("9000-13096", tuple(range(9000, 13097))),
    ],
)
def test_seeds_are_read(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a",
        "-1",
        "1-",
        "3-1",
        "1;2",
        "1.5",
        "0-5000",
        "9000-13097",
        "\u0663",
        "1 2",
        "9" * 5000,
        "2147483647-2147483648",
    ],
)
def test_seeds_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match=r"is not a seed|is not a range|limit"):
        parse_seeds(text)


@given(st.one_of(st.text(), st.text("0123456789-, ")))
def test_any_text_is_seeds_or_a_value_error(text):
    with suppress(ValueError):
        seeds = parse_seeds(text)
        assert seeds
        assert len(set(seeds)) == len(seeds)


SETS = st.lists(
    st.builds(workers, replicas=st.integers(0, 6), slots=st.integers(0, 5)), min_size=1, max_size=3
).map(lambda sets: [SetSpec(f"w{n}", Role.WORKER, ("w",), one.replicas, one.slots) for n, one in enumerate(sets)])
LEDGERS = st.builds(
    ledger,
    nodes=st.integers(0, 2),
    gpus=st.integers(0, 3),
    slots=st.integers(1, 4),
    held=st.lists(
        st.sampled_from([f"n{n}/{g}.{s}" for n in (0, 1) for g in (0, 1) for s in (0, 1, 2)]), unique=True
    ),
)
PINS = st.lists(
    st.builds(Pin, st.sampled_from(["n0", "n1", "n9"]), st.integers(0, 3), st.one_of(st.none(), st.integers(0, 4))),
    max_size=4,
)


@given(SETS, LEDGERS, st.sampled_from(PlacementPolicy), PINS)
def test_seats_never_clash_and_nobody_is_forgotten(sets, cluster, policy, pins):
    specs = [run("a", *sets), run("b", *sets)]
    placed = place(specs, cluster, policy=policy, pins=pins)
    used = Counter(slot for seat in placed.seats for slot in seat.slots)
    assert all(count == 1 for count in used.values())
    assert all(cluster.slots[slot].state is SlotState.FREE for slot in used)
    for seat in placed.seats:
        wanted = next(one for one in sets if one.name == seat.set_name)
        assert len(seat.slots) == wanted.slots
        assert len({(slot.node, slot.gpu) for slot in seat.slots}) <= 1
    if pins:
        assert all(any((p.node, p.gpu) == (s.node, s.gpu) and p.slot in (None, s.slot) for p in pins) for s in used)
    seated = Counter((seat.run, seat.set_name) for seat in placed.seats)
    for spec in specs:
        for one in spec.sets:
            is_short = seated[spec.name, one.name] < one.replicas
            assert is_short == any(text.startswith(f"{spec.name}/{one.name}:") for text in placed.conflicts)
    assert len({seat.pod for seat in placed.seats}) == len(placed.seats)


def test_pins_of_single_slots_are_taken_in_the_order_in_which_they_are_named():
    pins = parse_pins("n0/0.0,n0/1.3,n0/0.1")
    assert slots_of(place([run("r", workers(3))], ledger(), pins=pins)) == ["n0/0.0", "n0/1.3", "n0/0.1"]
    pairs = parse_pins("n0/1.2-3,n0/0.0-1")
    assert slots_of(place([run("r", workers(2, slots=2))], ledger(), pins=pairs)) == [
        "n0/1.2 n0/1.3",
        "n0/0.0 n0/0.1",
    ]


def by_plugin(replicas, name="w"):
    settings = PodSettings(binding=Binding.DEVICE_PLUGIN)
    return SetSpec(name, Role.WORKER, ("w",), replicas=replicas, pod=settings)


def test_overcommit_takes_free_slots_first_and_says_which_are_held():
    placed = place([run("r", workers(4))], ledger(gpus=1, held=["n0/0.0", "n0/0.1"]), overcommit=True)
    assert slots_of(placed) == ["n0/0.2", "n0/0.3", "n0/0.0", "n0/0.1"]
    assert placed.overcommitted == (SlotId("n0", 0, 0), SlotId("n0", 0, 1))
    assert placed.conflicts == ()


def test_overcommit_puts_as_many_on_a_slot_as_it_takes_and_evenly():
    placed = place([run("r", workers(11))], ledger(gpus=1), overcommit=True)
    assert sorted(Counter(slot for seat in placed.seats for slot in seat.slots).values()) == [2, 3, 3, 3]
    assert placed.conflicts == ()
    assert placed.overcommitted == tuple(SlotId("n0", 0, slot) for slot in range(4))


def test_overcommit_takes_the_slot_with_the_fewest_pods_of_others():
    held = ["n0/0.0", "n0/0.0", "n0/0.1", "n0/0.2", "n0/0.2"]
    placed = place([run("r", workers(1))], ledger(gpus=1, slots=3, held=held), overcommit=True)
    assert slots_of(placed) == ["n0/0.1"]


@pytest.mark.parametrize(("number", "end"), [(3, "which ones is not known)"), (4, "; and 1 more node)")])
def test_nodes_with_gpus_of_unknown_use_are_named_up_to_three(number, end):
    somewhere = [Holder(f"u{i}", f"p{i}", f"n{i}", "u1", "", "", (DeviceUsage(None),)) for i in range(number)]
    nodes = [Node(f"n{i}", (Gpu(f"n{i}", 0, slots=1), Gpu(f"n{i}", 1, slots=1))) for i in range(number)]
    (conflict,) = place([run("r", workers(1))], build_ledger(nodes, somewhere)).conflicts
    assert conflict.endswith(end)


def test_overcommit_finds_no_room_where_no_device_is_large_enough():
    placed = place([run("r", workers(1, slots=5))], ledger(gpus=1), overcommit=True)
    assert "1 of 1 replica of 5 slots on one device does not fit" in placed.conflicts[0]


def workstation(gpus=1, cpus=6, held=(), **state):
    """A node with GPUs of 4 slots, and a CPU."""
    cpu = Gpu("n", CPU, slots=cpus, is_cpu=True)
    node = Node("n", tuple(Gpu("n", index, slots=4) for index in range(gpus)), cpu=cpu, **state)
    return build_ledger([node], holders(held))


def without_gpu(replicas=1, name="w", slots=1, role=Role.WORKER):
    return SetSpec(name, role, ("w",), replicas=replicas, slots=slots, may_use_cpu=True)


FIRST_EXAMPLE = (workers(1, name="learner"), without_gpu(4), without_gpu(1, "eval"))


def test_sets_without_a_gpu_sit_on_the_cpu_beside_it():
    placed = place([run("r", *FIRST_EXAMPLE)], workstation())
    assert placed.conflicts == ()
    assert slots_of(placed) == ["n/0.0", "n/cpu.0", "n/cpu.1", "n/cpu.2", "n/cpu.3", "n/cpu.4"]


def test_a_set_that_needs_a_gpu_never_takes_the_cpu_beside_it():
    placed = place([run("r", workers(5))], workstation())
    assert placed.conflicts == ("r/w: 1 of 5 replicas does not fit (4 of 4 slots are free for the whole plan)",)
    assert "n/cpu" not in " ".join(slots_of(placed))


def test_cpu_slots_end_and_say_so():
    placed = place([run("r", without_gpu(7))], workstation())
    assert placed.conflicts == ("r/w: 1 of 7 replicas does not fit (6 of 6 CPU slots are free for the whole plan)",)


def test_both_kinds_are_overcommitted_each_on_its_own():
    placed = place([run("r", workers(6, name="g"), without_gpu(14, "c"))], workstation(), overcommit=True)
    assert placed.conflicts == ()
    counts = Counter(slot for seat in placed.seats for slot in seat.slots)
    assert sorted(count for slot, count in counts.items() if slot.gpu == 0) == [1, 1, 2, 2]
    assert sorted(count for slot, count in counts.items() if slot.gpu == CPU) == [2, 2, 2, 2, 3, 3]
    assert all((slot.gpu == CPU) == (seat.set_name == "c") for seat in placed.seats for slot in seat.slots)


def test_a_node_without_gpus_takes_every_set():
    alone = build_ledger([Node("n", (Gpu("n", 0, slots=6, is_cpu=True),))], [])
    assert slots_of(place([run("r", *FIRST_EXAMPLE)], alone)) == [f"n/0.{slot}" for slot in range(6)]


@pytest.mark.parametrize("policy", PlacementPolicy)
def test_a_gpu_comes_before_the_cpu_of_a_node_without_any(policy):
    nodes = [Node("a", (Gpu("a", 0, is_cpu=True),)), Node("b", (Gpu("b", 0),))]
    placed = place([run("r", workers(5), without_gpu(1, "c"))], build_ledger(nodes, []), policy=policy)
    assert slots_of(placed) == ["b/0.0", "b/0.1", "b/0.2", "b/0.3", "a/0.0", "a/0.1"]


def test_without_cpu_slots_a_set_sits_where_it_always_did():
    assert slots_of(place([run("r", without_gpu(2))], ledger(gpus=1))) == ["n0/0.0", "n0/0.1"]
    hidden = workstation(is_use_known=False)
    assert place([run("r", without_gpu(1))], hidden).seats == ()  # like its GPU slots, they may be in use
    bound = replace(without_gpu(1), pod=PodSettings(binding=Binding.CPU))
    assert slots_of(place([run("r", bound)], hidden)) == [""]
    assert slots_of(place([run("r", without_gpu(1))], hidden, overcommit=True)) == ["n/cpu.0"]


def test_slots_that_are_named_are_used_whatever_their_kind():
    spec = run("r", workers(1, name="learner"), without_gpu(2))
    assert slots_of(place([spec], workstation(), pins=parse_pins("n/0"))) == ["n/0.0", "n/0.1", "n/0.2"]
    assert slots_of(place([spec], workstation(), pins=parse_pins("n/cpu"))) == ["n/cpu.0", "n/cpu.1", "n/cpu.2"]
    # Of whole devices each set first takes its own kind; single slots are taken in order.
    assert slots_of(place([spec], workstation(), pins=parse_pins("n/cpu,n/0"))) == ["n/0.0", "n/cpu.0", "n/cpu.1"]
    exact = parse_pins("n/cpu.1,n/0.2,n/cpu.5")
    assert slots_of(place([spec], workstation(), pins=exact)) == ["n/cpu.1", "n/0.2", "n/cpu.5"]


def test_cpu_is_a_name_for_the_device_of_a_node_without_gpus():
    alone = build_ledger([Node("n", (Gpu("n", 0, slots=6, is_cpu=True),))], [])
    assert slots_of(place([run("r", workers(2))], alone, pins=parse_pins("n/cpu.3-4"))) == ["n/0.3", "n/0.4"]
    assert place([run("r", workers(1))], ledger(), pins=parse_pins("n0/cpu")).conflicts[0] == (
        "no slot n0/cpu is known; `l2rtui slots` lists them"
    )


def test_the_choice_is_written_into_the_spec_unless_gpus_are_named():
    (bound,) = bound_to_cpu([run("r", *FIRST_EXAMPLE)], workstation())
    assert [part.pod.binding for part in bound.sets] == [Binding.ENV, Binding.CPU, Binding.CPU]
    assert not any(part.may_use_cpu for part in bound.sets)
    (named,) = bound_to_cpu([run("r", *FIRST_EXAMPLE)], workstation(), parse_pins("n/0"))
    assert named == run("r", *FIRST_EXAMPLE)
    (without,) = bound_to_cpu([run("r", without_gpu(2, slots=0))], workstation())
    assert without.sets[0].pod.binding is Binding.ENV


def test_a_named_slot_that_is_held_may_be_overcommitted_but_not_one_that_is_off():
    held = ledger(gpus=1, held=["n0/0.0"])
    assert place([run("r", workers(1))], held, pins=parse_pins("n0/0.0"), overcommit=True).conflicts == ()
    off = build_ledger([Node("n0", (Gpu("n0", 0),), ready=False)], [])
    assert place([run("r", workers(1))], off, pins=parse_pins("n0/0.0"), overcommit=True).conflicts[0] == (
        "slot n0/0.0 is off"
    )


def test_the_device_plugin_gives_whole_devices():
    placed = place([run("r", by_plugin(2))], ledger(gpus=3, held=["n0/0.0"]))
    assert [{slot.gpu for slot in seat.slots} for seat in placed.seats] == [{1}, {2}]
    assert all(len(seat.slots) == 4 for seat in placed.seats)
    full = place([run("r", by_plugin(1))], ledger(gpus=1, held=["n0/0.3"]))
    assert "1 of 1 replica of a whole device does not fit" in full.conflicts[0]


@pytest.mark.parametrize(
    ("numa", "held", "number", "gpus"),
    [
        ((0, 0, 1, 1), (), 2, [0, 1]),
        ((0, 0, 1, 1), ("n/1.0",), 2, [2, 3]),
        # The node with fewer free GPUs: the other keeps room for a larger set.
        ((0, 0, 0, 1, 1), (), 2, [3, 4]),
        ((0, 0, 1, 1), ("n/0.0", "n/2.0"), 2, [1, 3]),
        ((0, 0, 1, 1), (), 3, [0, 1, 2]),
        ((None, None, None), ("n/0.0",), 2, [1, 2]),
        ((0, 1, 0), (), 1, [0]),
    ],
)
@pytest.mark.parametrize("binding", [Binding.ENV, Binding.DEVICE_PLUGIN])
def test_gpus_of_a_replica_are_near_each_other(numa, held, number, gpus, binding):
    cards = tuple(Gpu("n", index, slots=2, numa=at) for index, at in enumerate(numa))
    part = replace(workers(1), gpus=number, pod=PodSettings(binding=binding))
    (seat,) = place([run("r", part)], build_ledger([Node("n", cards)], holders(held))).seats
    assert sorted({slot.gpu for slot in seat.slots}) == gpus


def test_gpus_that_the_user_named_are_taken_in_that_order():
    cards = tuple(Gpu("n", index, slots=1, numa=index // 2) for index in range(4))
    part = replace(workers(1), gpus=2)
    pins = parse_pins("n/0,n/3,n/1")
    (seat,) = place([run("r", part)], build_ledger([Node("n", cards)], ()), pins=pins).seats
    assert {slot.gpu for slot in seat.slots} == {0, 3}


def test_what_is_added_to_a_run_goes_first_where_the_run_sits():
    sits = Seat("r", "w", 0, (SlotId("n1", 1, 0),))
    placed = place([run("r", workers(5))], ledger(nodes=2, held=["n1/1.0"]), existing=[sits])
    assert slots_of(placed) == ["n1/1.1", "n1/1.2", "n1/1.3", "n0/0.0"]


def plugin_ledger(held=()):
    cards = tuple(Gpu("n", 1 + index, slots=1, resource="amd.com/gpu") for index in range(2))
    return build_ledger([Node("n", (Gpu("n", 0, slots=2), *cards))], held)


def of_plugin(replicas, device="amd.com/gpu"):
    return replace(workers(replicas), pod=PodSettings(binding=Binding.DEVICE_PLUGIN, device=device))


def test_a_device_of_a_plugin_is_placed_only_where_it_is_asked_for():
    assert slots_of(place([run("r", of_plugin(2))], plugin_ledger())) == ["n/1.0", "n/2.0"]
    assert slots_of(place([run("r", workers(2))], plugin_ledger())) == ["n/0.0", "n/0.1"]


@pytest.mark.parametrize("asked", ["intel.com/gpu", ""])
def test_a_set_is_never_placed_on_a_device_of_another_resource(asked):
    cards = (Gpu("n", 0, slots=1, resource="amd.com/gpu"), Gpu("n", 1, slots=1, resource="amd.com/gpu"))
    others = build_ledger([Node("n", cards)], [])
    placement = place([run("r", of_plugin(1, asked))], others)
    assert placement.seats == ()
    fault = "no node has intel.com/gpu; set pod.device for amd.com/gpu" if asked else "1 of 1 replica"
    assert fault in placement.conflicts[0]
    assert can_wait(placement.conflicts[0]) is (asked == "")
    mixed = build_ledger([Node("n", (*cards, Gpu("n", 2, slots=1, resource="intel.com/gpu")))], [])
    assert slots_of(place([run("r", of_plugin(1, "intel.com/gpu"))], mixed)) == ["n/2.0"]


def test_a_set_that_finds_no_gpu_is_told_of_other_devices():
    placement = place([run("r", workers(3))], plugin_ledger())
    told = "(2 of 2 slots are free for the whole plan; set pod.device for amd.com/gpu)"
    assert placement.conflicts[0].endswith(told)
    lacking = place([run("r", of_plugin(3))], plugin_ledger()).conflicts[0]
    assert "1 of 3 replicas of a whole device does not fit (2 of 2 amd.com/gpu slots" in lacking


def test_a_person_may_name_a_device_of_a_plugin():
    placement = place([run("r", workers(1))], plugin_ledger(), pins=parse_pins("n/2"))
    assert slots_of(placement) == ["n/2.0"]


# --- labels and taints ----------------------------------------------------------------------------------------
def labelled(*nodes):
    """Nodes of one GPU with two slots: each a mapping of labels, or taints of an unlabelled node."""
    made = [
        Node(
            f"n{number}",
            (Gpu(f"n{number}", 0, slots=2),),
            labels=tuple(labels.items()) if isinstance(labels, dict) else (),
            taints=() if isinstance(labels, dict) else labels,
        )
        for number, labels in enumerate(nodes)
    ]
    return build_ledger(made, [])


def choosy(replicas=1, name="w", scheduling=None, **selector):
    pod = PodSettings(node_selector=tuple(selector.items()), patched_scheduling=scheduling)
    return replace(workers(replicas, name=name), pod=pod)


def test_a_set_goes_to_nodes_with_its_labels_alone():
    cluster = labelled({"disk": "hdd"}, {"disk": "ssd"}, {"disk": "ssd", "zone": "a"})
    assert slots_of(place([run("r", choosy(3, disk="ssd"))], cluster)) == ["n1/0.0", "n1/0.1", "n2/0.0"]
    assert slots_of(place([run("r", choosy(2, disk="ssd", zone="a"))], cluster)) == ["n2/0.0", "n2/0.1"]
    # Each set by its own labels: the next may use the rest.
    both = place([run("r", choosy(2, disk="ssd"), workers(1, name="v"))], cluster)
    assert slots_of(both) == ["n1/0.0", "n1/0.1", "n0/0.0"]


def test_the_nodes_that_labels_leave_out_are_in_the_sentence():
    cluster = labelled({"disk": "hdd"}, {"disk": "ssd"})
    conflicts = place([run("r", choosy(3, disk="ssd"))], cluster).conflicts
    assert conflicts == (
        (
            "r/w: 1 of 3 replicas does not fit (4 of 4 slots are free for the whole plan; "
            "node n0 has no label disk=ssd, which the set w needs)"
        ),
    )
    pair = place([run("r", choosy(disk="no"))], cluster).conflicts
    assert "n0, n1 have no label disk=no" in pair[0]
    many = place([run("r", choosy(disk="no"))], labelled(*[{"a": "b"}] * 4)).conflicts
    assert "4 nodes have no label disk=no" in many[0]


def test_nodes_whose_labels_are_unknown_are_used():
    assert slots_of(place([run("r", choosy(disk="ssd"))], labelled({}))) == ["n0/0.0"]


def test_a_pin_on_a_node_without_the_label_is_refused_by_name():
    cluster = labelled({"disk": "hdd"}, {"disk": "ssd"})
    placed = place([run("r", choosy(2, disk="ssd"))], cluster, pins=parse_pins("n0/0,n1/0.1"))
    assert slots_of(placed) == ["n1/0.1"]
    assert placed.conflicts[0] == "node n0 has no label disk=ssd, which the set w needs"
    assert "among n0/0, n1/0.1" in placed.conflicts[1]
    # Naming a node for another set of the run is correct.
    mixed = place([run("r", choosy(disk="ssd"), workers(1, name="v"))], cluster, pins=parse_pins("n0/0,n1/0"))
    assert (slots_of(mixed), mixed.conflicts) == (["n1/0.0", "n0/0.0"], ())


def test_the_sentence_on_pins_names_only_nodes_that_are_named():
    cluster = labelled({"disk": "hdd"}, {"disk": "ssd"})
    placed = place([run("r", choosy(3, disk="ssd"))], cluster, pins=parse_pins("n1/0"))
    assert [("n0" in conflict, "1 of 3" in conflict) for conflict in placed.conflicts] == [(False, True)]


def test_a_node_of_another_system_takes_only_sets_that_name_it():
    cluster = labelled({"kubernetes.io/os": "windows"}, {"kubernetes.io/os": "linux"})
    placed = place([run("r", workers(3))], cluster)
    assert slots_of(placed) == ["n1/0.0", "n1/0.1"]
    assert "node n0 has the operating system windows" in placed.conflicts[0]
    named = choosy(**{"kubernetes.io/os": "windows"})
    assert slots_of(place([run("r", named)], cluster)) == ["n0/0.0"]


def test_over_commitment_keeps_to_the_labels():
    cluster = labelled({"disk": "hdd"}, {"disk": "ssd"})
    placed = place([run("r", choosy(4, disk="ssd"))], cluster, overcommit=True)
    assert {slot.node for seat in placed.seats for slot in seat.slots} == {"n1"}
    assert placed.conflicts == ()


def test_scaling_keeps_to_the_labels():
    cluster = labelled({"disk": "ssd"}, {"disk": "hdd"}, {"disk": "ssd"})
    first = place([run("r", choosy(2, disk="ssd"))], cluster)
    free = replace(cluster, slots={key: slot for key, slot in cluster.slots.items() if key.node != "n0"})
    more = place([run("r", choosy(3, disk="ssd"))], free, existing=first.seats)
    assert slots_of(more) == ["n2/0.0"]


def test_taints_close_a_node_unless_they_are_tolerated():
    team, gpu = Taint("team", "x", "NoSchedule"), Taint("nvidia.com/gpu", "", "NoSchedule")
    harmless = (Taint("a", "", "PreferNoSchedule"), Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"))
    cluster = labelled((team, gpu), (gpu, *harmless))
    assert slots_of(place([run("r", workers(1))], cluster)) == ["n1/0.0"]
    tolerant = replace(workers(1), pod=PodSettings(tolerations=(Toleration("team", "x"),)))
    assert slots_of(place([run("r", tolerant)], cluster)) == ["n0/0.0"]
    (conflict,) = place([run("r", workers(3))], cluster).conflicts
    assert conflict.endswith("; node n0 has the taint team=x:NoSchedule, which the set w does not tolerate)")
    bare = place([run("r", workers(3))], labelled((Taint("k", "", "NoExecute"),))).conflicts
    assert "the taint k:NoExecute" in bare[0]


def test_rules_of_node_affinity_choose_nodes_by_labels_and_by_name():
    cluster = labelled({"zone": "a"}, {"zone": "b", "spot": ""}, {"zone": "c", "spot": ""})

    def nodes(*alternatives):
        placed = place([run("r", choosy(6, scheduling=Scheduling(alternatives)))], cluster)
        return {seat.slots[0].node for seat in placed.seats}

    zones = LabelRule("zone", "In", ("a", "b"))
    assert nodes((zones,)) == {"n0", "n1"}
    assert nodes((zones, LabelRule("spot", "Exists"))) == {"n1"}
    assert nodes((LabelRule("zone", "In", ("a",)),), (LabelRule("metadata.name", "In", ("n2",)),)) == {"n0", "n2"}
    assert nodes() == {"n0", "n1", "n2"}
    pinned = place(
        [run("r", choosy(scheduling=Scheduling(((zones, LabelRule("spot", "DoesNotExist")),))))],
        cluster,
        pins=parse_pins("n1/0,n2/0"),
    )
    assert pinned.conflicts[:2] == (
        "node n1 has no labels that match !spot, which the set w needs",
        "node n2 has no labels that match zone in (a, b) and !spot, which the set w needs",
    )
