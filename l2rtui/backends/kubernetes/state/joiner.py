"""Join of objects of several kinds into rows; a change of one object updates every row that depends on it.

A pod's row needs its node (devices), its controller (replica index) and its events (reasons); a run's row needs its
controllers. The joiner stores the newest version of each object, marks the rows that a change affects, and rebuilds
only those. No I/O: ``cluster_watch`` puts objects in and takes changes out a few times per second.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.decode import UndecodedObject
from l2rtui.backends.kubernetes.api.list_pages import key_of
from l2rtui.backends.kubernetes.api.structs import (
    ConfigMapStruct,
    ControllerStruct,
    EventStruct,
    NodeMetricsStruct,
    NodeStruct,
    PodStruct,
)
from l2rtui.backends.kubernetes.state.dcgm import Samples, exporters, gpu_uses, pods_by_gpu
from l2rtui.backends.kubernetes.state.dra_allocations import (
    DraAllocations,
    ResourceClaimStruct,
    ResourceSliceStruct,
)
from l2rtui.backends.kubernetes.state.gpu_usage import PodGpuUsage, read_gpu_usage
from l2rtui.backends.kubernetes.state.node_devices import MOST_GPUS, NodeDevices, SlotRule, read_devices
from l2rtui.backends.kubernetes.state.own_reports import MOST_WORKERS, PodReport, worker_rows
from l2rtui.backends.kubernetes.state.views import (
    OVER,
    PlannedReplica,
    ReplicaIndexer,
    is_living,
    is_own,
    node_view,
    planned_node,
    pod_view,
    read_planned_replicas,
    run_view,
    undecoded_pod_view,
)
from l2rtui.config import user_name
from l2rtui.domain.change import Change, NodeChanged, NodeGone, PodChanged, PodGone, RunChanged, RunGone
from l2rtui.domain.kinds import Binding
from l2rtui.domain.node import CPU, Gpu, Node, SlotReservation
from l2rtui.domain.quantity import whole_number
from l2rtui.domain.reservations import read_reservations
from l2rtui.domain.snapshot import LOST, UNSEEN, PodView, RunView
from l2rtui.domain.status import Phase
from runtime.base.contract import WORKER_NAME

T = TypeVar("T")
_MOST_TRIES = 5
"""Maximum number of logs read of a pod to find its GPUs."""
_MOST_REPORTS = 512
_MOST_EVENTS = 20
"""Number of events stored per object: the latest explain why it does not run."""


_LOST_SECONDS = 4.0
"""Time for which controllers must be missing."""
_LAUNCH_SECONDS = 20.0
"""Age from which a run without its controllers has lost them; a launch makes them within seconds."""
_PATIENT_LAUNCH_SECONDS = 30.0
"""The same for a watch, whose words scripts act on: a launch of hundreds of runs takes longer."""


class Unseen(NamedTuple):
    """Loss of sight of a kind: since when, in seconds since the epoch, and why."""

    since: float
    cause: str

    @property
    def sentence(self) -> str:
        """Sentence on a row."""
        return f"not seen since {time.strftime('%H:%M:%S', time.localtime(self.since))}: {self.cause}"


class Joiner:
    """Rows of one cluster; the clock (seconds since the epoch) is read since some reasons contain a duration.

    Args:
        is_patient: Rows are made again and again, so that a loss is reported when it has lasted for a moment.
    """

    def __init__(self, rule: SlotRule, clock: Callable[[], float], *, is_patient: bool = False) -> None:
        self._rule = rule
        self._is_patient = is_patient
        self._clock = clock
        self._nodes: dict[str, NodeStruct] = {}
        self._devices: dict[str, NodeDevices] = {}
        self._metrics: dict[str, NodeMetricsStruct] = {}
        self._samples: Samples = {}
        self._measured: Mapping[tuple[str, str], tuple[int, ...]] = {}
        self._config_maps: dict[tuple[str, str], Mapping[str, str] | None] = {}
        self._unread: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._pods: dict[str, PodStruct] = {}
        self._undecoded: dict[str, UndecodedObject] = {}
        self._runs: dict[str, ConfigMapStruct] = {}
        self._controllers: dict[str, ControllerStruct] = {}
        self._events: defaultdict[str, dict[str, EventStruct]] = defaultdict(dict)
        # Indices from an object to the pods (by uid) or controllers whose rows depend on it.
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)
        self._of_controller: defaultdict[str, set[str]] = defaultdict(set)
        self._of_run: defaultdict[str, set[str]] = defaultdict(set)
        self._replica_indexer = ReplicaIndexer()
        self._allocations = DraAllocations()
        self._replicas: dict[str, PlannedReplica] = {}
        self._is_use_known = True
        self._is_derived = False
        self._are_nodes_complete = False
        self._reserved: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._run_namespaces: frozenset[str] = frozenset()
        self._node_rows: dict[str, Node] = {}
        self._pod_rows: dict[str, PodView] = {}
        self._run_rows: dict[str, RunView] = {}
        self._waiting: set[str] = set()
        # Runs whose controllers were complete once, and those that lack some, by uid.
        self._made: set[str] = set()
        self._young_runs: set[str] = set()
        self._unseen_pods: Mapping[str | None, Unseen] = {}
        self._unseen_runs: Mapping[str | None, Unseen] = {}
        self._lost_since: dict[str, float] = {}
        # Pods that report what the API does not know, and their reports, by uid.
        self._reporting: dict[str, PodStruct] = {}
        self._reports: dict[str, PodReport] = {}
        self._tries: Counter[str] = Counter()
        self._workers: dict[str, int] = {}
        # Rows to rebuild at the next changes(), in this order, as each step may mark rows of the later ones.
        self._dirty_nodes: set[str] = set()
        self._dirty_pods: set[str] = set()
        self._dirty_runs: set[str] = set()
        self._dirty_controllers: set[str] = set()

    # --- objects in --------------------------------------------------------------------------------------------
    def put_node(self, old: NodeStruct | None, new: NodeStruct | None) -> None:
        """Add, replace or remove a node."""
        name = _newer(old, new).metadata.name
        _store(self._nodes, name, new)
        self._dirty_nodes.add(name)

    def put_pod(self, old: PodStruct | None, new: PodStruct | None) -> None:
        """Add, replace or remove a pod."""
        if old is not None:
            self._forget_pod(old)
        if new is not None:
            uid = new.metadata.uid
            self._pods[uid] = new
            self._on_node[planned_node(new)].add(uid)
            if new.spec.resource_claims:
                self._allocations.add_user(new)
            if (owner := new.metadata.controller) is not None and is_own(new.metadata):
                self._add_own(new, owner.uid)
        elif old is not None:
            self._replicas.pop(old.metadata.uid, None)
            self._reports.pop(old.metadata.uid, None)
            self._tries.pop(old.metadata.uid, None)
        for pod in (old, new):
            if pod is not None:
                self._dirty_pods.add(pod.metadata.uid)
                if is_own(pod.metadata) and (owner := pod.metadata.controller) is not None:
                    self._dirty_controllers.add(owner.uid)
                if self._is_derived:
                    self._dirty_nodes.add(planned_node(pod))

    def _add_own(self, pod: PodStruct, controller: str) -> None:
        self._of_controller[controller].add(pod.metadata.uid)
        if pod.metadata.annotation(labels.BINDING) == Binding.DEVICE_PLUGIN:
            self._reporting[pod.metadata.uid] = pod

    def put_controller(self, old: ControllerStruct | None, new: ControllerStruct | None) -> None:
        """Add, replace or remove a ReplicaSet, StatefulSet or Job of ours."""
        controller = _newer(old, new)
        uid, run = controller.metadata.uid, controller.metadata.label(labels.RUN_ID)
        _store(self._controllers, uid, new)
        if new is None:
            self._of_run[run].discard(uid)
        else:
            self._of_run[run].add(uid)
        self._dirty_controllers.add(uid)
        self._dirty_runs.add(run)

    def put_run(self, old: ConfigMapStruct | None, new: ConfigMapStruct | None) -> None:
        """Add, replace or remove the ConfigMap of a run, or of a node's reservations."""
        if _newer(old, new).metadata.label(labels.APP_COMPONENT) == labels.RESERVATIONS:
            self._put_reservations(_newer(old, new), is_there=new is not None)
            return
        run = _newer(old, new).metadata.label(labels.RUN_ID)
        _store(self._runs, run, new)
        self._dirty_runs.add(run)

    def _put_reservations(self, config_map: ConfigMapStruct, *, is_there: bool) -> None:
        node, text = config_map.metadata.annotation(labels.HOST), ""
        if is_there:
            text = (config_map.data or {}).get(labels.RESERVATIONS_KEY, "")
        # By namespace as well: each may have a ConfigMap of the same name.
        _store(self._reserved[node], key_of(config_map.metadata), text or None)
        self._dirty_nodes.add(node)

    def put_event(self, old: EventStruct | None, new: EventStruct | None) -> None:
        """Add, replace or remove an event about a pod or a controller."""
        event = _newer(old, new)
        uid = event.involved_object.uid or ""
        key = key_of(event.metadata)
        if new is None:
            self._events[uid].pop(key, None)
            if not self._events[uid]:
                del self._events[uid]
        else:
            events = self._events[uid]
            events[key] = new
            if len(events) > _MOST_EVENTS:
                del events[min(events, key=lambda name: events[name].last_seen)]
        # An event may arrive before its object: then the object's own put marks the row.
        if uid in self._pods:
            self._dirty_pods.add(uid)
        elif uid in self._controllers:
            self._dirty_runs.add(self._controllers[uid].metadata.label(labels.RUN_ID))

    def put_metrics(self, old: NodeMetricsStruct | None, new: NodeMetricsStruct | None) -> None:
        """Add, replace or remove the metrics of a node."""
        name = _newer(old, new).metadata.name
        _store(self._metrics, name, new)
        self._dirty_nodes.add(name)

    def set_samples(self, samples: Samples) -> None:
        """Replace all GPU samples."""
        # Includes old ones: a node whose exporter is gone must lose its figures.
        self._dirty_nodes.update(samples, self._samples)
        self._samples = samples
        measured = pods_by_gpu(samples, self._devices)
        if measured != self._measured:
            before, self._measured = self._measured, measured
            for uid, pod in self._pods.items():
                key = (pod.metadata.namespace, pod.metadata.name)
                if before.get(key) != measured.get(key):
                    self._dirty_pods.add(uid)

    def unread_config_maps(self) -> list[tuple[str, str]]:
        """Return namespace and name of ConfigMaps that may contain the GPU of a pod and were not read yet."""
        return [key for key in self._unread if key not in self._config_maps]

    def set_config_maps(self, read: Mapping[tuple[str, str], Mapping[str, str] | None]) -> None:
        """Add ConfigMaps that were read; None for an unreadable one."""
        self._config_maps.update(read)
        for key in read:
            self._dirty_pods |= self._unread.pop(key, set())

    def reporting_pods(self) -> list[tuple[PodStruct, bool]]:
        """Return running pods whose reports should be read, and whether each runs several workers.

        Pods with several workers report repeatedly. From others only the GPU is needed, on nodes whose UUIDs are
        known.
        """
        pods = []
        for uid, pod in self._reporting.items():
            is_shared = bool(pod.metadata.annotation(labels.WORKERS))
            devices = self._devices.get(pod.spec.node_name or "")
            is_open = uid not in self._reports and self._tries[uid] < _MOST_TRIES
            if pod.status.phase == Phase.RUNNING and (is_shared or (is_open and devices and devices.uuids)):
                pods.append((pod, is_shared))
        return pods[:_MOST_REPORTS]

    def set_reports(self, reports: Mapping[str, PodReport | None]) -> None:
        """Add reports that were read, by uid; None for a pod without a report, which keeps its earlier one."""
        for uid, report in reports.items():
            if report is None:
                self._tries[uid] += 1
            elif uid in self._pods and self._reports.get(uid) != report:
                self._reports[uid] = report
                self._dirty_pods.add(uid)

    def put_resource_claim(self, old: ResourceClaimStruct | None, new: ResourceClaimStruct | None) -> None:
        """Add, replace or remove a resource claim."""
        self._dirty_pods |= self._allocations.put_resource_claim(old, new)

    def put_resource_slice(self, old: ResourceSliceStruct | None, new: ResourceSliceStruct | None) -> None:
        """Add, replace or remove a resource slice."""
        self._dirty_pods |= self._allocations.put_resource_slice(old, new)

    def set_undecoded_pods(self, undecoded: Iterable[UndecodedObject]) -> None:
        """Replace the set of pods that cannot be decoded."""
        by_uid = {pod.metadata.uid: pod for pod in undecoded}
        if by_uid != self._undecoded:
            self._dirty_pods.update(by_uid, self._undecoded)
            self._undecoded = by_uid

    def set_nodes_complete(self, *, is_complete: bool) -> None:
        """Set whether every node is known now, so that a pod's node that is missing no longer exists."""
        if is_complete != self._are_nodes_complete:
            self._are_nodes_complete = is_complete
            for name, pods in self._on_node.items():
                if name and name not in self._nodes:
                    self._dirty_pods |= pods

    def set_visibility(self, *, run_namespaces: Iterable[str], is_use_known: bool, is_derived: bool) -> None:
        """Set which objects can be listed.

        Args:
            run_namespaces: Namespaces of the runs that are shown; pods of other runs count as foreign pods.
            is_use_known: All pods can be listed. is_derived: Nodes cannot be listed, and are derived from their
                pods.
        """
        self._run_namespaces = frozenset(run_namespaces)
        if (is_use_known, is_derived) != (self._is_use_known, self._is_derived):
            self._is_use_known, self._is_derived = is_use_known, is_derived
            self._dirty_nodes.update(self._nodes, self._on_node, self._node_rows)

    def set_unseen(self, pods: Mapping[str | None, Unseen], runs: Mapping[str | None, Unseen]) -> None:
        """Set which rows are of the past, by namespace (None for all): their watch is refused.

        Their last state would look like the present, so it becomes unknown.
        """
        if pods != self._unseen_pods:
            self._unseen_pods = dict(pods)
            self._dirty_pods.update(self._pods)
        if runs != self._unseen_runs:
            self._unseen_runs = dict(runs)
            self._dirty_runs.update(self._runs)

    def recheck_waiting_pods(self) -> None:
        """Mark rows that may change merely with time: pods that wait or terminate, reserved nodes, new runs."""
        self._dirty_pods |= self._waiting
        self._dirty_runs |= self._young_runs
        self._dirty_nodes.update(name for name, texts in self._reserved.items() if texts)

    def exporters(self) -> list[PodStruct]:
        """Return the pods of GPU metrics exporters."""
        return exporters(self._pods.values())

    # --- changes out -------------------------------------------------------------------------------------------
    def changes(self) -> tuple[Change, ...]:
        """Return the changes of rows since the last call."""
        # Nodes first, then replica indices, then pods: devices and indices are inputs of a pod's row.
        made: list[Change] = []
        self._make_nodes(made)
        self._assign_replicas()
        self._make_pods(made)
        self._make_runs(made)
        return tuple(made)

    def rows_missing_from(self, before: Joiner) -> tuple[Change, ...]:
        """Return removals of the rows that another joiner has reported and this one does not have."""
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
                used = gpu_uses(devices, self._samples.get(name, ()))
                row = node_view(node, devices, self._metrics.get(name), used, is_use_known=self._is_use_known)
            else:
                devices = NodeDevices(name, ())
                row = self._derived_node(name) if self._is_derived and name and self._on_node.get(name) else None
            if row is not None and self._reserved.get(name):
                row = replace(row, reservations=self._reservations(name))
            if row is None:
                self._devices.pop(name, None)
                if self._node_rows.pop(name, None) is not None:
                    made.append(NodeGone(name))
            elif (previous := self._node_rows.get(name)) != row:
                self._node_rows[name] = row
                made.append(NodeChanged(row))
                # Pods show the problem of their node, but not its metrics, which change every few seconds.
                if previous is None or (previous.ready, previous.message) != (row.ready, row.message):
                    self._dirty_pods |= self._on_node.get(name, set())
            if row is not None and node is not None:
                self._devices[name] = devices
            if before != self._devices.get(name):
                self._dirty_pods |= self._on_node.get(name, set())

    def _reservations(self, name: str) -> tuple[SlotReservation, ...]:
        """Return the unexpired reservations of a node, from all namespaces."""
        now, me = self._clock(), user_name()
        of_slots = {
            (item.gpu, item.slot): item
            for _, text in sorted(self._reserved[name].items(), reverse=True)  # the first entry of a slot counts
            for item in read_reservations(text, now, me)
        }
        return tuple(of_slots[key] for key in sorted(of_slots))

    def _derived_node(self, name: str) -> Node:
        """Derive a node that we may not read from the pods on it."""
        pods = (self._pods[uid] for uid in self._on_node[name])
        blank = NodeDevices(name, ())
        rows = [pod_view(pod, blank, None, (), 0.0) for pod in pods if pod.status.phase not in OVER]
        indices = [claim.gpu for row in rows for claim in row.devices if claim.gpu is not None]
        # A foreign pod may name any number, and that many GPUs would be created.
        count = max((index for index in indices if index < MOST_GPUS), default=-1) + 1
        gpus = tuple(Gpu(name, index, slots=self._rule.per_gpu) for index in range(count))
        cpu = Gpu(name, CPU, slots=self._rule.most_on_cpu, is_cpu=True) if CPU in indices else None
        message = "known only from its pods: nodes cannot be listed"
        return Node(name, gpus, is_use_known=False, message=message, cpu=cpu)

    def _assign_replicas(self) -> None:
        dirty, self._dirty_controllers = self._dirty_controllers, set()
        # Without the controller (deleted first, or not listed yet), the pods' own copies of the annotation are
        # read.
        for uid in dirty:
            pods = [self._pods[pod_uid] for pod_uid in self._of_controller.get(uid, ())]
            controller = self._controllers.get(uid)
            metas = (
                [controller.metadata]
                if controller is not None
                else [pod.metadata for pod in pods if is_living(pod)] or [pod.metadata for pod in pods]
            )
            # The longest plan: during a change of scale old pods still have the shorter one.
            planned = max((read_planned_replicas(meta) for meta in metas), key=len, default=())
            assigned = self._replica_indexer.assign(uid, planned, pods)
            for pod in pods:
                pod_uid, replica = pod.metadata.uid, assigned.get(pod.metadata.uid)
                if self._replicas.get(pod_uid) != replica:
                    self._dirty_pods.add(pod_uid)
                    _store(self._replicas, pod_uid, replica)

    def _make_pods(self, made: list[Change]) -> None:
        dirty, self._dirty_pods = self._dirty_pods, set()
        now, rows = self._clock(), self._pod_rows
        for uid in dirty:
            pod, undecoded = self._pods.get(uid), self._undecoded.get(uid)
            row: PodView | None = None
            if pod is not None:
                name = planned_node(pod)
                devices = self._devices.get(name) or NodeDevices(name, ())
                node = self._nodes.get(pod.spec.node_name or "")
                replica = self._replicas.get(uid)
                usage = self._usage(pod, devices, replica)
                is_gone = node is None and self._are_nodes_complete and bool(pod.spec.node_name)
                events = self._events_about(uid)
                row = pod_view(pod, devices, replica, events, now, node, usage, is_node_gone=is_gone)
                row = self._as_seen(row)
                if replica is not None and row.run and self._make_workers(row, pod, made):
                    continue
            elif undecoded is not None:
                row = undecoded_pod_view(undecoded)
            if row is None:
                self._waiting.discard(uid)
                self._remove_rows(uid, made)
                continue
            if row.is_terminating or (row.phase is Phase.PENDING and row.run):
                self._waiting.add(uid)
            else:
                self._waiting.discard(uid)
            if uid in self._workers:
                self._remove_rows(uid, made)
            if rows.get(uid) != row:
                rows[uid] = row
                made.append(PodChanged(row))

    def _make_workers(self, row: PodView, pod: PodStruct, made: list[Change]) -> bool:
        """Make the rows of the workers of a pod; return False for a pod that is a single worker."""
        workers = whole_number(pod.metadata.annotation(labels.WORKERS)) or 1
        if not 1 < workers <= MOST_WORKERS:
            return False
        self._workers[row.uid] = workers
        if self._pod_rows.pop(row.uid, None) is not None:  # made before its replica was known
            made.append(PodGone(row.uid))
        if row.is_terminating or row.phase is Phase.PENDING:
            self._waiting.add(row.uid)
        else:
            self._waiting.discard(row.uid)
        for worker in worker_rows(row, workers, self._reports.get(row.uid)):
            if self._pod_rows.get(worker.uid) != worker:
                self._pod_rows[worker.uid] = worker
                made.append(PodChanged(worker))
        return True

    def _remove_rows(self, uid: str, made: list[Change]) -> None:
        workers = [WORKER_NAME.format(uid, worker) for worker in range(self._workers.pop(uid, 0))]
        made.extend(PodGone(key) for key in workers or [uid] if self._pod_rows.pop(key, None) is not None)

    def _usage(self, pod: PodStruct, devices: NodeDevices, replica: PlannedReplica | None) -> PodGpuUsage:
        """Read the GPU usage of a pod, using claims, measurements and ConfigMaps."""
        claims, meta = pod.spec.resource_claims, pod.metadata
        if replica is None and not (claims or self._measured or self._config_maps):  # nearly every pod
            usage = read_gpu_usage(pod, devices)
        else:
            usage = read_gpu_usage(
                pod,
                devices,
                replica.slots if replica is not None else None,
                self._allocations.usage(pod, devices) if claims else None,
                measured=self._measured.get((meta.namespace, meta.name)) or self._reported_gpus(meta.uid, devices),
                config_maps=self._config_maps,
            )
        if usage.config_maps and pod.status.phase not in OVER:
            for key in usage.config_maps:
                self._unread[key].add(meta.uid)
        return usage

    def _reported_gpus(self, uid: str, devices: NodeDevices) -> tuple[int, ...]:
        """Return the GPUs that one of our pods sees; empty unless all of them are GPUs of its node."""
        report = self._reports.get(uid)
        indices = [devices.uuids.get(uuid) for uuid in report.uuids] if report is not None else ()
        return () if None in indices else tuple(sorted({index for index in indices if index is not None}))

    def _make_runs(self, made: list[Change]) -> None:
        dirty, self._dirty_runs = self._dirty_runs, set()
        for uid in dirty:
            run = self._runs.get(uid)
            if run is None:
                self._young_runs.discard(uid)
                self._made.discard(uid)
                self._lost_since.pop(uid, None)
                if self._run_rows.pop(uid, None) is not None:
                    made.append(RunGone(uid))
                continue
            owned = sorted(self._of_run.get(uid, ()))
            row = run_view(run, [(self._controllers[key], self._events_about(key)) for key in owned])
            row = self._with_patience(row)
            unseen = self._unseen_runs.get(row.namespace)
            if unseen is not None and not row.is_terminating:
                row = replace(row, reason=UNSEEN, message=unseen.sentence, silent_since=unseen.since)
            if self._run_rows.get(uid) != row:
                self._run_rows[uid] = row
                made.append(RunChanged(row))

    def _as_seen(self, row: PodView) -> PodView:
        """Return a row as far as the user can see it now."""
        # A run is known by its name within one namespace: elsewhere it may be another run of that name.
        if row.run and row.namespace not in self._run_namespaces:
            row = replace(row, run="", set_name="", role=None)
        unseen = self._unseen_pods.get(None) or self._unseen_pods.get(row.namespace)
        if unseen is None or row.phase.is_over:
            return row
        return replace(row, phase=Phase.UNKNOWN, reason=UNSEEN, message=unseen.sentence, ready=False)

    def _with_patience(self, row: RunView) -> RunView:
        """Return a run without a loss of controllers that its launch has yet to make, or that a scale replaces."""
        now = self._clock()
        self._young_runs.discard(row.uid)
        if row.reason != LOST:
            self._made.add(row.uid)
            self._lost_since.pop(row.uid, None)
            return row
        since = self._lost_since.setdefault(row.uid, now)
        limit = _PATIENT_LAUNCH_SECONDS if self._is_patient else _LAUNCH_SECONDS
        is_launched = row.uid in self._made or now - row.created > limit
        # A scale deletes a controller first, and writes the number of replicas last.
        if is_launched and (not self._is_patient or now - since >= _LOST_SECONDS):
            return row
        self._young_runs.add(row.uid)
        return replace(row, reason="", message="")

    def _events_about(self, uid: str) -> tuple[EventStruct, ...]:
        events = self._events.get(uid)
        return tuple(events.values()) if events else ()

    def _forget_pod(self, pod: PodStruct) -> None:
        uid, name = pod.metadata.uid, planned_node(pod)
        if self._pods.pop(uid, None) is None:
            return
        self._reporting.pop(uid, None)
        _discard(self._on_node, name, uid)
        if pod.spec.resource_claims:
            self._allocations.remove_user(pod)
        if (owner := pod.metadata.controller) is not None:
            _discard(self._of_controller, owner.uid, uid)


def _newer(old: T | None, new: T | None) -> T:
    """Return the newer of the two; at least one is not None."""
    if new is not None:
        return new
    assert old is not None  # noqa: S101  (a change has two sides, and one of them is something)
    return old


def _store(objects: dict[str, T], key: str, new: T | None) -> None:
    """Store the new version of an object, or remove the object if it is None."""
    if new is None:
        objects.pop(key, None)
    else:
        objects[key] = new


def _discard(sets: dict[str, set[str]], key: str, member: str) -> None:
    """Remove a member from one of the sets; an empty set is removed too."""
    if key in sets:
        sets[key].discard(member)
        if not sets[key]:
            del sets[key]
