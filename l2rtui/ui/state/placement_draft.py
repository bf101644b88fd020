"""Placement draft: replicas put on slots before there is a plan. Pure values, so that undo is a list of drafts.

The command line of a draft names its slots with ``--on`` in the order of the plan. ``domain.placement.place`` gives
every replica the slot at its position, so the command launches exactly this placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from l2rtui.domain.ledger import Ledger, Slot, SlotState
from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.placement import Pin, Placement, PlacementPolicy, Seat, obstacles, place
from l2rtui.domain.quantity import counted
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Role, RunSpec, SetSpec, numbered, pod_name, renamed
from l2rtui.ui.state.spec_files import launch_options

if TYPE_CHECKING:
    from l2rtui.services.spec.spec_file import LaunchRequest
    from l2rtui.services.terminal import Words


class LaunchOptions(Struct, frozen=True):
    """Options of a launch as they are typed; an empty one keeps the value of the file.

    Attributes:
        path: The spec file. name, seeds, policy, on, wave: as for ``launch``; ``on`` and ``policy`` only begin a
            draft, whose slots then count.
        changes: Settings as in ``--set``.
        replicas: Numbers that differ from the file's, by name of the set.
    """

    path: str
    name: str = ""
    seeds: str = ""
    policy: str = ""
    on: str = ""
    wave: str = ""
    changes: tuple[str, ...] = ()
    replicas: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class PlacementDraft(Struct, frozen=True):
    """Specs of some runs, and the seats of their replicas so far, by name of the pod."""

    specs: tuple[RunSpec, ...] = ()
    seats: Mapping[str, Seat] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def sets(self) -> tuple[SetSpec, ...]:
        """The sets of each run; the runs of a draft differ only by seed and name."""
        return self.specs[0].sets if self.specs else ()

    def replicas(self, set_name: str = "") -> Iterator[tuple[str, SetSpec, int]]:
        """Yield every replica that needs a slot as (run, set, index), in the order of the plan."""
        for spec in self.specs:
            for set_spec in spec.sets:
                if set_spec.slots and set_name in ("", set_spec.name):
                    for index in range(set_spec.num_pods):
                        yield spec.name, set_spec, index

    def missing(self, set_name: str = "") -> list[tuple[str, SetSpec, int]]:
        """Return the replicas without a seat."""
        return [
            (run, set_spec, index)
            for run, set_spec, index in self.replicas(set_name)
            if pod_name(run, set_spec.name, index) not in self.seats
        ]

    def closed_nodes(self, set_name: str, ledger: Ledger) -> set[str]:
        """Return the nodes that a set cannot run on, by their labels and taints."""
        return {node for part in self.sets if part.name == set_name for node in obstacles(part, ledger)}

    def taken(self) -> dict[SlotId, Seat]:
        """Return the seat on each staged slot."""
        return {slot: seat for seat in self.seats.values() for slot in seat.slots}

    def put(self, set_name: str, slots: Iterable[SlotId], ledger: Ledger) -> PlacementDraft:
        """Put the next replicas of a set on slots, one replica on each slot, as many as fit.

        A replica of several slots takes the named slot and the next free ones on the same device. A replica of
        whole GPUs takes the GPU of the slot, and the next ones of its node.
        """
        return self._seated(self.missing(set_name), tuple(slots), ledger)

    def put_range(self, first_set: str, slots: Sequence[SlotId], ledger: Ledger) -> PlacementDraft:
        """Put what is left of all runs on a range of slots, run after run, beginning with a set.

        Where the range has as many GPUs, or a multiple, as there are runs, and each run fits on its share, each run
        gets its own GPUs.
        """
        names = [part.name for part in self.sets]
        at = names.index(first_set) if first_set in names else 0
        order = {name: number for number, name in enumerate(names[at:] + names[:at])}
        missing = sorted(self.missing(), key=lambda replica: order[replica[1].name])
        by_run = {spec.name: [own for own in missing if own[0] == spec.name] for spec in self.specs}
        waiting = [own for own in by_run.values() if own]
        gpus = list(dict.fromkeys((slot.node, slot.gpu) for slot in slots))
        per_run, rest = divmod(len(gpus), max(1, len(waiting)))
        if per_run and not rest and len(waiting) > 1:
            shares = [set(gpus[number * per_run : (number + 1) * per_run]) for number in range(len(waiting))]
            draft = self
            for own, share in zip(waiting, shares, strict=True):
                draft = draft._seated(own, [slot for slot in slots if (slot.node, slot.gpu) in share], ledger)
            if len(draft.seats) == len(self.seats) + len(missing):
                return draft
        return self._seated([replica for own in waiting for replica in own], slots, ledger)

    def _seated(
        self, replicas: Iterable[tuple[str, SetSpec, int]], slots: Sequence[SlotId], ledger: Ledger
    ) -> PlacementDraft:
        """Return a draft with these replicas on the slots, each on the first that it fits on, as many as fit."""
        staged, seats = set(self.taken()), dict(self.seats)
        # Slots are only taken, so a GPU without room for a replica has none for the next.
        starts: dict[str, int] = {}
        closed = {part.name: self.closed_nodes(part.name, ledger) for part in self.sets}
        for run, part, index in replicas:
            is_counted = part.pod.binding.is_counted
            for at in range(starts.get(part.name, 0), len(slots)):
                slot, starts[part.name] = slots[at], at + 1
                if slot in staged or slot.node in closed[part.name]:
                    continue
                if not _is_free(ledger, slot, is_counted=is_counted):
                    continue
                seat = Seat(run, part.name, index, _room_for(part, slot, staged, ledger))
                if part.fills(seat.slots):
                    staged.update(seat.slots)
                    seats[seat.pod] = seat
                    break
        return replace(self, seats=MappingProxyType(seats))

    def move(self, origin: SlotId, target: SlotId, ledger: Ledger) -> PlacementDraft | None:
        """Move the replica that is staged on one slot to another; None if it does not fit there.

        It takes the named slot and the next free ones on the same device, including its own.
        """
        seat = self.taken()[origin]
        others = self.take(seat.slots)
        slots = _room_at(target, len(seat.slots), set(others.taken()), ledger)
        is_closed = target.node in self.closed_nodes(seat.set_name, ledger)
        if is_closed or slots[:1] != (target,) or len(slots) < len(seat.slots):
            return None
        return replace(self, seats=MappingProxyType({**self.seats, seat.pod: replace(seat, slots=slots)}))

    def take(self, slots: Collection[SlotId]) -> PlacementDraft:
        """Remove the replicas that have any of these slots."""
        seats = {pod: seat for pod, seat in self.seats.items() if not set(seat.slots) & set(slots)}
        return replace(self, seats=MappingProxyType(seats))

    def fill(
        self, policy: PlacementPolicy, ledger: Ledger, nodes: Iterable[Node] = (), pins: tuple[Pin, ...] = ()
    ) -> tuple[PlacementDraft, tuple[str, ...]]:
        """Place all missing replicas, on the pins first; also return a sentence for each conflict."""
        slots = dict(ledger.slots)
        for slot in self.taken():  # the ledger does not know drafts: their slots must look busy to place()
            slots[slot] = Slot(slot, SlotState.BUSY)
        rest, existing = replace(ledger, slots=slots), self.seats.values()
        placement = place(self.specs, rest, policy=policy, pins=pins, existing=existing, nodes=nodes)
        seats = {**self.seats, **{seat.pod: seat for seat in placement.seats if seat.slots}}
        return replace(self, seats=MappingProxyType(seats)), placement.conflicts

    def with_specs(self, specs: tuple[RunSpec, ...]) -> PlacementDraft:
        """Return a draft of other specs; a seat stays if its replica still exists and needs as many slots."""
        draft = replace(self, specs=specs)
        sets = {pod_name(run, set_spec.name, index): set_spec for run, set_spec, index in draft.replicas()}
        seats = {pod: seat for pod, seat in self.seats.items() if pod in sets and sets[pod].fills(seat.slots)}
        return replace(draft, seats=MappingProxyType(seats))

    def still_free(self, ledger: Ledger) -> PlacementDraft:
        """Return the draft without the seats whose slots are no longer free."""
        counted = {part.name for part in self.sets if part.pod.binding.is_counted}
        lost = [
            slot
            for slot, seat in self.taken().items()
            if not _is_free(ledger, slot, is_counted=seat.set_name in counted)
        ]
        return self.take(lost) if lost else self

    def placement(self) -> Placement:
        """Return the seats in the order of the plan; replicas that need no slot have an empty seat."""
        seats: list[Seat] = []
        for spec in self.specs:
            for set_spec in spec.sets:
                for index in range(set_spec.num_pods):
                    staged = self.seats.get(pod_name(spec.name, set_spec.name, index))
                    if staged is not None or not set_spec.slots:
                        seats.append(staged or Seat(spec.name, set_spec.name, index, ()))
        return Placement(tuple(seats))

    def pins(self) -> tuple[Pin, ...]:
        """Return the staged slots in the order of the plan."""
        return tuple(Pin(slot.node, slot.gpu, slot.slot) for seat in self.placement().seats for slot in seat.slots)

    def policy(self, ledger: Ledger) -> PlacementPolicy | None:
        """Return the policy that results in exactly this placement; None if no policy does, or only at this
        moment.
        """
        seats = self.placement().seats
        policies = (policy for policy in PlacementPolicy if not policy.is_measured)
        return next((own for own in policies if seats == place(self.specs, ledger, policy=own).seats), None)


def _room_for(part: SetSpec, slot: SlotId, staged: Collection[SlotId], ledger: Ledger) -> tuple[SlotId, ...]:
    """Return the slots for a replica starting at a slot, as many as there are."""
    if not part.whole_gpus:
        return _room_at(slot, part.slots, staged, ledger)
    is_counted = part.pod.binding.is_counted
    chosen: list[SlotId] = []
    for gpu in ledger.nodes[slot.node].devices if slot.node in ledger.nodes else ():
        ids = gpu.slot_ids()
        is_open = all(other not in staged and _is_free(ledger, other, is_counted=is_counted) for other in ids)
        if not gpu.is_cpu and gpu.index >= slot.gpu and is_open:
            chosen += ids
            if part.fills(chosen):
                break
    return tuple(chosen)


def _room_at(slot: SlotId, number: int, staged: Collection[SlotId], ledger: Ledger) -> tuple[SlotId, ...]:
    """Return that many free slots of one device starting at a slot, or as many as there are."""
    device = [other.id for other in ledger.of_gpu(slot.node, slot.gpu)[slot.slot :]]
    return tuple([other for other in device if other not in staged and _is_free(ledger, other)][:number])


def _is_free(ledger: Ledger, slot: SlotId, *, is_counted: bool = False) -> bool:
    """Return True for a slot that a draft may use; for counted units, unknown use does not block the slot."""
    entry, node = ledger.slots.get(slot), ledger.nodes.get(slot.node)
    is_unit = is_counted and node is not None and node.counts is not None and node.is_use_known
    return entry is not None and (entry.state is SlotState.FREE or (is_unit and entry.state is SlotState.UNKNOWN))


def loss_of(lost: Iterable[Seat], ledger: Ledger, owner: str) -> str:
    """Return a sentence about seats that are no longer free; empty if their own pods have taken them.

    Args:
        owner: The user. A pod of theirs of a seat's run and set is the launch of that very draft.
    """
    holders: list[Slot] = []
    num_lost = 0
    for seat in lost:
        lost_slots = [
            ledger.slots.get(slot) or Slot(slot, SlotState.OFF) for slot in seat.slots if not _is_free(ledger, slot)
        ]
        # By run and set: a cluster gives the pods names of its own.
        of_seat = (seat.run, seat.set_name, owner)
        if any((slot.run, slot.set_name, slot.owner) != of_seat for slot in lost_slots):
            holders += lost_slots
            num_lost += 1
    if not num_lost:
        return ""
    is_foreign = any(slot.pod and slot.owner != owner for slot in holders)
    reason = "Another launch took slots" if is_foreign else "Slots are no longer free"
    return f"{reason}: {counted(num_lost, 'staged replica')} went back."


def configured(request: LaunchRequest, options: LaunchOptions) -> LaunchRequest:
    """Return a launch request with the name and the replicas of these options."""

    def change(spec: RunSpec) -> RunSpec:
        for set_name, replicas in options.replicas.items():
            spec = spec.with_replicas(set_name, replicas)
        return renamed(spec, options.name) if options.name else spec

    return request.changed(change)


def free_name(name: str, snapshot: ClusterSnapshot) -> str:
    """Return this name, or the first of ``name-2``, ``name-3``, … that no run and no experiment has."""
    used = {text for run in snapshot.runs.values() for text in (run.name, run.experiment)}
    return next(candidate for candidate in numbered(name) if candidate not in used)


def command(options: LaunchOptions, spec: RunSpec, pins: Sequence[Pin], policy: PlacementPolicy | None) -> Words:
    """Return the command of a draft: with its policy if one produces it, otherwise with its slots."""
    argv = ["launch", *launch_options(options.path)]
    if options.name:
        argv += ["--name", options.name]
    if options.seeds:
        argv += ["--seeds", options.seeds]
    if options.wave:
        argv += ["--wave", options.wave]
    for change in options.changes:
        argv += ["--set", change]
    for change in replicas_as_settings(options, spec):
        argv += ["--set", change]
    if policy is not None:
        argv += ["--policy", str(policy)]
    elif pins:
        argv += ["--on", pin_text(pins)]
    return argv


def replicas_as_settings(options: LaunchOptions, spec: RunSpec) -> tuple[str, ...]:
    """Return the numbers of replicas that differ from the file's as ``--set`` takes them."""
    return tuple(f"{_field_of(spec, name)}.replicas={number}" for name, number in options.replicas.items())


def _field_of(spec: RunSpec, set_name: str) -> str:
    """Return the path of a set in the spec file, as ``--set`` takes it."""
    workers = [set_spec.name for set_spec in spec.sets if set_spec.role is Role.WORKER]
    if set_name in workers:
        return f"workers.{workers.index(set_name)}"
    set_spec = spec.set_named(set_name)
    return str(set_spec.role) if set_spec else set_name


def pin_text(pins: Sequence[Pin]) -> str:
    """Return pins as ``--on`` takes them, neighbours of one device joined: ``n1/0.0-3,n2/5.1``."""
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
