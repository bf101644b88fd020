"""Snapshot of the cluster: nodes, pods and runs as immutable rows, and the ledger derived from them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from l2rtui.domain.kinds import DECISIVE_ROLES, Role
from l2rtui.domain.ledger import Basis, DeviceUsage, Holder, Ledger, build_ledger
from l2rtui.domain.node import GpuShare, Node, SlotId
from l2rtui.domain.selection.filter_language import EXPERIMENT_WORDS, KINDS
from l2rtui.domain.status import Phase, Status, is_failing, pod_status
from l2rtui.domain.sweeps import Trial


class PodView(Struct, frozen=True):
    """One pod or process, launched by l2rtui or not.

    Attributes:
        uid: Unique forever; a replacement pod has another uid.
        run, set_name, role: Empty for pods that l2rtui did not launch.
        devices: Devices that it uses, as far as they are known.
        created, started: Seconds since the epoch; started is None until its process runs.
        ended: Seconds since the epoch at which its last process ended; None while it is not over, or if unknown.
        exit_code: Exit code of its last process that ended, None without one; 128 + n means signal n.
        pid: Process id, if the backend knows it.
        namespace: Empty if the backend has no namespaces. controller: Owner that replaces it, ``ReplicaSet x``.
        flags: Inconsistencies, one sentence each.
        ip: Its address inside the cluster or the Engine; empty while it has none.
        labels: Pairs of its own labels, if the backend has labels.
        context: Name of its context if several are shown; otherwise empty.
        requests: Units of extended resources that the scheduler counts for it. is_bound: Its node was chosen.
        containers: Number of its main containers. containers_ready: Number of ready ones, if it has several.
        worker: Index of the worker in its pod if each worker has a row; None if the pod is the worker.
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
    devices: tuple[DeviceUsage, ...] = ()
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
    ip: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    context: str = ""
    requests: tuple[tuple[str, int], ...] = ()
    is_bound: bool = True
    containers: int = 1
    containers_ready: int = 0
    worker: int | None = None
    ended: float | None = None

    @property
    def status(self) -> Status:
        """Word, level and sentence for display."""
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
        """The exact slots that it uses; empty if only the device or the node is known."""
        return tuple(
            SlotId(self.node, usage.gpu, usage.slot)
            for usage in self.devices
            if usage.gpu is not None and usage.slot is not None
        )

    @property
    def is_failing(self) -> bool:
        """True if the pod has failed or is in a crash loop."""
        return is_failing(self.phase, self.reason, is_terminating=self.is_terminating)

    @property
    def is_down(self) -> bool:
        """True while none of its processes runs, so that its last record is out of date."""
        return self.phase is Phase.PENDING or self.phase.is_over or self.is_failing

    @property
    def holder(self) -> Holder | None:
        """Input of the ledger; None without devices and inconsistencies, or once the pod has ended."""
        if not (self.devices or self.flags or self.requests) or self.phase.is_over:
            return None
        return Holder(
            self.uid,
            self.name,
            self.node,
            self.owner,
            self.run,
            self.set_name,
            self.devices,
            self.is_failing,
            self.flags,
            self.requests,
            self.is_bound,
        )


class SetView(Struct, frozen=True):
    """One set of a run and its desired number of replicas.

    Attributes:
        takes_slots: Each replica takes slots or whole GPUs of a node.
    """

    name: str
    role: Role
    replicas: int
    takes_slots: bool = True


LOST = "Lost"
"""Reason of a run whose controllers were deleted by someone else."""
SCALED = "Scaled"
"""Reason of a run with a set whose number of pods another program has changed."""
UNSEEN = "Unseen"
"""Reason of pods and runs that are no longer visible, although their backend answers; their last state is shown."""
UNSUPERVISED = "Unsupervised"
"""Reason of a run whose supervisor ended before it; ``Backend.adopt`` starts a new supervisor."""


