"""Structs of Kubernetes objects with the fields that we read; the decoder skips all other fields.

Every field may be missing or null, as no server guarantees otherwise: one malformed object must not fail a list.
Names are the Kubernetes API's in snake case. Times are aware datetimes; epoch() converts them to seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class KubeStruct(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """Base of all structs: camel case in JSON, immutable.

    ``gc=False``: the values hold no reference cycles, and ten thousand pods would make each collection slow.
    """


class OwnerReference(KubeStruct, frozen=True):
    """Owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(KubeStruct, frozen=True):
    """Metadata of every object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    # If set, the deletion timestamp is the end of the grace period, not the time of the request.
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None

    def label(self, key: str) -> str:
        """Return the value of a label; empty if it is not set."""
        return (self.labels or {}).get(key, "")

    def annotation(self, key: str) -> str:
        """Return the value of an annotation; empty if it is not set."""
        return (self.annotations or {}).get(key, "")

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that owns this object; None for an unmanaged one."""
        for owner in self.owner_references or ():  # a generator costs three times as much, ten thousand times
            if owner.controller:
                return owner
        return None


class KubeObject(KubeStruct, frozen=True):
    """Base of all top-level objects."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(KubeStruct, frozen=True):
    """One condition of a node, pod or controller: ``status`` is True, False or Unknown, as text."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class PresenceMarker(KubeStruct, frozen=True):
    """Object of which only the presence matters; its content is not decoded."""


class KeyReference(KubeStruct, frozen=True):
    """Reference to a ConfigMap or a Secret, or to one of its keys."""

    name: str = ""
    key: str = ""


class FieldReference(KubeStruct, frozen=True):
    """Reference to a field of the pod (downward API)."""

    field_path: str = ""


class EnvSource(KubeStruct, frozen=True):
    """Source of a variable's value; all fields are None if only the container knows it."""

    config_map_key_ref: KeyReference | None = None
    field_ref: FieldReference | None = None


class EnvVar(KubeStruct, frozen=True):
    """Environment variable: a value, or the source of one."""

    name: str = ""
    value: str | None = None
    value_from: EnvSource | None = None


class EnvFrom(KubeStruct, frozen=True):
    """ConfigMap or Secret whose keys become variables."""

    prefix: str | None = None
    config_map_ref: KeyReference | None = None
    secret_ref: KeyReference | None = None


class VolumeMount(KubeStruct, frozen=True):
    """Mount of a container."""

    name: str = ""
    mount_path: str = ""


class ClaimSource(KubeStruct, frozen=True):
    """Claim of a volume."""

    claim_name: str = ""


class PodVolume(KubeStruct, frozen=True):
    """Volume of a pod, if it is a claim."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None


class PodSecurityContext(KubeStruct, frozen=True):
    """User of a pod's processes."""

    run_as_user: int | None = None


Quantities = dict[str, str | int | float]


class ContainerResources(KubeStruct, frozen=True):
    """Requests and limits of a container."""

    requests: Quantities | None = None
    limits: Quantities | None = None


class Container(KubeStruct, frozen=True):
    """Container of a pod's spec; ``restart_policy`` is Always for a sidecar among the init containers."""

    name: str = ""
    image: str | None = None
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    volume_mounts: list[VolumeMount] | None = None
    resources: ContainerResources | None = None
    restart_policy: str | None = None
    stdin: bool | None = None
    tty: bool | None = None


class PodResourceClaim(KubeStruct, frozen=True):
    """Resource claim of a pod (dynamic resource allocation), by name or by template."""

    name: str = ""
    resource_claim_name: str | None = None


class SchedulingGate(KubeStruct, frozen=True):
    """Gate that holds a pod back from the scheduler until its owner removes it."""

    name: str = ""


class PodSpec(KubeStruct, frozen=True):
    """Spec of a pod."""

    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    node_selector: dict[str, str] | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: int | None = None
    resource_claims: list[PodResourceClaim] | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduler_name: str | None = None
    volumes: list[PodVolume] | None = None
    security_context: PodSecurityContext | None = None
    priority_class_name: str | None = None
    priority: int | None = None


class Waiting(KubeStruct, frozen=True):
    """State of a container that is not running yet or is waiting to restart."""

    reason: str | None = None
    message: str | None = None


class Running(KubeStruct, frozen=True):
    """State of a running container."""

    started_at: datetime | None = None


