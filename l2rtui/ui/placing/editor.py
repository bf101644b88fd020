"""Placement editor: the steps of a draft with their history, from a launch request to a plan. No widgets."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from l2rtui.config import user_name
from l2rtui.domain.ledger import Ledger, SlotState
from l2rtui.domain.node import Node, SlotId, device_name
from l2rtui.domain.placement import Pin, PlacementPolicy, obstacle, parse_pins, parse_seeds
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import Role
from l2rtui.services.spec.spec_file import LaunchRequest
from l2rtui.services.terminal import Words
from l2rtui.ui.state.placement_draft import LaunchOptions, PlacementDraft, command, configured, free_name

MAX_REPLICAS: Final = 4096


class PlacementEditor:
    """A draft, the options of its launch, and its history of steps.

    Attributes:
        request: The spec file; None until one is read.
        set_number: Index of the set whose replicas are put next.
        conflicts: Sentences about replicas that the last filling found no slot for.
    """

    def __init__(self) -> None:
        self.request: LaunchRequest | None = None
        self.options = LaunchOptions("")
        self.draft = PlacementDraft()
        self.set_number = 0
        self.conflicts: tuple[str, ...] = ()
        self._history: list[tuple[LaunchOptions, PlacementDraft]] = []

    def load(
        self, path: str, request: LaunchRequest, snapshot: ClusterSnapshot, options: LaunchOptions | None = None
    ) -> None:
        """Start with another spec file; a name that a run already has gets a number.

        A policy and slots among the options seat the replicas.
        """
        options = replace(options or LaunchOptions(""), path=path)
        name = options.name or free_name(request.spec.name, snapshot)
        self.request, self.set_number, self.draft = request, 0, PlacementDraft()
        self._history.clear()
        self._apply(replace(options, name=name if name != request.spec.name else "", policy="", on=""))
        if options.policy or options.on:
            policy = PlacementPolicy(options.policy) if options.policy else request.policy
            pins = parse_pins(options.on) if options.on else request.pins
            filled = self.draft.fill(policy, snapshot.ledger, snapshot.nodes.values(), pins)
            self.draft, self.conflicts = filled
        self.to_next_unplaced()

    def _apply(self, options: LaunchOptions) -> None:
        """Apply other options; seats of replicas that still exist stay."""
        self.options, self.conflicts = options, ()
        if self.request is not None:
            seeds = parse_seeds(options.seeds) if options.seeds else ()
            self.draft = self.draft.with_specs(configured(self.request, options).runs(seeds))

    def _remember(self) -> None:
        self._history.append((self.options, self.draft))

    @property
    def current_set(self) -> str:
        """Name of the set whose replicas are put next."""
        sets = self.draft.sets
        return sets[self.set_number % len(sets)].name if sets else ""

    def next_set(self, by: int) -> None:
        """Go to another set."""
        if self.draft.sets:
            self.set_number = (self.set_number + by) % len(self.draft.sets)

    def to_next_unplaced(self) -> None:
        """Go to the next set with replicas without a slot, starting at this one."""
        names = [spec.name for spec in self.draft.sets]
        order = names[self.set_number :] + names[: self.set_number]
        waiting = next((name for name in order if self.draft.missing(name)), None)
        if waiting is not None:
            self.set_number = names.index(waiting)

    def put(self, slots: tuple[SlotId, ...], ledger: Ledger) -> str:
        """Put the next replicas of the current set on slots; if something is staged there, remove it instead.

        Returns:
            The reason why nothing was put, as a sentence; empty on success.
        """
        before, staged = self.draft, self.draft.taken()
        if any(slot in staged for slot in slots):
            self._remember()
            self.draft = before.take(slots)
        else:
            # A range seats the rest of the run, a single slot the current set.
            is_range = len(slots) > 1
            draft = (
                before.put_range(self.current_set, slots, ledger)
                if is_range
                else before.put(self.current_set, slots, ledger)
            )
            if len(draft.seats) == len(before.seats):
                name = self.current_set
                if not before.missing("" if is_range else name):
                    return f"Every replica of {name} has a slot. tab: next set, digits: another number."
                return self._why_not(name, slots[0], ledger)
            self._remember()
            self.draft = draft
            if not draft.missing(self.current_set):
                self.to_next_unplaced()
        self.conflicts = ()
        return ""

    def refusal(self, origin: SlotId, target: SlotId, ledger: Ledger) -> str:
        """Return why the replica on one slot cannot be moved to another, as a sentence; empty if it can."""
        seats = self.draft.taken()
        other = seats.get(target, seats[origin])
        if other != seats[origin]:
            return f"{other.pod} is staged on slot {target}."
        if self.draft.move(origin, target, ledger) is None:
            return self._why_not(other.set_name, target, ledger)
        return ""

    def move(self, origin: SlotId, target: SlotId, ledger: Ledger) -> str:
        """Move the replica that is staged on one slot to another.

        Returns:
            The reason why it cannot be moved, as a sentence; empty on success.
        """
        if sentence := self.refusal(origin, target, ledger):
            return sentence
        draft = self.draft.move(origin, target, ledger)
        if draft is not None and draft != self.draft:  # otherwise it was dropped at its old place
            self._remember()
            self.draft, self.conflicts = draft, ()
        return ""

    def _why_not(self, name: str, slot: SlotId, ledger: Ledger) -> str:
        """Return why a replica of a set does not fit at a slot."""
        entry = ledger.slots[slot]
        if entry.state is not SlotState.FREE:
            return f"Slot {slot} is {entry.use}."
        part = next(spec for spec in self.draft.sets if spec.name == name)
        if (reason := obstacle(part, slot.node, ledger.nodes[slot.node])) is not None:
            sentence = reason.sentence([slot.node])
            return f"{sentence[0].upper()}{sentence[1:]}."  # capitalize() would lower-case labels
        return f"{slot.node}/{device_name(slot.gpu)} has too few free slots after {slot} for one replica of {name}."

    def fill(self, policy: PlacementPolicy, ledger: Ledger, nodes: Iterable[Node] = ()) -> None:
        """Place all remaining replicas; ``nodes`` have the loads that some policies use."""
        self._remember()
        self.draft, self.conflicts = self.draft.fill(policy, ledger, nodes)

    @property
    def is_learner_current(self) -> bool:
        """True if the current set is the learner, which always has one replica."""
        return any(spec.name == self.current_set and spec.role is Role.LEARNER for spec in self.draft.sets)

    def set_replicas(self, number: int) -> None:
        """Set the number of replicas of the current set."""
        self._remember()
        replicas = {**self.options.replicas, self.current_set: number}
        self._apply(replace(self.options, replicas=MappingProxyType(replicas)))

    def change_options(self, options: LaunchOptions) -> None:
        """Use another name or other seeds."""
        self._remember()
        self._apply(options)

    def clear(self) -> None:
        """Remove all replicas from the slots."""
        self._remember()
        self.draft, self.conflicts = self.draft.take(tuple(self.draft.taken())), ()

    def undo(self) -> bool:
        """Undo the last step; return False if there is no step."""
        if not self._history:
            return False
        options, self.draft = self._history.pop()
        self._apply(options)
        return True

    def plan(self, snapshot: ClusterSnapshot) -> LaunchPlan | None:
        """Return the plan of the staged replicas, to check it; None without a spec."""
        specs = self.draft.specs
        if not specs:
            return None
        uids = [str(number) for number in range(len(specs))]  # placeholders: this plan is never launched
        return plan_launch(specs, self.draft.placement(), snapshot.nodes, owner=user_name(), uids=uids)

    def command(self, ledger: Ledger) -> Words:
        """Return the command that launches the staged replicas."""
        if self.request is None:
            return ("launch",)
        policy, pins = self.choice(ledger)
        return command(self.options, self.request.spec, pins, policy)

    def choice(self, ledger: Ledger) -> tuple[PlacementPolicy | None, tuple[Pin, ...]]:
        """Return the policy that produces exactly these seats, otherwise the slots.

        With a policy the plan survives changes on other slots. For a spec that names slots, the slots are returned:
        its pins would apply in addition to a policy.
        """
        has_own = self.request is not None and bool(self.request.pins)
        policy = self.draft.policy(ledger) if self.draft.seats and not has_own else None
        return policy, () if policy is not None else self.draft.pins()