class RunView(Struct, frozen=True):
    """One launched run.

    Attributes:
        reason: Abnormal state, for example ``Unsupervised``; otherwise empty.
        message: One sentence on the reason.
        silent_since: Time since which its supervisor does not respond, in seconds since the epoch; None while it
            responds, and if a system service supervises runs.
        context: Name of its context if several are shown; otherwise empty.
        trial: Trial of a sweep that it belongs to; None outside of a sweep.
        spec_id: Id of its spec without name and seed, see ``domain.history.identity``; empty if unknown.
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
    silent_since: float | None = None
    context: str = ""
    trial: Trial | None = None
    spec_id: str = ""

    @property
    def place(self) -> str:
        """Context and namespace, as far as they exist; runs of an experiment share them."""
        return "/".join(filter(None, (self.context, self.namespace)))

    def set_named(self, name: str) -> SetView | None:
        """Return the set with this name, or None."""
        return next((view for view in self.sets if view.name == name), None)


def has_finished(run: RunView, pods: Iterable[PodView]) -> bool:
    """True if all replicas of the decisive role have succeeded, even while other pods still wait for them.

    Parameter servers of the user's own images, for example, never end without being stopped.
    """
    role = next((role for kind, role in DECISIVE_ROLES.items() if kind == run.kind), None)
    centre = [pod for pod in pods if role is not None and pod.role is role and not pod.is_terminating]
    replicas = sum(worker_set.replicas for worker_set in run.sets if worker_set.role is role)
    return len(centre) >= replicas > 0 and all(pod.phase is Phase.SUCCEEDED for pod in centre)


class ContextHealth(Struct, frozen=True):
    """State of one of several contexts that are shown together.

    Attributes:
        name: Prefix of its rows.
        has_rows: It has responded at least once; its rows may be old.
        old_since: Time of its last response, in seconds since the epoch; None while it responds.
        has_failed: Its watch is down; without rows it counts as unreachable, not as loading.
        problems: One sentence for each part of it that cannot be read.
        is_protected: Its name must be typed before every change in it.
    """

    name: str
    has_rows: bool = False
    old_since: float | None = None
    has_failed: bool = False
    problems: tuple[str, ...] = ()
    is_protected: bool = False

    @property
    def is_live(self) -> bool:
        """True while its rows are current, though some may be missing."""
        return self.has_rows and self.old_since is None


@dataclass(frozen=True)
class ClusterSnapshot:
    """State of the cluster at one moment.

    Attributes:
        nodes: By name. pods: By uid. runs: By uid.
        revision: Increases with every change, so that a late reader can drop older snapshots.
        problems: One sentence for each part that could not be read.
        silent_since: Time of the backend's last response, in seconds since the epoch; None while it responds.
        contexts: State of each context, in the order of the rows, if several are shown; otherwise empty.
        basis: Earlier ledger to build on, passed on by apply().
    """

    nodes: Mapping[str, Node] = field(default_factory=lambda: MappingProxyType({}))
    pods: Mapping[str, PodView] = field(default_factory=lambda: MappingProxyType({}))
    runs: Mapping[str, RunView] = field(default_factory=lambda: MappingProxyType({}))
    revision: int = 0
    problems: tuple[str, ...] = ()
    silent_since: float | None = None
    contexts: tuple[ContextHealth, ...] = ()
    basis: Basis | None = field(default=None, repr=False, compare=False)

    @cached_property
    def ledger(self) -> Ledger:
        """Slots and their holders, computed on first access and rebuilt only for nodes that have changed."""
        basis = self.basis
        if basis is None:
            pods: Iterable[PodView] = self.pods.values()
        elif basis.touched:
            pods = (pod for pod in self.pods.values() if pod.node in basis.touched)
        else:
            # No slot has changed: return the earlier ledger itself, so that screens skip their redraw by identity.
            return basis.ledger
        holders = (pod.holder for pod in pods)
        return build_ledger(self.nodes.values(), (holder for holder in holders if holder is not None), basis)

    @property
    def next_basis(self) -> Basis | None:
        """Basis for the ledger of the next snapshot; None if no ledger was ever computed."""
        ledger: Ledger | None = self.__dict__.get("ledger")  # cached_property keeps it there
        return Basis(ledger, frozenset()) if ledger is not None else self.basis

    @cached_property
    def _pods_by_run(self) -> Mapping[str, list[PodView]]:
        pods_by_run: dict[str, list[PodView]] = {}
        for pod in self.pods.values():
            if pod.run:
                pods_by_run.setdefault(pod.run, []).append(pod)
        return pods_by_run

    @cached_property
    def pods_on(self) -> Mapping[str, int]:
        """Number of pods on each node, without ended pods; nodes without pods are left out."""
        return Counter(pod.node for pod in self.pods.values() if pod.node and not pod.phase.is_over)

    def num_pods_on(self, node: Node) -> int | None:
        """Number of pods on a node; None if they cannot all be listed."""
        return self.pods_on.get(node.name, 0) if node.is_use_known else None

    def gpu_shares(self, pod: PodView) -> Mapping[int, GpuShare | None]:
        """Part of each measured GPU that a pod uses, by GPU index; None for an unknown part."""
        node = self.nodes.get(pod.node)
        if node is None or pod.phase.is_over:
            return {}
        planned = {usage.gpu for usage in pod.devices}
        shares = {use.gpu: use.share(pod.uid) for use in node.gpu_use}
        # Includes GPUs that it was not placed on: measured processes prove more than a plan.
        return {gpu: share for gpu, share in shares.items() if share is not None or gpu in planned}

    def run_named(self, name: str) -> RunView | None:
        """Return the run with this name, or None."""
        return next((run for run in self.runs.values() if run.name == name), None)

    def pods_of(self, run: str | RunView, set_name: str = "") -> tuple[PodView, ...]:
        """Pods of a run, or of one of its sets, sorted by set and index.

        Args:
            run: Its name, or the run itself if another namespace may have a run of that name.
        """
        name, namespace = (run, "") if isinstance(run, str) else (run.name, run.namespace)
        pods = [
            pod
            for pod in self._pods_by_run.get(name, ())
            if set_name in ("", pod.set_name) and (not namespace or pod.namespace in ("", namespace))
        ]
        # Sorted on request, not when built: few runs of a large cluster are displayed.
        pods.sort(key=lambda pod: (pod.role != Role.LEARNER, pod.set_name, pod.index, pod.created))
        return tuple(pods)

    def select(self, target: str) -> tuple[PodView, ...]:
        """Pods selected by ``RUN``, ``RUN/SET``, ``RUN/SET/INDEX``, the same for an experiment, or by a pod's name.

        A prefix such as ``run/`` or ``pod/`` restricts the kind.
        """
        runs, parts = self.runs_in(target)
        # A run takes precedence over a pod of the same name.
        if not runs:
            name = _without_kind(target, "pods")
            return tuple(pod for pod in self.pods.values() if pod.name == name) if name else ()
        pods = tuple(pod for run in runs for pod in self.pods_of(run, parts[0] if parts else ""))
        if len(parts) < 2:
            return pods
        return tuple(pod for pod in pods if parts[1:] == (str(pod.index),))

    def runs_matching(self, target: str) -> tuple[RunView, ...]:
        """Run with this name, or runs of ``experiment/NAME``, or of an experiment if no run has that name."""
        runs, parts = self.runs_in(target)
        return () if parts else runs

    def runs_in(self, target: str) -> tuple[tuple[RunView, ...], tuple[str, ...]]:
        """Runs that a target names, sorted by name, and the rest of the target: set, index.

        The exact name of a run means only that run. An experiment is ``experiment/NAME``; its bare name refers to
        it only if no run has that name.
        """
        head, *rest = target.split("/")
        runs = [run for run in self.runs.values() if run.name == head]
        if rest and not any(run.set_named(rest[0]) for run in runs):  # otherwise it is the set of a run named `exp`
            after = tuple(rest[1:])
            if head in EXPERIMENT_WORDS and (members := self._runs_of(rest[0])):
                return members, after
            kind = KINDS.get(head)
            if (
                not runs
                and kind == "runs"
                and (named := [run for run in self.runs.values() if run.name == rest[0]])
            ):
                return _by_name(named), after
            if not runs and kind == "pods" and not after and any(pod.name == rest[0] for pod in self.pods.values()):
                return (), ()
        return _by_name(runs) or self._runs_of(head), tuple(rest)

    def in_namespace(self, namespace: str) -> ClusterSnapshot:
        """Return the view with ``-n NAMESPACE``: only runs of the namespace; pods of other runs appear without a
        run.
        """
        runs = {uid: run for uid, run in self.runs.items() if run.namespace == namespace}
        pods = {
            uid: pod if pod.namespace == namespace else replace(pod, run="", set_name="", role=None)
            for uid, pod in self.pods.items()
        }
        return dataclasses.replace(self, runs=runs, pods=pods, basis=None)

    def _runs_of(self, experiment: str) -> tuple[RunView, ...]:
        return _by_name(run for run in self.runs.values() if run.experiment == experiment)


def _by_name(runs: Iterable[RunView]) -> tuple[RunView, ...]:
    return tuple(sorted(runs, key=lambda run: (run.name, run.namespace)))


def _without_kind(target: str, kind: str) -> str:
    """Return the name in ``NAME`` or ``KIND/NAME``; empty for any other target."""
    head, slash, name = target.rpartition("/")
    return name if not slash or KINDS.get(head) == kind else ""


EMPTY_SNAPSHOT = ClusterSnapshot()