class Terminated(KubeStruct, frozen=True):
    """State of a container that has ended."""

    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(KubeStruct, frozen=True):
    """State of a container; at most one of the three is set, none means waiting without a reason."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(KubeStruct, frozen=True):
    """Status of a container."""

    name: str = ""
    ready: bool | None = None
    started: bool | None = None
    restart_count: int | None = None
    image: str | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None

    @property
    def previous_end(self) -> Terminated | None:
        """End of the process before the newest one; None without one."""
        return self.last_state.terminated if self.last_state is not None else None


class PodClaimStatus(KubeStruct, frozen=True):
    """Claim that was created for a pod from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(KubeStruct, frozen=True):
    """Status of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")  # camel case would give podIp
    start_time: datetime | None = None


class PodStruct(KubeObject, frozen=True):
    """A Pod; ``spec`` and ``status`` are never None."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """Statuses of the main containers."""
        return tuple(self.status.container_statuses or ())

    @property
    def init_statuses(self) -> tuple[ContainerStatus, ...]:
        """Statuses of the init containers, in the order in which they start."""
        return tuple(self.status.init_container_statuses or ())

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type; None if it is not reported."""
        for condition in self.status.conditions or ():  # no generator, as in `controller`: called for every pod
            if condition.type == kind:
                return condition
        return None


class ObjectReference(KubeStruct, frozen=True):
    """Reference to the object of an event."""

    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class EventSeries(KubeStruct, frozen=True):
    """Series of a repeated event."""

    count: int | None = None
    last_observed_time: datetime | None = None


class EventStruct(KubeObject, frozen=True):
    """An Event of the core API; ``type`` is Normal or Warning."""

    involved_object: ObjectReference = ObjectReference()
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None

    @property
    def last_seen(self) -> float:
        """Time of the last occurrence, seconds since the epoch."""
        # Old and new event APIs, and their conversions, fill one of four fields.
        series = self.series.last_observed_time if self.series else None
        return epoch(series or self.last_timestamp or self.event_time or self.metadata.creation_timestamp)

    @property
    def times(self) -> int:
        """Number of occurrences."""
        return (self.series.count if self.series else None) or self.count or 1


class TaintStruct(KubeStruct, frozen=True):
    """Taint of a node."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(KubeStruct, frozen=True):
    """Spec of a node."""

    unschedulable: bool | None = None
    taints: list[TaintStruct] | None = None


class NodeAddress(KubeStruct, frozen=True):
    """One address of a node: ``type`` is InternalIP, ExternalIP or Hostname."""

    type: str = ""
    address: str = ""


class NodeSystemInfo(KubeStruct, frozen=True):
    """Versions of the programs of a node."""

    kubelet_version: str | None = None


class NodeRuntimeHandler(KubeStruct, frozen=True):
    """Handler of a node's container runtime, as RuntimeClasses name it; empty for the default."""

    name: str | None = None


class NodeStatus(KubeStruct, frozen=True):
    """Status of a node."""

    addresses: list[NodeAddress] | None = None
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None
    node_info: NodeSystemInfo | None = None
    runtime_handlers: list[NodeRuntimeHandler] | None = None


class NodeStruct(KubeObject, frozen=True):
    """A Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ControllerSpec(KubeStruct, frozen=True):
    """Desired number of pods: ``replicas`` of a ReplicaSet or StatefulSet, ``parallelism`` of a Job."""

    replicas: int | None = None
    parallelism: int | None = None
    suspend: bool | None = None


class ControllerStatus(KubeStruct, frozen=True):
    """Status of a controller."""

    replicas: int | None = None
    active: int | None = None
    succeeded: int | None = None
    conditions: list[Condition] | None = None


class ControllerStruct(KubeObject, frozen=True):
    """A ReplicaSet, StatefulSet or Job; each fills in its own fields."""

    spec: ControllerSpec = ControllerSpec()
    status: ControllerStatus = ControllerStatus()

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type; None if it is not reported."""
        return next((condition for condition in self.status.conditions or () if condition.type == kind), None)


class ConfigMapStruct(KubeObject, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] | None = None


class NodeMetricsStruct(KubeObject, frozen=True):
    """Usage of a node by ``metrics.k8s.io``: ``cpu`` in cores, ``memory`` in bytes."""

    usage: Quantities | None = None


class ListMeta(KubeStruct, frozen=True):
    """Metadata of a list: its revision, and the token of its next page."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")


class ObjectList(KubeStruct, Generic[T], frozen=True):
    """Page of a list; items of type ``msgspec.Raw`` stay undecoded, so that a malformed one does not affect
    others.
    """

    items: list[T] | None  # Go encodes an empty slice as null; an answer without items is no list
    metadata: ListMeta = ListMeta()


class WatchEvent(KubeStruct, frozen=True):
    """Line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")  # decoded by the type of the event, once that is known


class StatusStruct(KubeStruct, frozen=True):
    """Status, the object of an ERROR event."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None


class PartialObject(KubeObject, frozen=True):
    """Metadata of any object: for bookmarks, and for objects that could not be decoded."""


class PartialPodSpec(KubeStruct, frozen=True):
    """Node of a pod."""

    node_name: str | None = None


class PartialPod(KubeStruct, frozen=True):
    """Pod of which nothing else can be decoded."""

    spec: PartialPodSpec = PartialPodSpec()


def epoch(time: datetime | None) -> float:
    """Return seconds since the epoch; 0 for a time that is not set."""
    return time.timestamp() if time is not None else 0.0
