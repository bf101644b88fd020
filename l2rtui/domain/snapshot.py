"""The cluster at one revision: nodes, pods and runs as immutable rows, and the ledger that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from l2rtui.domain.ledger import Basis, Claim, Holder, Ledger, build_ledger
from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.row import row
from l2rtui.domain.status import Phase, Status, is_failing, pod_status
from l2rtui.domain.workload import CENTRES, Role


@row(frozen=True, slots=True)
class PodView:
    """One pod or process, ours or somebody else's.

    Attributes:
        uid: Unique for ever; a replaced pod has another.
        run, set_name, role: Empty for pods that l2rtui did not launch.
        claims: The devices that it holds, as far as they can be told.
        created, started: Seconds since the epoch; started is None until its process runs.
        exit_code: How its last process ended; 128 + n stands for signal n; None when none has ended.
        pid: Process id where the backend knows one.
        namespace: Where the backend has namespaces. controller: what makes and replaces it, ``ReplicaSet x``.
        flags: What does not fit together, a sentence each.
    """

    uid: str
    name: str
    node: str = ""
    owner: str = ""
    run: str = ""
    set_name: str = ""
    role: Role | None = None
    index: int = 0
    seed: int = 0
    claims: tuple[Claim, ...] = ()
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    ready: bool = False
    restarts: int = 0
    created: float = 0.0
    started: float | None = None
    exit_code: int | None = None
    is_terminating: bool = False
    pid: int | None = None
    namespace: str = ""
    controller: str = ""
    flags: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """Word, level and sentence for people."""
        return pod_status(
            self.phase,
            self.reason,
            self.message,
            exit_code=self.exit_code,
            restarts=self.restarts,
            is_terminating=self.is_terminating,
        )

    @property
    def slots(self) -> tuple[SlotId, ...]:
        """The exact slots that it holds; empty where only the device or the node is known."""
        return tuple(
            SlotId(self.node, claim.gpu, claim.slot)
            for claim in self.claims
            if claim.gpu is not None and claim.slot is not None
        )

    @property
    def is_failing(self) -> bool:
        """Whether people should look at it."""
        return is_failing(self.phase, self.reason, is_terminating=self.is_terminating)

    @property
    def holder(self) -> Holder | None:
        """What the ledger reads of it; None while it holds nothing and is odd in nothing."""
        if not (self.claims or self.flags) or self.phase.is_over:
            return None
        return Holder(
            self.uid,
            self.name,
            self.node,
            self.owner,
            self.run,
            self.set_name,
            self.claims,
            self.is_failing,
            self.flags,
        )


@dataclass(frozen=True, slots=True)
class SetView:
    """One set of a run: how many replicas are wanted."""

    name: str
    role: Role
    replicas: int


@dataclass(frozen=True, slots=True)
class RunView:
    """One launched run.

    Attributes:
        reason: Why it is not simply running, for example ``Unsupervised``; empty when all is well.
        message: One sentence on the reason.
    """

    uid: str
    name: str
    experiment: str
    owner: str = ""
    seed: int = 0
    kind: str = ""
    created: float = 0.0
    sets: tuple[SetView, ...] = ()
    reason: str = ""
    message: str = ""
    is_terminating: bool = False
    namespace: str = ""


def has_finished(run: RunView, pods: Iterable[PodView]) -> bool:
    """Whether those that a run is about have all ended well, whoever still waits for them.

    Parameter servers of others' making never end by themselves.
    """
    role = next((role for kind, role in CENTRES.items() if kind == run.kind), None)
    centre = [pod for pod in pods if role is not None and pod.role is role and not pod.is_terminating]
    wanted = sum(one.replicas for one in run.sets if one.role is role)
    return len(centre) >= wanted > 0 and all(pod.phase is Phase.SUCCEEDED for pod in centre)


@dataclass(frozen=True)
class ClusterSnapshot:
    """Everything that is known at one moment.

    Attributes:
        nodes: By name. pods: by uid. runs: by uid.
        revision: Grows with every change; a snapshot never goes back.
        problems: What could not be read, one sentence each.
        basis: An earlier ledger to build on; apply() hands it on.
    """

    nodes: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))
    pods: Mapping[str, PodView] = field(default_factory=lambda: MappingProxyType({}))
    runs: Mapping[str, RunView] = field(default_factory=lambda: MappingProxyType({}))
    revision: int = 0
    problems: tuple[str, ...] = ()
    basis: Basis | None = field(default=None, repr=False, compare=False)

    @cached_property
    def ledger(self) -> Ledger:
        """Slots and who holds them; worked out anew only for nodes on which something has changed."""
        basis = self.basis
        if basis is None:
            pods: Iterable[PodView] = self.pods.values()
        elif basis.touched:
            pods = (pod for pod in self.pods.values() if pod.node in basis.touched)
        else:
            return basis.ledger
        holders = (pod.holder for pod in pods)
        return build_ledger(self.nodes.values(), (one for one in holders if one is not None), basis)

    @property
    def next_basis(self) -> Basis | None:
        """What the ledger of the next snapshot may build on; None while no ledger was asked for."""
        known: Ledger | None = self.__dict__.get("ledger")  # cached_property keeps it there
        return Basis(known, frozenset()) if known is not None else self.basis

    @cached_property
    def _pods_by_run(self) -> Mapping[str, list[PodView]]:
        found: dict[str, list[PodView]] = {}
        for pod in self.pods.values():
            if pod.run:
                found.setdefault(pod.run, []).append(pod)
        return found

    def run_named(self, name: str) -> RunView | None:
        """The run with this name, or None."""
        return next((run for run in self.runs.values() if run.name == name), None)

    def pods_of(self, run: str, set_name: str = "") -> tuple[PodView, ...]:
        """Pods of a run, or of one of its sets, in the order of sets and indices."""
        found = [pod for pod in self._pods_by_run.get(run, ()) if set_name in ("", pod.set_name)]
        # Sorted when they are asked for: of a large cluster few runs are looked at.
        found.sort(key=lambda pod: (pod.role != Role.LEARNER, pod.set_name, pod.index, pod.created))
        return tuple(found)

    def select(self, target: str) -> tuple[PodView, ...]:
        """Pods that a person means by ``RUN``, ``RUN/SET``, ``RUN/SET/INDEX``, an experiment or a pod's name."""
        head, *rest = target.split("/")
        runs = [run.name for run in self.runs.values() if head in (run.name, run.experiment)]
        if not runs and not rest:
            return tuple(pod for pod in self.pods.values() if pod.name == target)
        set_name = rest[0] if rest else ""
        pods = tuple(pod for run in sorted(runs) for pod in self.pods_of(run, set_name))
        return (
            tuple(pod for pod in pods if str(pod.index) == rest[1])
            if len(rest) == 2
            else pods
            if len(rest) < 2
            else ()
        )

    def runs_matching(self, target: str) -> tuple[RunView, ...]:
        """Runs with this name, or of the experiment with this name; sorted by name."""
        found = (run for run in self.runs.values() if target in (run.name, run.experiment))
        return tuple(sorted(found, key=lambda run: run.name))


EMPTY_SNAPSHOT = ClusterSnapshot()
