"""What is staged in place mode: replicas put on slots, before there is a plan. Pure values, so undo is a list.

The staged seats, written as ``--on`` in the order of the plan, make ``place()`` seat every replica where it was
put: that is why the equivalent command line is one, and not a picture of one.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from l2rtui.domain.ledger import Ledger, Slot, SlotState
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import Pin, Placement, Policy, Seat, place
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Role, RunSpec, SetSpec, pod_name, with_seeds


@dataclass(frozen=True, slots=True)
class Form:
    """What was asked for besides slots.

    Attributes:
        path: The spec file. name: empty keeps the file's. seeds: as they were typed; empty keeps the file's one.
        replicas: Other numbers than the file's, by name of the set.
    """

    path: str
    name: str = ""
    seeds: str = ""
    replicas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Stage:
    """Replicas of some runs, and the seats that they were given so far, by name of the pod."""

    specs: tuple[RunSpec, ...] = ()
    seats: Mapping[str, Seat] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sets(self) -> tuple[SetSpec, ...]:
        """The sets of each run; all runs of a stage have the same."""
        return self.specs[0].sets if self.specs else ()

    def replicas(self, set_name: str = "") -> Iterator[tuple[str, SetSpec, int]]:
        """Every replica that needs a slot as (run, set, index), in the order of the plan."""
        for spec in self.specs:
            for one in spec.sets:
                if one.slots and set_name in ("", one.name):
                    for index in range(one.replicas):
                        yield spec.name, one, index

    def missing(self, set_name: str = "") -> list[tuple[str, SetSpec, int]]:
        """Those without a seat."""
        return [one for one in self.replicas(set_name) if pod_name(one[0], one[1].name, one[2]) not in self.seats]

    def taken(self) -> dict[SlotId, Seat]:
        """Staged slots and what sits there."""
        return {slot: seat for seat in self.seats.values() for slot in seat.slots}

    def put(self, set_name: str, slots: Iterable[SlotId], ledger: Ledger) -> Stage:
        """Seat the next replicas of a set, the first on the first of these slots; as many as find room.

        A replica of several slots takes the one that is named and the free ones after it on the same device.
        """
        staged, seats, waiting = set(self.taken()), dict(self.seats), iter(self.missing(set_name))
        for slot in slots:
            if slot in staged or not _is_free(ledger, slot):
                continue
            unit = next(waiting, None)
            if unit is None:
                break
            run, one, index = unit
            rest = [other.id for other in ledger.of_gpu(slot.node, slot.gpu)[slot.slot :] if other.id not in staged]
            taken = tuple(other for other in rest if _is_free(ledger, other))[: one.slots]
            if len(taken) == one.slots:
                staged.update(taken)
                seats[pod_name(run, one.name, index)] = Seat(run, one.name, index, taken)
        return replace(self, seats=MappingProxyType(seats))

    def take(self, slots: Collection[SlotId]) -> Stage:
        """Give up whatever sits on these slots."""
        kept = {pod: seat for pod, seat in self.seats.items() if not set(seat.slots) & set(slots)}
        return replace(self, seats=MappingProxyType(kept))

    def fill(self, policy: Policy, ledger: Ledger) -> tuple[Stage, tuple[str, ...]]:
        """Seat all that is missing; also says in sentences what found no place."""
        free = dict(ledger.slots)
        for slot in self.taken():
            free[slot] = Slot(slot, SlotState.BUSY)
        found = place(self.specs, replace(ledger, slots=free), policy=policy, taken=self.seats.values())
        seats = {**self.seats, **{seat.pod: seat for seat in found.seats if seat.slots}}
        return replace(self, seats=MappingProxyType(seats)), found.conflicts

    def with_specs(self, specs: tuple[RunSpec, ...]) -> Stage:
        """Other specs; seats of replicas that are still there stay."""
        fresh = replace(self, specs=specs)
        wanted = {pod_name(run, one.name, index): one.slots for run, one, index in fresh.replicas()}
        kept = {pod: seat for pod, seat in self.seats.items() if wanted.get(pod) == len(seat.slots)}
        return replace(fresh, seats=MappingProxyType(kept))

    def still_free(self, ledger: Ledger) -> Stage:
        """Without the seats that somebody else has taken since."""
        lost = [slot for slot in self.taken() if not _is_free(ledger, slot)]
        return self.take(lost) if lost else self

    def placement(self) -> Placement:
        """Seats in the order of the plan; replicas that need no slot sit nowhere."""
        seats: list[Seat] = []
        for spec in self.specs:
            for one in spec.sets:
                for index in range(one.replicas):
                    staged = self.seats.get(pod_name(spec.name, one.name, index))
                    if staged is not None or not one.slots:
                        seats.append(staged or Seat(spec.name, one.name, index, ()))
        return Placement(tuple(seats))

    def pins(self) -> tuple[Pin, ...]:
        """The staged slots in the order of the plan."""
        return tuple(Pin(*_parts(slot)) for seat in self.placement().seats for slot in seat.slots)

    def policy(self, ledger: Ledger) -> Policy | None:
        """The policy that alone gives these very seats, if one does."""
        mine = self.placement().seats
        return next((one for one in Policy if mine == place(self.specs, ledger, policy=one).seats), None)


def _parts(slot: SlotId) -> tuple[str, int, int]:
    return slot.node, slot.gpu, slot.slot


def _is_free(ledger: Ledger, slot: SlotId) -> bool:
    held = ledger.slots.get(slot)
    return held is not None and held.state is SlotState.FREE


def specs_of(spec: RunSpec, form: Form, seeds: tuple[int, ...]) -> tuple[RunSpec, ...]:
    """The runs that a form asks for."""
    for set_name, replicas in form.replicas.items():
        spec = spec.with_replicas(set_name, replicas)
    return with_seeds(spec, seeds)


def free_name(name: str, snapshot: ClusterSnapshot) -> str:
    """This name, or the first of ``name-2``, ``name-3``, … that no run and no experiment has."""
    used = {word for run in snapshot.runs.values() for word in (run.name, run.experiment)}
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name}-{number}"
    return found


def command(form: Form, spec: RunSpec, pins: Sequence[Pin], policy: Policy | None) -> str:
    """The command line that launches the same."""
    words = ["l2rtui", "launch", "-f", form.path]
    if form.name:
        words += ["--name", form.name]
    if form.seeds:
        words += ["--seeds", form.seeds]
    for set_name, replicas in form.replicas.items():
        words += ["--set", f"{_field_of(spec, set_name)}.replicas={replicas}"]
    if policy is not None:
        words += ["--policy", str(policy)]
    elif pins:
        words += ["--on", pin_text(pins)]
    return shlex.join(words)


def _field_of(spec: RunSpec, set_name: str) -> str:
    """Where the spec file says how many replicas a set has."""
    workers = [one.name for one in spec.sets if one.role is Role.WORKER]
    if set_name in workers:
        return f"workers.{workers.index(set_name)}"
    one = spec.set_named(set_name)
    return str(one.role) if one else set_name


def pin_text(pins: Sequence[Pin]) -> str:
    """Pins as ``--on`` takes them, neighbours of one device joined: ``n1/0.0-3,n2/5.1``."""
    parts: list[tuple[Pin, int]] = []
    for pin in pins:
        slot = pin.slot or 0
        if parts and pin.slot is not None:
            first, last = parts[-1]
            if (first.node, first.gpu) == (pin.node, pin.gpu) and first.slot is not None and last + 1 == slot:
                parts[-1] = (first, slot)
                continue
        parts.append((pin, slot))
    return ",".join(str(pin) if pin.slot in (None, last) else f"{pin}-{last}" for pin, last in parts)
