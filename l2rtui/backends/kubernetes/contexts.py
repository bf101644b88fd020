"""Choice of a context and its namespaces, from the kubeconfig and the server's lists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import context_names
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.domain.node import Node
from l2rtui.domain.snapshot import PodView, RunView


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
