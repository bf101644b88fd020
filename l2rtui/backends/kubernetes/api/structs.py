"""The parts of Kubernetes objects that we read, and no more: what is not named here is never decoded.

Every field may be missing or null, as no server promises otherwise: one odd object must not lose a list. Names are
Kubernetes' own in snake case. Times are aware datetimes; epoch() turns them into seconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Part(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """Base of all: camel case in JSON, immutable, no cycles to look for."""


class OwnerReference(Part, frozen=True):
    """Who owns an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(Part, frozen=True):
    """What every object carries."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None

    def label(self, key: str) -> str:
        """Value of a label; empty when it is not set."""
        return (self.labels or {}).get(key, "")

    def annotation(self, key: str) -> str:
        """Value of an annotation; empty when it is not set."""
        return (self.annotations or {}).get(key, "")

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that makes and replaces this object; None for a bare one."""
        for one in self.owner_references or ():  # a generator costs three times as much, ten thousand times
            if one.controller:
                return one
        return None


class KubeObject(Part, frozen=True):
    """Base of all objects that have a place of their own on the server."""

    metadata: Meta = Meta()


class Condition(Part, frozen=True):
    """One condition of a node, pod or controller: ``status`` is True, False or Unknown, as text."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


class Present(Part, frozen=True):
    """Something whose content does not matter: it is there."""


class EnvVar(Part, frozen=True):
    """A variable of a container; one with ``value_from`` has a value that only the container knows."""

    name: str = ""
    value: str | None = None
    value_from: Present | None = None


Quantities = dict[str, str | int | float]


class ClaimUse(Part, frozen=True):
    """A resource claim of the pod that a container uses."""

    name: str = ""


class Resources(Part, frozen=True):
    """Requests and limits of a container."""

    requests: Quantities | None = None
    limits: Quantities | None = None
    claims: list[ClaimUse] | None = None


class Container(Part, frozen=True):
    """A container as it is wanted; ``restart_policy`` is Always for a sidecar among the init containers."""

    name: str = ""
    image: str | None = None
    env: list[EnvVar] | None = None
    env_from: list[Present] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None


class PodResourceClaim(Part, frozen=True):
    """A claim on devices by dynamic resource allocation."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Part, frozen=True):
    """A pod as it is wanted."""

    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_selector: dict[str, str] | None = None
    restart_policy: str | None = None
    runtime_class_name: str | None = None
    termination_grace_period_seconds: int | None = None
    resource_claims: list[PodResourceClaim] | None = None
    scheduling_gates: list[Present] | None = None


class Waiting(Part, frozen=True):
    """Why a container does not run yet, or not at this moment."""

    reason: str | None = None
    message: str | None = None


class Running(Part, frozen=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class Terminated(Part, frozen=True):
    """How a container ended."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Part, frozen=True):
    """At most one of the three is set; none means waiting for a reason that nobody tells."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True):
    """A container as it is."""

    name: str = ""
    ready: bool | None = None
    started: bool | None = None
    restart_count: int | None = None
    image: str | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodClaimStatus(Part, frozen=True):
    """The claim that was made for a pod from a template."""

    name: str = ""
    resource_claim_name: str | None = None


class PodStatus(Part, frozen=True):
    """A pod as it is."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    start_time: datetime | None = None


class PodStruct(KubeObject, frozen=True):
    """A Pod; ``spec`` and ``status`` are never None here, as both may be read without asking."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def statuses(self) -> tuple[ContainerStatus, ...]:
        """Statuses of the main containers."""
        return tuple(self.status.container_statuses or ())

    @property
    def init_statuses(self) -> tuple[ContainerStatus, ...]:
        """Statuses of the init containers, in the order in which they run."""
        return tuple(self.status.init_container_statuses or ())

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None when it is not reported."""
        for one in self.status.conditions or ():  # as above: asked of every pod
            if one.type == kind:
                return one
        return None


class ObjectReference(Part, frozen=True):
    """What an event is about."""

    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None
    field_path: str | None = None


class EventSource(Part, frozen=True):
    """Who tells of an event."""

    component: str | None = None
    host: str | None = None


class EventSeries(Part, frozen=True):
    """An event that happens again and again."""

    count: int | None = None
    last_observed_time: datetime | None = None


class EventStruct(KubeObject, frozen=True):
    """An Event of the core API; ``type`` is Normal or Warning."""

    involved_object: ObjectReference = ObjectReference()
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: EventSeries | None = None
    source: EventSource | None = None
    reporting_component: str | None = None

    @property
    def last_seen(self) -> float:
        """When it happened last, seconds since the epoch: servers write it in one of four places."""
        series = self.series.last_observed_time if self.series else None
        return epoch(series or self.last_timestamp or self.event_time or self.metadata.creation_timestamp)

    @property
    def times(self) -> int:
        """How often it happened."""
        return (self.series.count if self.series else None) or self.count or 1


class TaintStruct(Part, frozen=True):
    """A taint of a node."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(Part, frozen=True):
    """A node as it is wanted."""

    unschedulable: bool | None = None
    taints: list[TaintStruct] | None = None


class NodeStatus(Part, frozen=True):
    """A node as it is."""

    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None


class NodeStruct(KubeObject, frozen=True):
    """A Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ControllerSpec(Part, frozen=True):
    """How many pods a ReplicaSet or StatefulSet (replicas) or a Job (parallelism, completions) wants."""

    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None


class ControllerStatus(Part, frozen=True):
    """How far a controller got."""

    replicas: int | None = None
    ready_replicas: int | None = None
    active: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    conditions: list[Condition] | None = None


class ControllerStruct(KubeObject, frozen=True):
    """A ReplicaSet, StatefulSet or Job; they differ in what they fill in."""

    spec: ControllerSpec = ControllerSpec()
    status: ControllerStatus = ControllerStatus()

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, None when it is not reported."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class ConfigMapStruct(KubeObject, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] | None = None


class NodeMetricsStruct(KubeObject, frozen=True):
    """What metrics.k8s.io tells of a node: cores and bytes in use."""

    usage: Quantities | None = None


class ListMeta(Part, frozen=True):
    """Revision of a list, and how to go on reading it."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")


class ObjectList(Part, Generic[T], frozen=True):
    """A page of a list; items that are ``msgspec.Raw`` stay undecoded, so that each can fail alone."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchEvent(Part, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


class StatusStruct(Part, frozen=True):
    """What an ERROR event carries."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None


class JustMeta(KubeObject, frozen=True):
    """Any object, for its name and revision alone: bookmarks, and what could not be decoded."""


class NodeName(Part, frozen=True):
    """Where a pod sits."""

    node_name: str | None = None


class JustNode(Part, frozen=True):
    """A pod of which nothing else can be decoded."""

    spec: NodeName = NodeName()


def epoch(time: datetime | None) -> float:
    """Seconds since the epoch; 0 for a time that is not set."""
    return time.timestamp() if time is not None else 0.0
