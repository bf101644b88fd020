"""Queue: fair order, whole runs, no overtaking, forecasts, and a start interrupted by a crash anywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from l2rtui.domain.containers import PodSettings
from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import DeviceUsage, Holder, build_ledger
from l2rtui.domain.node import CPU, Gpu, Node, SlotId
from l2rtui.domain.placement import parse_pins
from l2rtui.domain.queue import (
    RunQueue,
    Ticket,
    TicketState,
    admit,
    begin,
    enqueue,
    fair_order,
    finish,
    held_slots,
    impossible,
    move,
    postpone,
    reconcile,
)
from l2rtui.domain.workload import Kind, Role, RunSpec, SetSpec
from l2rtui.services.queue.listing import MOST_ROUNDS, forecast


def ledger(gpus=2, slots=4, held=(), *, cpu=0, ready=True):
    """One node; ``held`` has pairs of slot and run, whose owner is the run's first letter."""
    devices = [Gpu("n", index, slots=slots) for index in range(gpus)]
    if cpu:
        devices.append(Gpu("n", CPU, slots=cpu, is_cpu=True))
    node = Node("n", tuple(devices), ready=ready)
    holders = [
        Holder(f"u{number}", f"{run}-w-{number}", "n", run[0], run, "w", (DeviceUsage(slot.gpu, slot.slot),))
        for number, (slot, run) in enumerate((SlotId.parse(text), run) for text, run in held)
    ]
    return build_ledger([node], holders)


def spec(name, replicas=1, slots=1, *, pod=PodSettings()):  # noqa: B008  (frozen)
    part = SetSpec("w", Role.WORKER, ("w",), replicas=replicas, slots=slots, pod=pod)
    return RunSpec(Kind.LEARNER_WORKERS, "x", name, (part,))


def ticket(number, owner="a", **shape):
    pins, problem = shape.pop("pins", ()), shape.pop("problem", "")
    name = f"{owner}{number}"
    return Ticket(number, f"uid-{name}", spec(name, **shape), owner, pins=pins, problem=problem)


def names(tickets):
    return [one.spec.name for one in tickets]


def verdicts(order, slots):
    return {one.ticket.spec.name: (one.slots is not None, one.reason) for one in admit(order, slots)}


# --- order -----------------------------------------------------------------------------------------------------
def test_of_one_owner_who_comes_first_is_first():
    assert names(fair_order([ticket(1), ticket(2), ticket(3)], {})) == ["a1", "a2", "a3"]


def test_the_owner_who_holds_least_is_next_and_owners_take_turns():
    queue = [ticket(1), ticket(2), ticket(3), ticket(4, "b"), ticket(5, "b")]
    assert names(fair_order(queue, {})) == ["a1", "b4", "a2", "b5", "a3"]
    assert names(fair_order(queue, {"a": 2})) == ["b4", "b5", "a1", "a2", "a3"]
    # A run counts by its slots: a run of four weighs as much as four runs of one.
    assert names(fair_order([ticket(1, replicas=4), ticket(2), ticket(3, "b"), ticket(4, "b")], {})) == [
        "a1", "b3", "b4", "a2",
    ]  # fmt: skip


def test_an_announced_start_comes_first_and_counts_for_its_owner():
    queue = [ticket(1), ticket(2), ticket(3, "b"), replace(ticket(4), state=TicketState.STARTING)]
    assert names(fair_order(queue, {})) == ["a4", "b3", "a1", "a2"]


def test_slots_are_counted_by_owner():
    assert held_slots(ledger(held=[("n/0.0", "ax"), ("n/0.1", "ay"), ("n/1.0", "b")])) == {"a": 2, "b": 1}


# --- admission -------------------------------------------------------------------------------------------------
def test_whole_runs_start_while_there_is_room_and_the_others_say_what_they_wait_for():
    answers = verdicts([ticket(1, replicas=3), ticket(2, replicas=4), ticket(3, replicas=3)], ledger())
    assert answers == {
        "a1": (True, ""),
        "a2": (True, ""),
        "a3": (False, "3 slots, 8 of 8 are free"),
    }


