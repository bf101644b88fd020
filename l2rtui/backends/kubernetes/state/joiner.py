"""Objects of several kinds joined into rows: what changes in one kind is followed to every row that shows it.

A pod's row needs its node (devices), its controller (seats) and its events (reasons); a run's row needs its
controllers. This holds the newest of each, marks what a change touches, and makes only those rows again. No I/O:
the feed puts objects in, and takes changes out a few times a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.allocations import Allocations
from l2rtui.backends.kubernetes.dcgm import Samples, exporters, uses
from l2rtui.backends.kubernetes.decode import Unread
from l2rtui.backends.kubernetes.devices import NodeDevices, SlotRule, read_devices
from l2rtui.backends.kubernetes.dra_structs import ClaimStruct, SliceStruct
from l2rtui.backends.kubernetes.lists import key_of
from l2rtui.backends.kubernetes.rows import (
    is_own,
    node_view,
    planned_node,
    pod_view,
    run_view,
    unread_pod_view,
)
from l2rtui.backends.kubernetes.seats import Seat, Seating, is_living, read_seats
from l2rtui.backends.kubernetes.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
)
from l2rtui.domain.change import Change, NodeChanged, NodeGone, PodChanged, PodGone, RunChanged, RunGone
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.status import Phase

T = TypeVar("T")
_OVER = (Phase.SUCCEEDED, Phase.FAILED)
_MOST_EVENTS = 20
"""Events kept for one object: the latest tell why it does not run."""


class Join:
    """The rows of one cluster.

    Args:
        rule: Slots of a device.
        clock: Seconds since the epoch: some reasons name how long something has lasted.
    """

    def __init__(self, rule: SlotRule, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock
        self._nodes: dict[str, NodeStruct] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._metrics: dict[str, NodeMetricsStruct] = {}
        self._samples: Samples = {}
        self._pods: dict[str, PodStruct] = {}
        self._unread: dict[str, Unread] = {}
        self._runs: dict[str, ConfigMapStruct] = {}
        self._controllers: dict[str, ControllerStruct] = {}
        self._events: defaultdict[str, dict[str, EventStruct]] = defaultdict(dict)
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._of_controller: defaultdict[str, set[str]] = defaultdict(set)
        self._of_run: defaultdict[str, set[str]] = defaultdict(set)
        self._seating = Seating()
        self._allocations = Allocations()
        self._seats: dict[str, Seat] = {}
        self._is_use_known = True
        self._is_derived = False
        self._homes: frozenset[str] = frozenset()
        self._node_rows: dict[str, Node] = {}
        self._pod_rows: dict[str, PodView] = {}
        self._run_rows: dict[str, RunView] = {}
        self._waiting: set[str] = set()
        self._dirty_nodes: set[str] = set()
        self._dirty_pods: set[str] = set()
        self._dirty_runs: set[str] = set()
        self._dirty_controllers: set[str] = set()

    # --- objects in --------------------------------------------------------------------------------------------
    def put_node(self, old: NodeStruct | None, new: NodeStruct | None) -> None:
        """A node is new, differs or is gone."""
        name = _either(old, new).metadata.name
        if new is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = new
        self._dirty_nodes.add(name)

    def put_pod(self, old: PodStruct | None, new: PodStruct | None) -> None:
        """A pod is new, differs or is gone."""
        if old is not None:
            self._forget_pod(old)
        if new is not None:
            uid = new.metadata.uid
            self._pods[uid] = new
            self._on_node[planned_node(new)].add(uid)
            if new.spec.resource_claims:
                self._allocations.add_user(new)
            if (owner := new.metadata.controller) is not None and is_own(new.metadata):
                self._of_controller[owner.uid].add(uid)
        elif old is not None:
            self._seats.pop(old.metadata.uid, None)
        for pod in (old, new):
            if pod is not None:
                self._dirty_pods.add(pod.metadata.uid)
                if is_own(pod.metadata) and (owner := pod.metadata.controller) is not None:
                    self._dirty_controllers.add(owner.uid)
                if self._is_derived:
                    self._dirty_nodes.add(planned_node(pod))

    def put_controller(self, old: ControllerStruct | None, new: ControllerStruct | None) -> None:
        """A ReplicaSet, StatefulSet or Job of ours is new, differs or is gone."""
        one = _either(old, new)
        uid, run = one.metadata.uid, one.metadata.label(labels.RUN_ID)
        if new is None:
            self._controllers.pop(uid, None)
            self._of_run[run].discard(uid)
        else:
            self._controllers[uid] = new
            self._of_run[run].add(uid)
        self._dirty_controllers.add(uid)
        self._dirty_runs.add(run)

    def put_run(self, old: ConfigMapStruct | None, new: ConfigMapStruct | None) -> None:
        """The ConfigMap of a run is new, differs or is gone."""
        run = _either(old, new).metadata.label(labels.RUN_ID)
        if new is None:
            self._runs.pop(run, None)
        else:
            self._runs[run] = new
        self._dirty_runs.add(run)

    def put_event(self, old: EventStruct | None, new: EventStruct | None) -> None:
        """Somebody tells something about a pod or a controller."""
        one = _either(old, new)
        uid = one.involved_object.uid or ""
        key = key_of(one.metadata)
        if new is None:
            self._events[uid].pop(key, None)
            if not self._events[uid]:
                del self._events[uid]
        else:
            told = self._events[uid]
            told[key] = new
            if len(told) > _MOST_EVENTS:
                del told[min(told, key=lambda name: told[name].last_seen)]
        if uid in self._pods:
            self._dirty_pods.add(uid)
        elif uid in self._controllers:
            self._dirty_runs.add(self._controllers[uid].metadata.label(labels.RUN_ID))

    def put_metrics(self, old: NodeMetricsStruct | None, new: NodeMetricsStruct | None) -> None:
        """Somebody has measured a node."""
        name = _either(old, new).metadata.name
        if new is None:
            self._metrics.pop(name, None)
        else:
            self._metrics[name] = new
        self._dirty_nodes.add(name)

    def set_samples(self, samples: Samples) -> None:
        """The GPUs of these nodes, and of no others, have been measured."""
        self._dirty_nodes.update(samples, self._samples)
        self._samples = samples

    def put_claim(self, old: ClaimStruct | None, new: ClaimStruct | None) -> None:
        """A resource claim is new, differs or is gone."""
        self._dirty_pods |= self._allocations.put_claim(old, new)

    def put_slice(self, old: SliceStruct | None, new: SliceStruct | None) -> None:
        """A driver tells of its devices on a node."""
        self._dirty_pods |= self._allocations.put_slice(old, new)

    def set_unread_pods(self, unread: Iterable[Unread]) -> None:
        """These pods, and no others, cannot be decoded."""
        found = {one.metadata.uid: one for one in unread}
        if found != self._unread:
            self._dirty_pods.update(found, self._unread)
            self._unread = found

    def set_view(self, *, homes: Iterable[str], is_use_known: bool, is_derived: bool) -> None:
        """Say how far one can see.

        Args:
            homes: Namespaces of the runs that are shown; pods of runs elsewhere are other people's pods.
            is_use_known: All pods can be listed. is_derived: nodes cannot, so that pods must tell of them.
        """
        self._homes = frozenset(homes)
        if (is_use_known, is_derived) != (self._is_use_known, self._is_derived):
            self._is_use_known, self._is_derived = is_use_known, is_derived
            self._dirty_nodes.update(self._nodes, self._on_node, self._node_rows)

    def watch_the_clock(self) -> None:
        """Look again at pods whose reason may change by time alone: those that wait or are being stopped."""
        self._dirty_pods |= self._waiting

    def exporters(self) -> list[PodStruct]:
        """Pods that can be asked what is in use of their node's GPUs."""
        return exporters(self._pods.values())

    # --- changes out -------------------------------------------------------------------------------------------
    def changes(self) -> tuple[Change, ...]:
        """What differs since the last call."""
        made: list[Change] = []
        self._make_nodes(made)
        self._make_seats()
        self._make_pods(made)
        self._make_runs(made)
        return tuple(made)

    def gone_since(self, before: Join) -> tuple[Change, ...]:
        """Rows that another join has given out and this one does not have: for readers who go on with this one."""
        nodes = (NodeGone(name) for name in before._node_rows.keys() - self._node_rows.keys())
        pods = (PodGone(uid) for uid in before._pod_rows.keys() - self._pod_rows.keys())
        runs = (RunGone(uid) for uid in before._run_rows.keys() - self._run_rows.keys())
        return (*nodes, *pods, *runs)

    def _make_nodes(self, made: list[Change]) -> None:
        dirty, self._dirty_nodes = self._dirty_nodes, set()
        for name in dirty:
            node = self._nodes.get(name)
            before = self._devices.get(name)
            row: Node | None
            if node is not None:
                devices = read_devices(node, self._rule)
                used = uses(devices, self._samples.get(name, ()))
                row = node_view(node, devices, self._metrics.get(name), used, is_use_known=self._is_use_known)
            else:
                devices = NodeDevices(name, ())
                row = self._derived(name) if self._is_derived and name and self._on_node.get(name) else None
            if row is None:
                self._devices.pop(name, None)
                if self._node_rows.pop(name, None) is not None:
                    made.append(NodeGone(name))
            elif (shown := self._node_rows.get(name)) != row:
                self._node_rows[name] = row
                made.append(NodeChanged(row))
                if shown is None or (shown.ready, shown.message) != (row.ready, row.message):
                    self._dirty_pods |= self._on_node.get(name, set())
            if row is not None and node is not None:
                self._devices[name] = devices
            if before != self._devices.get(name):
                self._dirty_pods |= self._on_node.get(name, set())

    def _derived(self, name: str) -> Node:
        """A node that we may not read, as far as the pods on it tell."""
        pods = (self._pods[uid] for uid in self._on_node[name])
        blank = NodeDevices(name, ())
        rows = [pod_view(pod, blank, None, (), 0.0) for pod in pods if pod.status.phase not in _OVER]
        found = [claim.gpu for row in rows for claim in row.claims if claim.gpu is not None]
        gpus = tuple(Gpu(name, index, slots=self._rule.per_gpu) for index in range(max(found, default=-1) + 1))
        return Node(name, gpus, is_use_known=False, message="known from its pods alone: nodes cannot be listed")

    def _make_seats(self) -> None:
        dirty, self._dirty_controllers = self._dirty_controllers, set()
        for uid in dirty:
            pods = [self._pods[one] for one in self._of_controller.get(uid, ())]
            controller = self._controllers.get(uid)
            metas = (
                [controller.metadata]
                if controller is not None
                else [pod.metadata for pod in pods if is_living(pod)] or [pod.metadata for pod in pods]
            )
            seats = max((read_seats(meta) for meta in metas), key=len, default=())
            found = self._seating.seat(uid, seats, pods)
            for pod in pods:
                one, seat = pod.metadata.uid, found.get(pod.metadata.uid)
                if self._seats.get(one) != seat:
                    self._dirty_pods.add(one)
                    if seat is None:
                        self._seats.pop(one, None)
                    else:
                        self._seats[one] = seat

    def _make_pods(self, made: list[Change]) -> None:
        dirty, self._dirty_pods = self._dirty_pods, set()
        now, rows = self._clock(), self._pod_rows
        for uid in dirty:
            pod, unread = self._pods.get(uid), self._unread.get(uid)
            row: PodView | None = None
            if pod is not None:
                name = planned_node(pod)
                devices = self._devices.get(name) or NodeDevices(name, ())
                node = self._nodes.get(pod.spec.node_name or "")
                allocated = self._allocations.held(pod, devices) if pod.spec.resource_claims else None
                row = pod_view(pod, devices, self._seats.get(uid), self._told(uid), now, node, allocated)
                if row.run and row.namespace not in self._homes:
                    row = replace(row, run="", set_name="", role=None)
            elif unread is not None:
                row = unread_pod_view(unread)
            if row is None:
                self._waiting.discard(uid)
                if rows.pop(uid, None) is not None:
                    made.append(PodGone(uid))
                continue
            if row.is_terminating or (row.phase is Phase.PENDING and row.run):
                self._waiting.add(uid)
            else:
                self._waiting.discard(uid)
            if (shown := rows.get(uid)) is None or shown != row:
                rows[uid] = row
                made.append(PodChanged(row))

    def _make_runs(self, made: list[Change]) -> None:
        dirty, self._dirty_runs = self._dirty_runs, set()
        for uid in dirty:
            run = self._runs.get(uid)
            if run is None:
                if self._run_rows.pop(uid, None) is not None:
                    made.append(RunGone(uid))
                continue
            owned = sorted(self._of_run.get(uid, ()))
            row = run_view(run, [(self._controllers[one], self._told(one)) for one in owned])
            if self._run_rows.get(uid) != row:
                self._run_rows[uid] = row
                made.append(RunChanged(row))

    def _told(self, uid: str) -> tuple[EventStruct, ...]:
        """Events about an object."""
        events = self._events.get(uid)
        return tuple(events.values()) if events else ()

    def _forget_pod(self, pod: PodStruct) -> None:
        uid, name = pod.metadata.uid, planned_node(pod)
        if self._pods.pop(uid, None) is None:
            return
        _discard(self._on_node, name, uid)
        if pod.spec.resource_claims:
            self._allocations.remove_user(pod)
        if (owner := pod.metadata.controller) is not None:
            _discard(self._of_controller, owner.uid, uid)


def _either(old: T | None, new: T | None) -> T:
    """The newer one of the two; at least one is there."""
    if new is not None:
        return new
    assert old is not None  # noqa: S101  (a change has two sides, and one of them is something)
    return old


def _discard(sets: dict[str, set[str]], key: str, member: str) -> None:
    """Take a member out of one of many sets; an empty set goes."""
    if key in sets:
        sets[key].discard(member)
        if not sets[key]:
            del sets[key]
