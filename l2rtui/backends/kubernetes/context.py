"""Cluster context: the connection, namespaces, latest snapshot and server facts that every action needs.

One context is created for each connection and passed to the actions, instead of five separate values. Its context
and namespaces come from the kubeconfig and the server's lists.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import context_names
from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
from l2rtui.backends.kubernetes.state.node_devices import SlotRule
from l2rtui.backends.kubernetes.state.visibility import shared_claims
from l2rtui.config import Settings
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView

if TYPE_CHECKING:
    from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
    from l2rtui.domain.workload import RunSpec

_RECENT_SECONDS: Final = 5.0
"""A plan is made, checked and confirmed with one snapshot if that takes no longer than this."""


class ClusterContext:
    """One cluster, as the actions use it.

    Args:
        settings: Namespace of Leases, slots per device, CUDA index; None for the defaults.

    Attributes:
        api: The open connection.
        namespace: Namespace of new runs: the first of the settings, otherwise the kubeconfig context's own.
        settings: The settings given.
        list_cluster: Returns a fresh snapshot.
    """

    def __init__(
        self,
        api: Api,
        settings: Settings | None = None,
    ) -> None:
        self.api = api
        self.namespace = api.namespace
        self.settings = settings or Settings()
        self.list_cluster: Callable[[], Awaitable[ClusterSnapshot]] = ClusterWatch(
            api, SlotRule.of(self.settings), claims_namespace=self.settings.claims_namespace
        ).snapshot
        self._latest: tuple[float, ClusterSnapshot] | None = None
        self._nvidia_class: list[dict[str, Any] | None] = []

    async def lease_namespace(self) -> str:
        """Return the namespace of the slot Leases of runs that are launched here."""
        return await self.shared_namespace() or self.namespace

    async def lease_namespaces_of(self, run_namespace: str) -> tuple[str, ...]:
        """Return the namespaces that may have slot Leases of a run: the shared one, and the run's own."""
        # A run that was launched before the shared namespace was made has its claims in its own.
        return tuple(dict.fromkeys(filter(None, (await self.shared_namespace(), run_namespace))))

    async def shared_namespace(self) -> str:
        """Return the namespace in which the users of all namespaces claim slots; empty where there is none."""
        return await shared_claims(self.api, self.settings.claims_namespace)

    async def snapshot(self) -> ClusterSnapshot:
        """List everything that the user may see, and store it as the latest snapshot."""
        snapshot = await self.list_cluster()
        self._latest = (time.monotonic(), snapshot)
        return snapshot

    async def recent_snapshot(self) -> ClusterSnapshot:
        """Return the latest snapshot if it is at most a few seconds old, otherwise a fresh one."""
        # Stale by design: a launch lists the cluster again after it has claimed its slots.
        if self._latest is not None and time.monotonic() - self._latest[0] < _RECENT_SECONDS:
            return self._latest[1]
        return await self.snapshot()

    async def server_facts(self, specs: Iterable[RunSpec]) -> ServerFacts:
        """Return the facts of the server that the manifests of these specs depend on; the snapshot may be old."""
        from l2rtui.backends.kubernetes.manifests import gpu_binding, pod_parts

        # Host names of nodes and the server's version do not change while the connection is open.
        snapshot = self._latest[1] if self._latest is not None else await self.snapshot()
        facts = server_facts(self.api, snapshot.nodes.values(), self.settings.cuda_index)
        setting, nodes = self.settings.runtime_class, tuple(snapshot.nodes.values())
        nvidia = await self._runtime_class() if gpu_binding.may_need_class(nodes) else None
        has_claims = any(
            pod_parts.new_claims(part.pod) for spec in specs for part in spec.sets if not part.template
        )
        return replace(
            facts,
            runtime_classes=gpu_binding.by_node(nodes, setting, nvidia),
            admits_root=has_claims and await self._admits_root(),
        )

    async def _admits_root(self) -> bool:
        """Return whether the namespace admits an init container of root, by a dry run of a pod with one."""
        if not await self.api.can("create", "Pod", self.namespace):
            return False
        try:
            await self.api.create(_pod_of_root(self.namespace), dry_run=True)
        except ApiError as error:
            if error.is_unreachable or error.status >= 500:
                raise
            return False  # Pod Security `restricted`, or a policy of the cluster's own
        return True

    async def _runtime_class(self) -> dict[str, Any] | None:
        """Return the RuntimeClass ``nvidia``; None if it does not exist or may not be read."""
        from l2rtui.backends.kubernetes.manifests import gpu_binding

        if not self._nvidia_class:
            try:
                self._nvidia_class.append(await self.api.find("RuntimeClass", None, gpu_binding.CLASS))
            except ApiError as error:
                # Not cached: an administrator may grant the permission while the app is open.
                if error.is_forbidden:
                    return None
                raise
        return self._nvidia_class[0]


def _pod_of_root(namespace: str) -> dict[str, Any]:
    """Return a pod as `pod_parts.preparing` makes it, to be tried and never made."""
    from l2rtui.backends.kubernetes.manifests import pod_parts

    pod = pod_parts.helper_pod(
        "l2r-prepare", namespace, "probe", {"name": "c", "image": "none"}, user=1000, deadline_seconds=1
    )
    init = {
        "name": pod_parts.PREPARING_CONTAINER,
        "image": "none",
        "securityContext": pod_parts.preparing_security(),
    }
    pod["spec"]["initContainers"] = [init]
    return pod


def server_facts(api: Api, nodes: Iterable[Node], cuda_index: str = "same") -> ServerFacts:
    """Return the facts that rendering needs about a cluster with these nodes, without their RuntimeClass."""
    from l2rtui.backends.kubernetes.manifests.gpu_binding import CudaIndex
    from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts

    hostnames = {node.name: labels.host_name(node) for node in nodes}
    # On most clusters the label equals the name; only exceptions are stored.
    renamed = {name: hostname for name, hostname in hostnames.items() if name != hostname}
    return ServerFacts(api.server_version, CudaIndex(cuda_index), renamed)


class KubernetesContexts:
    """Contexts of the kubeconfig.

    Args:
        api: Returns the open connection, or opens it.
        context: The connected cluster; None until then.
        configured: Context of the settings; empty for the kubeconfig's current one.
        kubeconfig: Path, or several joined; None for the usual places.
    """

    members = ()

    def __init__(
        self,
        api: Callable[[], Awaitable[Api]],
        context: ClusterContext | None,
        configured: str,
        kubeconfig: str | None,
    ) -> None:
        self._api = api
        self._context = context
        self._configured = configured
        self._kubeconfig = kubeconfig

    @property
    def current(self) -> str:
        """Name of the connected context, otherwise of the configured one."""
        # The connection's own, since `kubectl config use-context` may have changed the current one meanwhile.
        return self._context.api.context if self._context is not None else self._configured

    @property
    def namespace(self) -> str:
        """Namespace where runs are launched; empty until connected."""
        return self._context.namespace if self._context is not None else ""

    def names(self) -> tuple[str, ...]:
        """Return the names of all contexts, in the order of the files."""
        return context_names(self._kubeconfig)[0]

    async def namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces, sorted."""
        namespaces = await (await self._api()).list("Namespace", None)
        return tuple(sorted(str(item.get("metadata", {}).get("name", "")) for item in namespaces))

    async def open(self) -> None:
        """Connect, unless already connected."""
        await self._api()

    def member(self, row: PodView | RunView | Node) -> None:
        """Return None: this is one context."""