def test_a_small_run_does_not_overtake_one_that_waits_for_the_same_slots():
    held = [(f"n/0.{number}", "b") for number in range(4)] + [("n/1.0", "b")]
    answers = verdicts([ticket(1, replicas=4), ticket(2)], ledger(held=held))
    assert answers == {
        "a1": (False, "4 slots, 3 of 8 are free"),
        "a2": (False, "1 slot, 3 of 8 are free, a1 comes first"),
    }


@pytest.mark.parametrize("binding", [Binding.ENV, Binding.DEVICE_PLUGIN])
def test_a_free_slot_beside_a_busy_one_waits_for_a_replica_that_needs_both(binding):
    held = [("n/0.0", "b"), ("n/1.0", "b")]
    first = ticket(1, slots=4, pod=PodSettings(binding=binding))
    assert verdicts([first, ticket(2)], ledger(held=held))["a2"][0] is False


def test_a_run_that_needs_other_slots_goes_on():
    held = [(f"n/{gpu}.{slot}", "b") for gpu in range(2) for slot in range(4)]
    on_cpu = ticket(2, pod=PodSettings(binding=Binding.CPU))
    answers = verdicts([ticket(1), on_cpu, ticket(3, slots=0)], ledger(held=held, cpu=2))
    assert (answers["a1"][0], answers["a2"][0], answers["a3"][0]) == (False, True, True)


def test_a_run_waits_for_the_slots_that_it_names():
    answers = verdicts([ticket(1, pins=parse_pins("n/0.0")), ticket(2)], ledger(held=[("n/0.0", "b")]))
    assert answers["a1"] == (False, "1 slot among n/0.0, 7 of 8 are free")
    assert answers["a2"] == (True, "")


def test_a_run_that_can_never_fit_or_has_just_failed_blocks_nobody():
    broken = ticket(1, problem="it did not start: no command")
    answers = verdicts([broken, ticket(2, slots=5), ticket(3, slots=5), ticket(4)], ledger())
    assert answers["a1"] == (False, "it did not start: no command")
    assert answers["a2"][1].startswith("more than there is: a2/w: 1 of 1 replica of 5 slots on one device")
    assert answers["a3"][1] != ""
    assert answers["a4"] == (True, "")


def test_what_would_fit_on_empty_slots_is_no_conflict():
    held = [(f"n/{gpu}.{slot}", "b") for gpu in range(2) for slot in range(4)]
    assert impossible([ticket(1, replicas=8), ticket(2)], ledger(held=held)) is None
    misfit = impossible([ticket(1), ticket(2, replicas=9)], ledger(held=held))
    assert misfit is not None
    assert misfit[0].spec.name == "a2"
    assert "1 of 9 replicas" in misfit[1]
    assert impossible([ticket(1)], ledger(ready=False)) is not None


# --- forecast --------------------------------------------------------------------------------------------------
def test_a_forecast_follows_the_limits_of_the_runs_ahead():
    held = [(f"n/0.{slot}", f"b{slot}") for slot in range(2)]
    order = [ticket(1), ticket(2), ticket(3), ticket(4)]
    starts = forecast(order, ledger(1, 2, held), {"b0": 50.0, "b1": -3.0}, {"a1": 20.0, "a2": 100.0, "a3": 1.0})
    assert starts == {"a1": 0.0, "a2": 20.0, "a3": 50.0, "a4": 51.0}


def test_without_limits_a_start_is_unknown():
    held = [("n/0.0", "b")]
    assert forecast([ticket(1), ticket(2)], ledger(1, 1, held), {"b": 9.0}, {}) == {"a1": 9.0}
    assert forecast([ticket(1)], ledger(1, 1, held), {}, {}) == {}


