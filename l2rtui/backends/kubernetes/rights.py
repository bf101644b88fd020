"""Permissions that the program needs on Kubernetes: one table for Roles, checks, and their messages.

``make rbac`` generates ``manifests/rbac.yaml`` from it. A test runs every command of the program and compares its
requests with the rows: a call without a row fails, and so does a row that its command does not need.

Every authenticated user may read ``/version`` and the API groups and create access reviews (by the ClusterRoles
``system:discovery``, ``system:public-info-viewer`` and ``system:basic-user``), so no row lists these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct

from l2rtui.backends.kubernetes.api.errors import MissingRight
from l2rtui.backends.kubernetes.api.resources import KINDS


class Right(NamedTuple):
    """One verb of Kubernetes on one kind, as in an access review."""

    verb: str
    kind: str
    subresource: str = ""

    @property
    def resource(self) -> str:
        """Plural and subresource, as in a Role."""
        return f"{KINDS[self.kind].plural}{f'/{self.subresource}' if self.subresource else ''}"

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


class RoleScope(StrEnum):
    """Role that grants a permission.

    A viewer sees runs; a researcher also has the viewer's permissions, and creates runs. ``CLUSTER`` is the
    optional ClusterRole. ``WITHHELD`` is in no Role: the program tries the request, and has a fallback if it is
    refused.
    """

    VIEWER = "viewer"
    RESEARCHER = "researcher"
    CLUSTER = "cluster"
    WITHHELD = "withheld"


class RightRow(Struct, frozen=True):
    """One row of the table.

    Attributes:
        uses: Commands that need the permission. ``view`` means the lists and the app, and is included in every
            command.
        without: Effect of a missing permission, if its commands work without it.
        only_for: Setting of a spec that needs the permission; empty if every run needs it.
        reason: Why a Role has a permission that no request of the program needs directly.
        name: Name of the only object to which the permission applies; empty for all.
        is_off: The rule is commented out in the manifest, because of its wide reach.
    """

    right: Right
    part: RoleScope
    uses: tuple[str, ...]
    without: str = ""
    only_for: str = ""
    reason: str = ""
    name: str = ""
    is_off: bool = False

    @property
    def is_optional(self) -> bool:
        """True for a permission that its commands can do without, or that few runs need."""
        return bool(self.without or self.only_for or self.reason)


class _Line(Struct, frozen=True):
    """Rows of several kinds and verbs (separated by spaces) that are otherwise equal; fields as in RightRow."""

    part: RoleScope
    verbs: str
    kinds: str
    uses: str
    without: str = ""
    only_for: str = ""
    reason: str = ""
    name: str = ""
    is_off: bool = False

    def rows(self) -> Iterator[RightRow]:
        """Yield the rows of the line; a kind is written ``Pod`` or ``Pod/log``."""
        details = (self.without, self.only_for, self.reason, self.name, self.is_off)
        for name in self.kinds.split():
            kind, _, subresource = name.partition("/")
            for verb in self.verbs.split():
                yield RightRow(Right(verb, kind, subresource), self.part, tuple(self.uses.split()), *details)


_NOT_COUNTED: Final = "users without it get no count of these objects"
_RACE: Final = "objects that another destroy removes at this moment are reported too"
_NO_CHECK: Final = "it is not checked before a launch"
_LOST: Final = "objects whose creation got no answer"
_DIFF: Final = "plan --diff"
_UNCLAIMED: Final = "slots are not claimed before a launch"
_NO_POLICY: Final = "runs are launched without network policies"
_QUEUE: Final = "queue of volcano or coscheduling"
_JOB_SET: Final = "queue of jobset"
_DRA: Final = "binding dra"
_CLAIMED: Final = "runs whose slots are claimed"
_NO_QUOTA: Final = "quotas are neither shown nor compared with a plan"
_NO_CLAIMS: Final = "GPUs of resource claims read unknown"
_NO_RECORD: Final = "the record of a run does not travel with it: colleagues see the run without its history"
_STATE: Final = "descriptions say that it is unknown"

_VIEWER: Final = (
    _Line(RoleScope.VIEWER, "list watch", "Pod ReplicaSet StatefulSet Job ConfigMap Event", "view"),
    _Line(RoleScope.VIEWER, "list watch", "ResourceClaim", "view", without=_NO_CLAIMS),
    _Line(RoleScope.VIEWER, "get", "Namespace", "view", without="a namespace that was deleted looks empty"),
    _Line(RoleScope.VIEWER, "get", "Pod", "describe logs volume check"),
    _Line(RoleScope.VIEWER, "get", "Pod Job ReplicaSet Service", "leaks", without=_RACE),
    _Line(RoleScope.VIEWER, "get", "Pod/log", "logs check"),
    _Line(RoleScope.VIEWER, "get", "Pod/log", "describe", without="descriptions lack the last line of a crash"),
    _Line(RoleScope.VIEWER, "get", "ConfigMap", "plan launch scale describe"),
    _Line(RoleScope.VIEWER, "get", "ConfigMap", "history", without=_NO_RECORD),
    _Line(RoleScope.VIEWER, "list", "Service", "destroy describe events"),
    _Line(RoleScope.VIEWER, "list", "Service", "plan", without=_NO_CHECK),
    _Line(
        RoleScope.VIEWER, "list", "Service NetworkPolicy PersistentVolumeClaim Lease", "leaks", without=_NOT_COUNTED
    ),
    _Line(RoleScope.VIEWER, "get", "NetworkPolicy", "leaks", without=_RACE),
    _Line(RoleScope.VIEWER, "get", "PodGroup VolcanoPodGroup Workload JobSet", "describe", without=_STATE),
    _Line(RoleScope.VIEWER, "list", "PersistentVolumeClaim", "volume"),
)
_RESEARCHER: Final = (
    _Line(RoleScope.RESEARCHER, "create", "ConfigMap Secret Service Job ReplicaSet", "plan launch"),
    _Line(RoleScope.RESEARCHER, "create", "ReplicaSet", "scale"),
    _Line(RoleScope.RESEARCHER, "get", "Job ReplicaSet Service Secret NetworkPolicy", "launch", only_for=_LOST),
    _Line(RoleScope.RESEARCHER, "get", "Job ReplicaSet Service Secret NetworkPolicy", "plan", only_for=_DIFF),
    _Line(
        RoleScope.RESEARCHER,
        "patch",
        "ConfigMap Secret Service Job ReplicaSet NetworkPolicy",
        "plan",
        only_for=_DIFF,
    ),
    _Line(RoleScope.RESEARCHER, "patch", "ReplicaSet", "launch", only_for="--wave"),
    _Line(RoleScope.RESEARCHER, "get patch", "ReplicaSet", "scale"),
    _Line(RoleScope.RESEARCHER, "get", "Secret", "destroy"),
    _Line(RoleScope.RESEARCHER, "patch", "Pod", "scale", without="the controller chooses which pods go"),
    _Line(RoleScope.RESEARCHER, "update", "ConfigMap", "scale"),
    _Line(RoleScope.RESEARCHER, "delete", "ReplicaSet", "scale"),
    _Line(RoleScope.RESEARCHER, "delete", "Pod", "scale", without="pods that go have their own grace"),
    _Line(RoleScope.RESEARCHER, "delete", "Pod", "kill destroy"),
    _Line(RoleScope.RESEARCHER, "delete", "ConfigMap Secret Service Job ReplicaSet", "destroy"),
    _Line(
        RoleScope.RESEARCHER,
        "delete",
        "ConfigMap Secret Service Job ReplicaSet NetworkPolicy",
        "launch",
        without="a refused launch leaves its objects behind",
    ),
    _Line(RoleScope.RESEARCHER, "patch", "ConfigMap", "launch", only_for="workdir that another run has sent"),
    _Line(
        RoleScope.RESEARCHER,
        "patch",
        "ConfigMap",
        "destroy",
        without="other users do not see that the destroy continues",
    ),
    _Line(RoleScope.RESEARCHER, "patch", "ConfigMap", "history", without=_NO_RECORD),
    _Line(
        RoleScope.RESEARCHER, "delete", "StatefulSet", "destroy", only_for="StatefulSets that carry the run's label"
    ),
    _Line(RoleScope.RESEARCHER, "create", "Pod", "plan", without="no pod is tried before a launch"),
    _Line(
        RoleScope.RESEARCHER,
        "create",
        "Pod",
        "launch scale",
        without="a new volume that root owns is not given to the user of a run's processes",
    ),
    _Line(RoleScope.RESEARCHER, "create", "Pod", "volume check"),
    _Line(RoleScope.RESEARCHER, "delete", "Pod", "volume check", without="a pod that helped stays for its time"),
    # --- claims on slots
    _Line(RoleScope.RESEARCHER, "get create update", "Lease", "launch scale", without=_UNCLAIMED),
    _Line(RoleScope.RESEARCHER, "list", "Lease", "destroy", without=_UNCLAIMED),
    # --- reservations of slots
    _Line(RoleScope.RESEARCHER, "get create update delete", "ConfigMap", "reserve"),
    _Line(RoleScope.RESEARCHER, "get", "Lease", "reserve", without=_UNCLAIMED),
    _Line(RoleScope.RESEARCHER, "get delete", "Lease", "destroy", only_for=_CLAIMED),
    _Line(RoleScope.RESEARCHER, "delete", "Lease", "scale", without=_UNCLAIMED),
    # --- network policies
    _Line(RoleScope.RESEARCHER, "create", "NetworkPolicy", "launch", without=_NO_POLICY),
    _Line(RoleScope.RESEARCHER, "delete", "NetworkPolicy", "destroy", only_for="runs with network policies"),
    _Line(RoleScope.RESEARCHER, "list", "NetworkPolicy", "destroy", without=_NOT_COUNTED),
    # --- queues and resource claims
    _Line(RoleScope.RESEARCHER, "get patch", "PodGroup VolcanoPodGroup", "plan", only_for=_QUEUE),
    _Line(RoleScope.RESEARCHER, "create", "PodGroup VolcanoPodGroup", "launch", only_for=_QUEUE),
    _Line(RoleScope.RESEARCHER, "list", "PodGroup VolcanoPodGroup", "destroy", without=_NOT_COUNTED),
    _Line(RoleScope.RESEARCHER, "delete", "PodGroup VolcanoPodGroup", "destroy", only_for=_QUEUE),
    _Line(RoleScope.RESEARCHER, "get patch", "JobSet", "plan", only_for=_JOB_SET),
    _Line(RoleScope.RESEARCHER, "create", "JobSet", "launch", only_for=_JOB_SET),
    _Line(RoleScope.RESEARCHER, "list", "JobSet", "destroy", without=_NOT_COUNTED),
    _Line(RoleScope.RESEARCHER, "delete", "JobSet", "destroy", only_for=_JOB_SET),
    _Line(RoleScope.RESEARCHER, "get", "LocalQueue", "plan", without=_NO_CHECK),
    _Line(RoleScope.RESEARCHER, "get patch", "ResourceClaim", "plan", only_for=_DRA),
    _Line(RoleScope.RESEARCHER, "create", "ResourceClaim", "launch", only_for=_DRA),
    _Line(RoleScope.RESEARCHER, "delete", "ResourceClaim", "destroy", only_for=_DRA),
    _Line(RoleScope.RESEARCHER, "list", "ResourceClaimTemplate", "destroy", without=_NOT_COUNTED),
    _Line(RoleScope.RESEARCHER, "delete", "ResourceClaimTemplate", "destroy", only_for=_DRA),
    # --- objects that pods refer to
    _Line(RoleScope.RESEARCHER, "get", "ServiceAccount", "plan", without=_NO_CHECK),
    _Line(RoleScope.RESEARCHER, "list", "ResourceQuota", "plan check", without=_NO_QUOTA),
    _Line(RoleScope.RESEARCHER, "list", "Endpoints EndpointSlice", "destroy", without=_NOT_COUNTED),
    # --- volumes, secrets, processes
    _Line(RoleScope.RESEARCHER, "get", "PersistentVolumeClaim", "volume"),
    _Line(RoleScope.RESEARCHER, "get", "PersistentVolumeClaim", "plan", without=_NO_CHECK),
    _Line(RoleScope.RESEARCHER, "create delete", "PersistentVolumeClaim", "volume"),
    _Line(RoleScope.RESEARCHER, "list", "PersistentVolumeClaim", "destroy", without=_NOT_COUNTED),
    _Line(RoleScope.RESEARCHER, "delete", "PersistentVolumeClaim", "destroy", only_for="--purge"),
    _Line(RoleScope.RESEARCHER, "get create update delete", "Secret", "secret"),
    _Line(RoleScope.RESEARCHER, "get", "Pod/exec", "exec volume"),
    _Line(RoleScope.RESEARCHER, "get", "Pod/attach", "attach"),
    _Line(RoleScope.RESEARCHER, "get", "Pod/portforward", "forward"),
    _Line(
        RoleScope.RESEARCHER,
        "create",
        "Pod/exec Pod/attach Pod/portforward",
        "exec attach forward volume",
        reason="servers from 1.35 on ask for it where a websocket is opened, and kubectl opens it so",
    ),
    _Line(
        RoleScope.RESEARCHER,
        "update",
        "ConfigMap/finalizers",
        "launch",
        reason="objects name their run as the owner that waits for them (OwnerReferencesPermissionEnforcement)",
    ),
)
_CLUSTER: Final = (
    _Line(RoleScope.CLUSTER, "list watch", "Node Pod", "view", without="slots that others may hold read unknown"),
    _Line(RoleScope.CLUSTER, "get", "Node", "plan destroy describe", without="only nodes with pods are known"),
    _Line(
        RoleScope.CLUSTER,
        "get",
        "Namespace",
        "view",
        without="claims of other namespaces are met by a second look at all pods",
        name="l2rtui-claims",
    ),
    _Line(RoleScope.CLUSTER, "list", "Event", "describe", without="nodes are described without their events"),
    _Line(RoleScope.CLUSTER, "list watch", "NodeMetrics", "view", without="load of nodes is unknown"),
    _Line(
        RoleScope.CLUSTER,
        "list watch",
        "ResourceClaim ResourceSlice",
        "view",
        without=_NO_CLAIMS,
    ),
    _Line(
        RoleScope.CLUSTER,
        "get",
        "RuntimeClass",
        "plan launch",
        without="on k3s and RKE2 pods get no GPU, unless the setting runtime_class names the class",
        name="nvidia",
    ),
    _Line(RoleScope.CLUSTER, "get", "Pod/proxy", "view", without="how busy GPUs are is unknown", is_off=True),
)
_WITHHELD: Final = (
    _Line(RoleScope.WITHHELD, "list", "Secret", "plan destroy secret", without="secrets are read by their names"),
    _Line(RoleScope.WITHHELD, "list get", "Secret", "leaks", without="leaks among Secrets are unknown"),
    _Line(
        RoleScope.WITHHELD,
        "get",
        "StorageClass",
        "plan",
        without="when an unbound claim gets its volume is not known",
    ),
    _Line(
        RoleScope.WITHHELD,
        "delete",
        "Endpoints EndpointSlice",
        "destroy",
        without="they are deleted with their Service",
    ),
)

TABLE: Final[tuple[RightRow, ...]] = tuple(
    row for line in (*_VIEWER, *_RESEARCHER, *_CLUSTER, *_WITHHELD) for row in line.rows()
)
"""All rows. A permission has several rows if its commands react differently to its absence."""


def rows_of(*parts: RoleScope) -> tuple[RightRow, ...]:
    """Return the rows of some Roles, in the order of the table."""
    return tuple(row for row in TABLE if row.part in parts)


def needed(parts: Iterable[RoleScope], *uses: str) -> tuple[Right, ...]:
    """Return the permissions without which commands fail for every run, without duplicates; no ``uses`` means
    any.
    """
    rows = (
        row for row in rows_of(*parts) if not row.is_optional and (not uses or set(uses).intersection(row.uses))
    )
    return tuple(dict.fromkeys(row.right for row in rows))


_ROLES: Final[Mapping[RoleScope, str]] = MappingProxyType(
    {
        RoleScope.VIEWER: "Role l2rtui-viewer",
        RoleScope.RESEARCHER: "Role l2rtui-researcher",
        RoleScope.CLUSTER: "ClusterRole l2rtui-ledger",
    }
)
"""Names in ``manifests/rbac.yaml``. A researcher has a viewer's permissions too, so the first is the least."""


def role_hint(rights: Iterable[Right], *parts: RoleScope) -> str:
    """Return the next step for missing permissions: the least Role that grants them; empty if no Role does.

    Args:
        parts: Roles that count; empty for the Roles of a namespace.
    """
    counted = parts or (RoleScope.VIEWER, RoleScope.RESEARCHER)
    rights = set(rights)
    for number, part in enumerate(counted):
        if rights <= {row.right for row in rows_of(*counted[: number + 1])}:
            return f"Ask an administrator for the {_ROLES[part]} in manifests/rbac.yaml."
    return ""


def advice(missing: MissingRight) -> str:
    """Return the next step for a permission that the server found missing."""
    plural, _, subresource = missing.resource.partition("/")
    kinds = [kind for kind, path in KINDS.items() if (path.plural, path.group) == (plural, missing.group)]
    rights = {Right(missing.verb, kind, subresource) for kind in kinds}
    role = role_hint(rights) or role_hint(rights, RoleScope.CLUSTER) if rights else ""
    return role or "Ask an administrator for this right; `l2rtui check` lists what is missing."
