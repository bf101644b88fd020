"""Table of all kinds in use: API version, path and the first Kubernetes version that serves them.

One table, so that the documentation can list the API versions, and a test can check that Kubernetes 1.20 has all of
them and 1.36 has removed none. A manifest's own ``apiVersion`` takes precedence over the table: this is how a kind
whose version differs between servers (resource claims) is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

_OLDEST: Final = "1.20"


class KindPath(Struct, frozen=True):
    """REST path of one kind.

    Attributes:
        api_version: As in manifests: ``v1``, ``apps/v1``.
        plural: Name in URL paths.
        since: First Kubernetes version that serves it; "" for a kind of an add-on.
    """

    kind: str
    api_version: str
    plural: str
    is_namespaced: bool = True
    since: str = _OLDEST

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def is_everywhere(self) -> bool:
        """True if every supported server has the kind."""
        return self.since == _OLDEST

    def at(self, api_version: str) -> KindPath:
        """Return the same kind in another API version; empty for this one."""
        return self if api_version in ("", self.api_version) else replace(self, api_version=api_version)

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, of all objects of a namespace, or of all objects (None)."""
        parts = ["/apis" if self.group else "/api", self.api_version]
        if self.is_namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))  # a name is data: it must not change the path
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


_TABLE: tuple[KindPath, ...] = (
    KindPath("Node", "v1", "nodes", is_namespaced=False),
    KindPath("Namespace", "v1", "namespaces", is_namespaced=False),
    KindPath("Pod", "v1", "pods"),
    KindPath("Service", "v1", "services"),
    KindPath("Endpoints", "v1", "endpoints"),
    KindPath("EndpointSlice", "discovery.k8s.io/v1", "endpointslices", since="1.21"),
    KindPath("ConfigMap", "v1", "configmaps"),
    KindPath("Secret", "v1", "secrets"),
    KindPath("ServiceAccount", "v1", "serviceaccounts"),
    KindPath("Event", "v1", "events"),
    KindPath("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    KindPath("PersistentVolume", "v1", "persistentvolumes", is_namespaced=False),
    KindPath("ResourceQuota", "v1", "resourcequotas"),
    KindPath("LimitRange", "v1", "limitranges"),
    KindPath("ReplicaSet", "apps/v1", "replicasets"),
    KindPath("StatefulSet", "apps/v1", "statefulsets"),
    KindPath("Deployment", "apps/v1", "deployments"),
    KindPath("DaemonSet", "apps/v1", "daemonsets"),
    KindPath("Job", "batch/v1", "jobs"),
    KindPath("NetworkPolicy", "networking.k8s.io/v1", "networkpolicies"),
    KindPath("Lease", "coordination.k8s.io/v1", "leases"),
    KindPath("StorageClass", "storage.k8s.io/v1", "storageclasses", is_namespaced=False),
    KindPath("CSIDriver", "storage.k8s.io/v1", "csidrivers", is_namespaced=False),
    KindPath("APIService", "apiregistration.k8s.io/v1", "apiservices", is_namespaced=False),
    KindPath("RuntimeClass", "node.k8s.io/v1", "runtimeclasses", is_namespaced=False),
    KindPath("Role", "rbac.authorization.k8s.io/v1", "roles"),
    KindPath("RoleBinding", "rbac.authorization.k8s.io/v1", "rolebindings"),
    KindPath("ClusterRole", "rbac.authorization.k8s.io/v1", "clusterroles", is_namespaced=False),
    KindPath("ClusterRoleBinding", "rbac.authorization.k8s.io/v1", "clusterrolebindings", is_namespaced=False),
    KindPath("SelfSubjectAccessReview", "authorization.k8s.io/v1", "selfsubjectaccessreviews", is_namespaced=False),
    KindPath(
        "CustomResourceDefinition", "apiextensions.k8s.io/v1", "customresourcedefinitions", is_namespaced=False
    ),
    # Used only if the server has them: an add-on (metrics) or a late version (dynamic resource allocation).
    KindPath("NodeMetrics", "metrics.k8s.io/v1beta1", "nodes", is_namespaced=False, since=""),
    KindPath("PodMetrics", "metrics.k8s.io/v1beta1", "pods", since=""),
    KindPath("ResourceClaim", "resource.k8s.io/v1", "resourceclaims", since="1.34"),
    KindPath("ResourceClaimTemplate", "resource.k8s.io/v1", "resourceclaimtemplates", since="1.34"),
    KindPath("DeviceClass", "resource.k8s.io/v1", "deviceclasses", is_namespaced=False, since="1.34"),
    KindPath("ResourceSlice", "resource.k8s.io/v1", "resourceslices", is_namespaced=False, since="1.34"),
    KindPath("LocalQueue", "kueue.x-k8s.io/v1beta1", "localqueues", since=""),
    KindPath("Workload", "kueue.x-k8s.io/v1beta1", "workloads", since=""),
    KindPath("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets", since=""),
    KindPath("PodGroup", "scheduling.x-k8s.io/v1alpha1", "podgroups", since=""),
    # Same kind and plural in manifests, but another resource: permissions and lists need a name for each.
    KindPath("VolcanoPodGroup", "scheduling.volcano.sh/v1beta1", "podgroups", since=""),
)

KINDS: Final[dict[str, KindPath]] = {kind_path.kind: kind_path for kind_path in _TABLE}
"""By kind, as in manifests."""


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Return the KINDS entry of a manifest."""
    is_volcano = str(manifest.get("apiVersion", "")).startswith("scheduling.volcano.sh/")
    return f"Volcano{manifest['kind']}" if is_volcano else str(manifest["kind"])