def test_a_forecast_has_an_end():
    order = [ticket(number) for number in range(1, MOST_ROUNDS + 5)]
    starts = forecast(order, ledger(1, 1), {}, {one.spec.name: 1.0 for one in order})
    assert len(starts) == MOST_ROUNDS


# --- changes ---------------------------------------------------------------------------------------------------
def queued(*tickets):
    return enqueue(RunQueue(), tickets)


def test_numbers_are_never_used_twice():
    queue = finish(queued(ticket(0), ticket(1)), {"uid-a0", "uid-a1", "uid-unknown"})
    assert [one.number for one in enqueue(queue, [ticket(7)]).tickets] == [3]


def test_a_name_waits_once():
    with pytest.raises(ValueError, match="a run named a1 waits in the queue"):
        enqueue(queued(ticket(1)), [ticket(1)])
    with pytest.raises(ValueError, match="a run named a1 waits"):
        queued(ticket(1), ticket(1))


def test_a_move_is_among_ones_own():
    queue = queued(ticket(1), ticket(2, "b"), ticket(3), ticket(4))
    assert names(move(queue, "uid-a4", 1).tickets) == ["a4", "b2", "a1", "a3"]
    assert names(move(queue, "uid-a1", 99).tickets) == ["a3", "b2", "a4", "a1"]
    assert names(move(queue, "uid-a4", -5).tickets) == ["a4", "b2", "a1", "a3"]
    assert move(queue, "uid-gone", 1) is queue


def test_tickets_are_looked_up_by_run_and_by_id():
    queue = queued(ticket(1))
    assert queue.named("a1") is queue.with_uid("uid-a1") is queue.tickets[0]
    assert queue.named("a2") is None
    assert queue.with_uid("uid-a2") is None


def test_a_start_that_failed_waits_on_at_its_place_with_the_reason():
    queue = begin(queued(ticket(1), ticket(2)), "uid-a1")
    assert [one.state for one in queue.tickets] == [TicketState.STARTING, TicketState.WAITING]
    queue = postpone(queue, "uid-a1", "no command")
    assert [(one.state, one.problem) for one in queue.tickets] == [
        (TicketState.WAITING, "no command"), (TicketState.WAITING, ""),
    ]  # fmt: skip
    assert begin(queue, "uid-a1").tickets[0].problem == ""


class Machine:
    """Slots and runs that exist, and a queue on a disk; the memory of a keeper is lost with it."""

    def __init__(self, queue, slots):
        self.disk, self.slots = queue, slots
        self.running, self.started = [], []

    def ledger(self):
        return ledger(1, self.slots, [(f"n/0.{number}", run) for number, (_, run) in enumerate(self.running)])

    def launched(self):
        return set(self.started)

    def keep(self):
        """One keeper; a crash at a yield stops it there."""
        self.disk = reconcile(self.disk, self.launched())
        yield
        while self.disk.tickets:
            slots = self.ledger()
            order = fair_order(self.disk.tickets, held_slots(slots))
            first = next((one.ticket for one in admit(order, slots) if one.slots is not None), None)
            yield
            if first is None:
                return
            self.disk = begin(self.disk, first.uid)
            yield
            assert first.uid not in self.started, "started twice"
            self.started.append(first.uid)
            self.running.append((first.uid, first.spec.name))
            yield
            self.disk = finish(self.disk, {first.uid})
            yield


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 10))
def test_crashes_between_any_two_steps_lose_no_run_start_none_twice_and_keep_the_order(seed, slots, count):
    chance = random.Random(seed)
    machine = Machine(queued(*(ticket(number) for number in range(count))), slots)
    rounds = 0
    while machine.disk.tickets:
        rounds += 1
        assert rounds < 100 * count
        for _ in machine.keep():
            if chance.random() < 0.2:
                break  # SIGKILL: the next keeper only has the disk and the existing runs
        if machine.running and chance.random() < 0.7:
            machine.running.pop(chance.randrange(len(machine.running)))
    assert machine.started == [f"uid-a{number}" for number in range(count)]
