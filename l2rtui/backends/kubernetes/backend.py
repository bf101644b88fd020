"""The Backend over a Kubernetes cluster: one connection, and the files beside this one joined into the protocol.

The connection is opened by the first call and not by the constructor: an app must paint before a credential plugin
has answered. A run is known by its name in the namespace where runs are launched (the first of the settings, else
the context's own); pods of all namespaces that may be seen hold slots.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from l2rtui.backends.base import (
    Capabilities,
    Captured,
    DestroyProgress,
    KubeEvent,
    Leak,
    LogLine,
    LogQuery,
    Receipt,
    StepDone,
)
from l2rtui.backends.kubernetes import checks, describe, destroy, doctor, kill, leaks, portforward, rights, scale
from l2rtui.backends.kubernetes import exec as execution
from l2rtui.backends.kubernetes import launch as launching
from l2rtui.backends.kubernetes import logs as logging
from l2rtui.backends.kubernetes.client import Api, connect
from l2rtui.backends.kubernetes.credentials import EksSigner
from l2rtui.backends.kubernetes.devices import SlotRule
from l2rtui.backends.kubernetes.feed import Feed
from l2rtui.backends.kubernetes.manifests import differences, plan_manifests
from l2rtui.backends.kubernetes.podspec import ServerFacts
from l2rtui.backends.kubernetes.secrets import KubernetesSecrets
from l2rtui.backends.kubernetes.volumes import Volumes
from l2rtui.config import Settings
from l2rtui.domain.change import Change
from l2rtui.domain.node import Node
from l2rtui.domain.plan import LaunchPlan, ScalePlan
from l2rtui.domain.preflight import Finding
from l2rtui.domain.snapshot import ClusterSnapshot, PodView, RunView
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import RefusedError

_RECENT_SECONDS = 5.0


class KubernetesBackend:
    """Runs as objects of one cluster.

    Args:
        kubeconfig: Path, or several joined; None means KUBECONFIG, ~/.kube/config, or the pod's own account.
        eks_token: Signs tokens for EKS, see ``credentials.make_credentials``; None runs the kubeconfig's plugin.
    """

    name = "kubernetes"
    capabilities = Capabilities(has_contexts=True, has_namespaces=True, has_events=True)

    def __init__(
        self, settings: Settings, kubeconfig: str | None = None, eks_token: EksSigner | None = None
    ) -> None:
        self._settings = settings
        self._kubeconfig = kubeconfig
        self._eks_token = eks_token
        self._latest: tuple[float, ClusterSnapshot] | None = None
        self._api: Api | None = None
        self._opening = asyncio.Lock()

    @property
    def place(self) -> str:
        """Context and namespaces; empty until the connection is open."""
        if self._api is None:
            return ""
        return " · ".join(
            filter(None, (self._api.context, ",".join(self._api.namespaces or (self._api.namespace,))))
        )

    # --- looking -----------------------------------------------------------------------------------------------
    async def snapshot(self) -> ClusterSnapshot:
        """Look once at everything that the user may see."""
        api = await self.api()
        snapshot = await self._feed(api).snapshot()
        self._latest = (time.monotonic(), snapshot)
        return snapshot

    async def watch(self) -> AsyncGenerator[tuple[Change, ...]]:
        """Give changes as they happen, for ever; the first batch builds everything."""
        async with aclosing(self._feed(await self.api()).watch()) as batches:
            async for changes in batches:
                yield changes

    async def logs(self, pod: PodView, query: LogQuery) -> AsyncGenerator[LogLine]:
        """Lines of a pod, across restarts of its containers and cuts of the connection."""
        async with aclosing(logging.read(await self.api(), pod, query)) as lines:
            async for line in lines:
                yield line

    async def describe(self, target: PodView | RunView | Node) -> tuple[str, ...]:
        """All that is known of one object, line by line, its events last."""
        return await describe.describe(await self.api(), target)

    async def events(self, target: PodView | RunView | Node | None = None) -> tuple[KubeEvent, ...]:
        """What has happened lately; newest last."""
        return await describe.events(await self.api(), target)

    async def leaks(self) -> tuple[Leak, ...]:
        """Look for what runs that are gone have left behind."""
        return await leaks.find(await self.api(), claims_namespace=self._settings.claims_namespace)

    async def doctor(self) -> tuple[Finding, ...]:
        """What works in this cluster, and whether a pod that is pinned by variables gets its GPU."""
        api = await self.api()
        snapshot = await self.snapshot()
        return await doctor.diagnose(
            api,
            namespace=api.namespace,
            nodes=snapshot.nodes.values(),
            claims_namespace=self._settings.claims_namespace,
            image=self._settings.image,
        )

    # --- launching ---------------------------------------------------------------------------------------------
    async def planned(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with the objects that launch() will make; the settings' image where the spec has none."""
        api = await self.api()
        if self._settings.image:
            runs = (
                replace(run, spec=replace(run.spec, image=run.spec.image or self._settings.image))
                for run in plan.runs
            )
            plan = replace(plan, runs=tuple(runs))
        return await launching.planned(api, plan, claims_namespace=self._claims_namespace(api))

    async def manifests(self, plan: LaunchPlan) -> tuple[dict[str, Any], ...]:
        """What launch() will create, as plain dicts; secrets are left out."""
        api = await self.api()
        return plan_manifests(plan, namespace=api.namespace, server=await self._server())

    async def differences(self, plan: LaunchPlan) -> tuple[str, ...]:
        """Lines of a unified diff from what is there to what the plan wants."""
        api = await self.api()
        return await differences(api, plan, namespace=api.namespace, server=await self._server())

    async def check(self, plan: LaunchPlan) -> tuple[Finding, ...]:
        """Find out what only the cluster can know about a plan. Creates nothing."""
        api = await self.api()
        snapshot = await self._recent()
        return await checks.check_plan(
            api,
            plan,
            namespace=api.namespace,
            server=await self._server(),
            snapshot=snapshot,
            claims_namespace=self._settings.claims_namespace,
        )

    async def launch(self, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
        """Carry out a plan, one StepDone for each of ``plan.steps()``."""
        api = await self.api()
        steps = launching.launch(
            api,
            plan if plan.objects else await self.planned(plan),
            namespace=api.namespace,
            server=await self._server(),
            look=self.snapshot,
            claims_namespace=self._settings.claims_namespace,
            wave=plan.wave,
        )
        async with aclosing(steps):
            async for done in steps:
                yield done

    async def spec(self, run: str) -> RunSpec:
        """The spec with which a run was launched, with its present replicas."""
        api = await self.api()
        return await launching.read_spec(api, api.namespace, run)

    # --- changing ----------------------------------------------------------------------------------------------
    async def scale(self, plan: ScalePlan, grace_seconds: float | None = None) -> None:
        """Start and stop replicas of a set; returns when the wish is recorded."""
        api = await self.api()
        await scale.scale(
            api,
            plan,
            namespace=api.namespace,
            server=await self._server(),
            look=self.snapshot,
            claims_namespace=self._settings.claims_namespace,
            grace_seconds=self._grace(grace_seconds),
        )

    async def kill(self, pods: Sequence[PodView], grace_seconds: float | None = None) -> None:
        """Stop these pods; their set replaces them."""
        for pod in pods:
            if not pod.run:
                whose = f" of {pod.owner}" if pod.owner else ""
                raise RefusedError(f"{pod.name} is a pod{whose} that l2rtui did not launch.")
        await kill.kill(await self.api(), pods, self._grace(grace_seconds))

    async def destroy(
        self, run: RunView, *, grace_seconds: float | None = None, purge: bool = False, force: bool = False
    ) -> AsyncGenerator[DestroyProgress | Receipt]:
        """Remove a run and prove it; the last item is the Receipt."""
        items = destroy.destroy(
            await self.api(),
            run,
            grace_seconds=self._grace(grace_seconds),
            purge=purge,
            force=force,
            claims_namespace=self._settings.claims_namespace,
        )
        async with aclosing(items):
            async for item in items:
                yield item

    async def denied(self) -> Mapping[str, str]:
        """Why deeds are not possible in the namespace of runs, by their names."""
        api = await self.api()
        return await rights.denied(api, api.namespace)

    async def exec(self, pod: PodView, argv: Sequence[str]) -> int:
        """Run a command in a pod on the caller's own terminal; its exit code."""
        return await execution.run(await self.api(), pod, argv)

    async def capture(self, pod: PodView, argv: Sequence[str]) -> Captured:
        """Run a command in a pod, without input, and give what it says."""
        return await execution.captured(await self.api(), pod, argv)

    async def forward(self, pod: PodView, local: int, remote: int) -> AsyncGenerator[str]:
        """Carry connections to a port of this machine to a port of a pod, until the generator is closed."""
        async with aclosing(portforward.forward(await self.api(), pod, local, remote)) as news:
            async for sentence in news:
                yield sentence

    def volumes(self, owner: str, image: str = "") -> Volumes:
        """The persistent volume claims of the namespace."""
        return Volumes(self.api, image or self._settings.image, owner)

    def secrets(self, owner: str) -> KubernetesSecrets:
        """The secrets that l2rtui keeps in the namespace."""
        return KubernetesSecrets(self.api, owner)

    # --- the connection ----------------------------------------------------------------------------------------
    async def api(self) -> Api:
        """The open connection.

        Raises:
            ConfigError: no such context, or its files cannot be used.
            ApiError: the server does not answer or does not let us in.
        """
        async with self._opening:
            if self._api is None:
                self._api = await connect(
                    self._settings.context, self._kubeconfig, self._settings.namespaces, eks_token=self._eks_token
                )
            return self._api

    async def close(self) -> None:
        """Let go of the connection; runs go on."""
        if self._api is not None:
            api, self._api = self._api, None
            await api.close()

    def _feed(self, api: Api) -> Feed:
        return Feed(api, SlotRule.of(self._settings))

    async def _server(self) -> ServerFacts:
        """What rendering needs to know, as it was at the latest look; looks when there was none."""
        snapshot = self._latest[1] if self._latest is not None else await self.snapshot()
        return launching.server_facts(await self.api(), snapshot.nodes.values(), self._settings.cuda_index)

    async def _recent(self) -> ClusterSnapshot:
        """The latest look, if it is from a moment ago: a plan is made, judged and asked about by one look.

        What is launched is looked at once more when its slots are claimed.
        """
        if self._latest is not None and time.monotonic() - self._latest[0] < _RECENT_SECONDS:
            return self._latest[1]
        return await self.snapshot()

    def _claims_namespace(self, api: Api) -> str:
        return self._settings.claims_namespace or api.namespace

    def _grace(self, grace_seconds: float | None) -> float | None:
        return self._settings.grace_seconds if grace_seconds is None else grace_seconds
