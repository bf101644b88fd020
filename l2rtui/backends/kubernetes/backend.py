"""Kubernetes backend: the modules of this package behind the Backend protocol, over one connection.

The first call opens the connection, not the constructor: the app must draw its first frame before a credential
plugin has responded. A run is identified by its name in the namespace of new runs (the first of the settings,
otherwise the kubeconfig context's own). Pods of every visible namespace hold slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.client import Api, connect
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.state.visibility import advice
from l2rtui.config import Settings, user_name
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.errors import BackendError, RefusedError

if TYPE_CHECKING:
    from l2rtui.backends.base import AttachedProcess, Inspector, Renderer
    from l2rtui.backends.kubernetes.actions.reservations import KubernetesReservations
    from l2rtui.backends.kubernetes.actions.run_object import KubernetesRecords
    from l2rtui.backends.kubernetes.api.login import EksSigner
    from l2rtui.backends.kubernetes.context import KubernetesContexts
    from l2rtui.backends.kubernetes.storage.secrets import KubernetesSecrets
    from l2rtui.backends.kubernetes.storage.volumes import Volumes
    from l2rtui.domain.change import Change
    from l2rtui.domain.log import CommandOutput, KubeEvent, LogLine, LogQuery
    from l2rtui.domain.node import Node
    from l2rtui.domain.plan import LaunchPlan, PlannedPlaces, ScalePlan, StepDone
    from l2rtui.domain.preflight import Finding
    from l2rtui.domain.receipt import DestroyProgress, LeakReport, Receipt
    from l2rtui.domain.workload import RunSpec


class KubernetesBackend:
    """Runs as objects of one cluster.

    Args:
        kubeconfig: Path, or several joined; None for KUBECONFIG, ~/.kube/config, or the pod's own account.
        eks_token: Signs tokens for EKS, see ``credentials.make_credentials``; None runs the kubeconfig's plugin.
    """

    name = "kubernetes"
    # The controllers of the cluster supervise pods; what those write lies in volumes.
    adopt = results = kept_results = queue = None

    def __init__(
        self, settings: Settings, kubeconfig: str | None = None, eks_token: EksSigner | None = None
    ) -> None:
        self._settings = settings
        self.history_to = settings.history_to
        self._kubeconfig = kubeconfig
        self._eks_token = eks_token
        self._context: ClusterContext | None = None
        self._is_closed = False
        self._opening = asyncio.Lock()

    @property
    def location(self) -> str:
        """Context and namespaces; empty until the connection is open."""
        if self._context is None:
            return ""
        api = self._context.api
        # Many tools name user and context alike: then one of the two is enough.
        user = f"as {api.user}" if api.user not in ("", api.context) else ""
        return " · ".join(filter(None, (api.context, ",".join(api.namespaces or (api.namespace,)), user)))

    def acts_on(self, namespaces: Collection[str] = ()) -> str:
        """Return context, namespaces and user for confirmations; before connecting, only the context."""
        if self._context is None:
            return f"on context {self._settings.context}" if self._settings.context else "on the cluster"
        api = self._context.api
        names = sorted({*filter(None, namespaces)}) or [api.namespace]
        user = f", as {api.user}" if api.user else ""
        return f"on context {api.context}, namespace{'s' * (len(names) > 1)} {', '.join(names)}{user}"

    @property
    def contexts(self) -> KubernetesContexts:
        """Contexts of the kubeconfig, and the namespaces of this one."""
        from l2rtui.backends.kubernetes.context import KubernetesContexts

        return KubernetesContexts(self.api, self._context, self._settings.context, self._kubeconfig)

    @property
    def reservations(self) -> KubernetesReservations:
        """Reservations of slots, stored separately from claims."""
        from l2rtui.backends.kubernetes.actions.reservations import KubernetesReservations

        return KubernetesReservations(self.context, user_name())

    @property
    def inspector(self) -> Inspector:
        """Descriptions, events and port forwarding: ``describe``, ``events`` and ``forward`` of this class."""
        return self

    @property
    def renderer(self) -> Renderer:
        """Manifests: ``planned``, ``manifests``, ``differences`` and ``places`` of this class."""
        return self

    # --- observation -------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Return everything that the user may see, from fresh lists."""
        return await (await self.context()).snapshot()

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Yield changes as they happen, without end; the first batch builds everything."""
        from l2rtui.backends.kubernetes.state.cluster_watch import ClusterWatch
        from l2rtui.backends.kubernetes.state.node_devices import SlotRule

        shared = self._settings.claims_namespace
        watch = ClusterWatch(await self.api(), SlotRule.of(self._settings), claims_namespace=shared).watch()
        async with aclosing(watch) as batches:
            async for changes in batches:
                yield changes

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Yield lines of a pod, across restarts of its containers and connection losses."""
        from l2rtui.backends.kubernetes.streams import logs as logging

        async with aclosing(logging.read(await self.api(), pod, query)) as lines:
            async for line in lines:
                yield line

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """Return the description of an object, line by line, its events last."""
        from l2rtui.backends.kubernetes.actions import describe

        return await describe.describe(await self.api(), _whole(target))

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """Return the latest events of an object, or of all visible objects; newest last."""
        from l2rtui.backends.kubernetes.actions import describe

        return await describe.events(await self.api(), _whole(target))

    async def leaks(self) -> LeakReport:
        """Return objects that runs have left behind."""
        from l2rtui.backends.kubernetes.actions import owned_objects

        return await owned_objects.find_leaks(await self.context())

    async def doctor(self) -> tuple[Finding, ...]:
        """Return findings on this cluster: permissions, claims, and whether a pod pinned by variables gets its
        GPU.
        """
        from l2rtui.backends.kubernetes.actions import diagnose as diagnosis

        return await diagnosis.diagnose(await self.context())

    # --- launching ---------------------------------------------------------------------------------------------
    async def planned(self, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan with the objects that launch() will create, and the settings' image where needed."""
        from l2rtui.backends.kubernetes.actions import launch as launching

        if self._settings.image:
            runs = (
                replace(run, spec=replace(run.spec, image=run.spec.image or self._settings.image))
                for run in plan.runs
            )
            plan = replace(plan, runs=tuple(runs))
        return await launching.with_objects(await self.context(), plan)

    async def manifests(self, plan: LaunchPlan) -> tuple[dict[str, Any], ...]:
        """Return the objects that launch() will create, as plain dicts; secrets are left out."""
        from l2rtui.backends.kubernetes.actions.diff import cluster_manifests

        return await cluster_manifests(await self.context(), plan)

    async def differences(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Return lines of a unified diff from the objects in the cluster to the planned objects."""
        from l2rtui.backends.kubernetes.actions.diff import differences

        return await differences(await self.context(), plan)

    async def places(self, run: str) -> PlannedPlaces:
        """Return the places that the launch of a run has chosen."""
        from l2rtui.backends.kubernetes.actions.run_object import planned_places, read_run

        api = await self.api()
        return planned_places(await read_run(api, api.namespace, run))

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Return findings that only the cluster can make about a plan. Creates nothing."""
        from l2rtui.backends.kubernetes.actions import preflight

        return await preflight.check_plan(await self.context(), plan)

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Execute a plan; yield one StepDone for each of ``plan.steps()``."""
        from l2rtui.backends.kubernetes.actions import launch as launching

        steps = launching.launch(await self.context(), plan if plan.objects else await self.planned(plan))
        async with aclosing(steps):
            async for done in steps:
                yield done

    async def spec(self, run: str) -> RunSpec:
        """Return the spec with which a run was launched, with the current numbers of replicas."""
        from l2rtui.backends.kubernetes.actions.run_object import decode_spec, read_run

        api = await self.api()
        return decode_spec(await read_run(api, api.namespace, run))

    # --- changing ----------------------------------------------------------------------------------------------
    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set; returns once the server has recorded the new number."""
        from l2rtui.backends.kubernetes.actions import scale

        await scale.scale(await self.context(), plan, grace_seconds=self._settings.grace(grace_seconds))

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; their set replaces them."""
        from l2rtui.backends.kubernetes.actions import scale

        for pod in pods:
            if not pod.run:
                whose = f" of {pod.owner}" if pod.owner else ""
                raise RefusedError(f"{pod.name} is a pod{whose} that l2rtui did not launch.")
        await scale.kill(await self.api(), pods, self._settings.grace(grace_seconds))

    async def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run and verify the removal; the last item is the Receipt."""
        from l2rtui.backends.kubernetes.actions import destroy

        grace = self._settings.grace(grace_seconds)
        items = destroy.destroy(await self.context(), run, grace_seconds=grace, purge=purge, force=force)
        async with aclosing(items):
            async for item in items:
                yield item

    async def denied(self) -> Mapping[str, str]:
        """Return why actions are not permitted in the namespace of runs, by action."""
        from l2rtui.backends.kubernetes.actions import diagnose

        api = await self.api()
        return await diagnose.denied(api, api.namespace)

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in a pod on the caller's terminal; return its exit code."""
        from l2rtui.backends.kubernetes.state.own_reports import pod_of
        from l2rtui.backends.kubernetes.streams import channels as execution

        return await execution.run(await self.api(), pod_of(pod), _as_worker(pod, argv))

    @asynccontextmanager
    async def attach(self, pod: PodView) -> AsyncIterator[AttachedProcess]:
        """Attach to the standard streams of a container's own process."""
        from l2rtui.backends.kubernetes.state.own_reports import pod_of
        from l2rtui.backends.kubernetes.streams.channels import attached

        async with attached(await self.api(), pod_of(pod)) as process:
            yield process

    async def capture(self, pod: PodView, argv: Sequence[str]) -> CommandOutput:
        """Run a command in a pod without input; return its output."""
        from l2rtui.backends.kubernetes.state.own_reports import pod_of
        from l2rtui.backends.kubernetes.streams import channels as execution

        return await execution.capture(await self.api(), pod_of(pod), _as_worker(pod, argv))

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Forward connections from a port of this machine to a port of a pod, until the generator is closed."""
        from l2rtui.backends.kubernetes.state.own_reports import pod_of
        from l2rtui.backends.kubernetes.streams import channels

        async with aclosing(channels.forward(await self.api(), pod_of(pod), local, remote)) as messages:
            async for sentence in messages:
                yield sentence

    @property
    def volumes(self) -> Volumes:
        """The persistent volume claims of the namespace."""
        from l2rtui.backends.kubernetes.storage.volumes import Volumes

        return Volumes(self.api, self._settings.image, user_name())

    @property
    def secrets(self) -> KubernetesSecrets:
        """The secrets that l2rtui created in the namespace."""
        from l2rtui.backends.kubernetes.storage.secrets import KubernetesSecrets

        return KubernetesSecrets(self.api, user_name())

    @property
    def records(self) -> KubernetesRecords:
        """History records, in the ConfigMaps of runs."""
        from l2rtui.backends.kubernetes.actions.run_object import KubernetesRecords

        return KubernetesRecords(self.api)

    # --- the connection ----------------------------------------------------------------------------------------
    async def context(self) -> ClusterContext:
        """Return the connected cluster.

        Raises:
            ConfigError: The context does not exist, or its files cannot be used.
            ApiError: The server does not respond, or refuses the login.
        """
        # Several panes call this concurrently when the app starts; one of them connects.
        async with self._opening:
            if self._is_closed:
                raise BackendError("The connection to the cluster is closed.")
            if self._context is None:
                settings = self._settings
                api = await connect(
                    settings.context,
                    self._kubeconfig,
                    settings.namespaces,
                    eks_token=self._eks_token,
                    act_as=(settings.impersonate_user, settings.impersonate_groups),
                )
                api.advise = advice
                self._context = ClusterContext(api, self._settings)
            return self._context

    async def api(self) -> Api:
        """Return the open connection; raises the errors of context()."""
        return (await self.context()).api

    async def close(self) -> None:
        """Close the connection; runs continue."""
        self._is_closed = True  # unfinished work must not reconnect: that connection would never be closed
        if self._context is not None:
            context, self._context = self._context, None
            await context.api.close()


_Target = TypeVar("_Target")


def _whole(target: _Target) -> _Target | PodView:
    from l2rtui.backends.kubernetes.state.own_reports import pod_of

    return pod_of(target) if isinstance(target, PodView) else target


def _as_worker(pod: PodView, argv: Sequence[str]) -> Sequence[str]:
    """Return the command with the name and id of one of several workers of a pod."""
    from runtime.base.contract import ENV_POD, ENV_POD_ID

    return argv if pod.worker is None else ["env", f"{ENV_POD}={pod.name}", f"{ENV_POD_ID}={pod.uid}", *argv]
