"""Every verb of the program, run against an API server in memory, for tests of the required rights."""

from __future__ import annotations

import asyncio
import copy
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from l2rtui.backends.common import workdirs
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.backend import KubernetesBackend
from l2rtui.domain.change import ProblemsChanged
from l2rtui.domain.containers import Mount, PodSettings
from l2rtui.domain.history import HistoryEntry, HistoryRecord
from l2rtui.domain.kinds import Binding
from l2rtui.domain.log import LogQuery
from l2rtui.domain.node import SlotId
from l2rtui.domain.placement import place
from l2rtui.domain.plan import LaunchPlan, plan_launch
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.receipt import Receipt
from l2rtui.domain.secret import Secret, SecretKind
from l2rtui.domain.snapshot import PodView, RunView
from l2rtui.domain.workload import (
    Kind,
    Queue,
    QueueSystem,
    Resources,
    RestartPolicy,
    Role,
    RunSpec,
    SetSpec,
    Workdir,
)
from l2rtui.errors import BackendError, RefusedError
from l2rtui.services import launcher
from l2rtui.services.history.sharing import share
from tests.fakes.gang_controllers import JobSetServer
from tests.fakes.kubernetes_objects import Failure

ALWAYS: Final = RestartPolicy.ALWAYS
KUEUE: Final = Queue(QueueSystem.KUEUE, "team")
VOLCANO: Final = Queue(QueueSystem.VOLCANO, "gpus")
COSCHEDULING: Final = Queue(QueueSystem.COSCHEDULING)
JOB_SET: Final = Queue(QueueSystem.JOBSET)
GPUS: Final = 24
NODE: Final = {
    "kind": "Node",
    "metadata": {
        "name": "n1",
        "labels": {labels.GPUS: str(GPUS), labels.HOSTNAME: "n1"},
        "annotations": {labels.GPU_UUIDS: ",".join(f"GPU-{index}" for index in range(GPUS))},
    },
    "spec": {},
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)},
        "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)},
        # A node that offers the runtime, so that the program looks for its RuntimeClass.
        "nodeInfo": {"containerRuntimeVersion": "containerd://1.7.11-k3s2", "kubeletVersion": "v1.34.1+k3s1"},
    },
}
EXPORTER: Final = {
    "kind": "Pod",
    "metadata": {"name": "dcgm", "labels": {"app": "dcgm-exporter"}},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}
METRICS: Final = "/apis/metrics.k8s.io/v1beta1"


class FullServer(JobSetServer):
    """Cluster with a metrics server, dynamic resource allocation and queues, whose pods run immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.missing_groups = set()
        self.hooks.append(self._run_pods)
        self.put(NODE)
        self.put(EXPORTER, "gpu-operator")
        for kind, name in (("LocalQueue", "team"), ("ServiceAccount", "robot")):
            self.put({"kind": kind, "metadata": {"name": name}})
        claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "fast"}}
        self.put({"kind": "PersistentVolumeClaim", **claim})
        self.put({"kind": "Secret", "metadata": {"name": "pull"}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == METRICS:
            return web.json_response({"resources": [{"name": "nodes", "verbs": ["get", "list", "watch"]}]})
        return await super().handle(request)

    def forget(self, kind: str, name: str) -> None:
        """Drop an object and leave its dependents, as if the garbage collector had not run yet."""
        self.objects.pop((kind, "ml", name), None)

    def _run_pods(self, *_: str) -> None:
        for (kind, _, name), pod in self.objects.items():
            if kind == "Pod":
                pod["spec"].setdefault("nodeName", "n1")
                phase = "Succeeded" if name.startswith("l2r-probe") else "Running"
                pod.setdefault("status", {}).setdefault("phase", phase)


class Program:
    """The program at one server.

    Attributes:
        sentences: Findings and problems reported by the program, apart from its errors.
    """

    def __init__(self, server: FullServer, backend: KubernetesBackend) -> None:
        self.server, self.backend = server, backend
        self.sentences: list[str] = []

    def hear(self, findings: Iterable[Finding]) -> None:
        """Collect the sentences of findings that are not OK."""
        self.sentences += [item.sentence for item in findings if item.severity is not Severity.OK]

    async def plan(
        self,
        *names: str,
        wave: int = 0,
        queue: Queue | None = None,
        workdir: Workdir | None = None,
        **settings: Any,
    ) -> LaunchPlan:
        """Return the plan of runs with a learner and workers; settings apply to the workers' pods."""
        resources, pod = Resources(1.0, 2**30), PodSettings(**settings)
        sets = (
            SetSpec("learner", Role.LEARNER, ("l",), resources=resources),
            SetSpec("w", Role.WORKER, ("w",), replicas=3, restart=ALWAYS, resources=resources, pod=pod),
        )
        specs = tuple(
            RunSpec(Kind.LEARNER_WORKERS, name, name, sets, image="i:1", queue=queue, workdir=workdir)
            for name in names or ("r",)
        )
        snapshot = await self.backend.snapshot()
        uids = [uuid.uuid4().hex for _ in specs]
        plan = plan_launch(specs, place(specs, snapshot.ledger), snapshot.nodes, owner="anna", uids=uids)
        return await self.backend.planned(replace(plan, wave=wave))

    async def launch(self, *names: str, **options: Any) -> None:
        """Launch runs; the first error of a step is raised."""
        steps = [done async for done in self.backend.launch(await self.plan(*names, **options))]
        if errors := [done.error for done in steps if done.error]:
            raise BackendError(errors[0])

    @asynccontextmanager
    async def setup(self) -> AsyncIterator[None]:
        """Act as an administrator whose requests do not count, to create the objects that a verb needs."""
        server, api = self.server, await self.backend.api()
        granted, denied = server.granted, server.denied
        server.granted, server.denied = None, set()
        calls = set(server.calls)
        yield
        server.granted, server.denied, server.calls = granted, denied, calls
        api.forget_permissions()

    async def run(self, name: str = "r") -> RunView:
        """Return the row of a run."""
        view = (await self.backend.snapshot()).run_named(name)
        assert view is not None
        return view

    async def pod(self) -> PodView:
        """Return a worker of the run ``r``."""
        return (await self.backend.snapshot()).pods_of("r", "w")[0]


# --- verbs -----------------------------------------------------------------------------------------------------
async def view(program: Program) -> None:
    """Follow the cluster as the app does, until every kind is watched and the metrics are read."""
    kinds = {"Node", "Pod", "ReplicaSet", "StatefulSet", "Job", "ConfigMap", "Event"}
    kinds |= {"NodeMetrics", "ResourceClaim", "ResourceSlice"}
    server = program.server
    cluster_wide = {kind for kind in kinds if not KINDS[kind].is_namespaced}
    seen = {kind for kind in kinds if server.allows("list", kind, is_namespaced=kind not in cluster_wide)}
    async with asyncio.timeout(60), aclosing(program.backend.watch()) as batches:
        reading = asyncio.ensure_future(_read_all(program, batches))
        while not seen <= {kind for verb, kind, *_ in server.calls if verb == "watch"}:
            await asyncio.sleep(0.01)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    program.sentences += (await program.backend.snapshot()).problems


async def _read_all(program: Program, batches: AsyncIterator[Any]) -> None:
    async for changes in batches:
        for change in changes:
            if isinstance(change, ProblemsChanged):
                program.sentences += change.problems


async def plan(program: Program) -> None:
    """Check and compare plans of every kind."""
    mounts = (Mount("/data", claim="data"),)
    options = {"secrets": ("vars",), "pull_secrets": ("pull",), "service_account": "robot", "mounts": mounts}
    first = await program.plan(**options)
    program.hear(await program.backend.check(first))
    await program.backend.manifests(first)
    program.hear(await program.backend.check(await program.plan("a", "b", "c", "d")))
    program.hear(await program.backend.check(await program.plan(queue=KUEUE)))
    for special in ({"binding": Binding.DRA}, {"queue": VOLCANO}, {"queue": COSCHEDULING}, {"queue": JOB_SET}):
        await program.backend.differences(await program.plan(**special))
    program.hear(await program.backend.check(await program.plan(binding=Binding.DEVICE_PLUGIN)))


async def launch(program: Program) -> None:
    """Launch runs of every kind, with lost answers; then runs whose slots are taken, and which are destroyed."""
    server = program.server
    for kind in ("ConfigMap", "Secret", "Service", "Job", "ReplicaSet", "NetworkPolicy"):
        server.failures.append(Failure("POST", kind, 500, is_done=True))
    await program.launch()
    for name, special in (
        ("dra", {"binding": Binding.DRA}),
        ("volcano", {"queue": VOLCANO}),
        ("plugin", {"queue": COSCHEDULING}),
        ("jobs", {"queue": JOB_SET}),
        ("waves", {"wave": 2}),
        ("claimed", {"mounts": (Mount("/data", claim="data"),)}),
        ("code", {"workdir": own_code()}),
        ("code-too", {"workdir": own_code()}),
    ):
        await program.launch(name, **special)
    first, second = await program.plan("first"), await program.plan("second")
    assert [done async for done in program.backend.launch(first)]
    with suppress(RefusedError):  # if the slots of a plan are visible
        assert [done async for done in program.backend.launch(second)]
    server.hooks.append(_forgetting(server))
    with suppress(RefusedError):
        await program.launch("gone")


def own_code() -> Workdir:
    """Return own code that is stored on this machine."""
    sha256, packed_bytes = workdirs.store(b"files")
    return Workdir(".", sha256, packed_bytes=packed_bytes)


def _forgetting(server: FullServer) -> Callable[[str, str, str], None]:
    """Return a hook that removes a run once its last objects are made."""

    def forget(method: str, kind: str, _: str) -> None:
        if (method, kind) == ("POST", "ReplicaSet"):
            server.forget("ConfigMap", "l2r-gone")

    return forget


async def scale(program: Program) -> None:
    """Give a set more replicas, then fewer, then none on one of its GPUs."""
    async with program.setup():
        await program.launch(mounts=(Mount("/data", claim="data"),))
    for replicas in (6, 2, 3, 0, 1):
        await launcher.scale(program.backend, "r", "w", replicas, 1.0, overcommit=True)


async def kill(program: Program) -> None:
    """Stop a pod."""
    async with program.setup():
        await program.launch()
    await program.backend.kill([await program.pod()])


async def destroy(program: Program) -> None:
    """Destroy runs that have objects of every kind."""
    async with program.setup():
        await program.launch("r", binding=Binding.DRA)
        await program.launch("volcano", queue=VOLCANO)
        await program.launch("plugin", queue=COSCHEDULING)
        await program.launch("jobs", queue=JOB_SET)
        run = await program.run()
    program.server.hooks.append(_following(program.server))
    own = {"labels": {labels.RUN_ID: run.uid, labels.RUN: "r"}}
    for kind in ("StatefulSet", "Endpoints", "EndpointSlice", "PersistentVolumeClaim", "ResourceClaimTemplate"):
        program.server.put({"kind": kind, "metadata": {"name": f"of-{kind.lower()}", **copy.deepcopy(own)}})
    program.server.put(
        {"kind": "Pod", "metadata": {"name": "bare", **copy.deepcopy(own)}, "spec": {}, "status": {}}
    )
    for name in ("r", "volcano", "plugin", "jobs"):
        *_, receipt = [item async for item in program.backend.destroy(await program.run(name), purge=True)]
        assert isinstance(receipt, Receipt)
        if receipt.left:
            raise BackendError("; ".join(f"{left.kind} {left.name}: {left.reason}" for left in receipt.left))


def _following(server: FullServer) -> Callable[[str, str, str], None]:
    """Return a hook that removes the objects made by the cluster for a Service together with it."""

    def follow(method: str, kind: str, _: str) -> None:
        if (method, kind) == ("DELETE", "Service"):
            server.forget("Endpoints", "of-endpoints")
            server.forget("EndpointSlice", "of-endpointslice")

    return follow


async def leaks(program: Program) -> None:
    """Look for what runs have left behind, and find a pod and a claim."""
    async with program.setup():
        await program.launch()
        run = await program.run()
        program.server.forget("ConfigMap", "l2r-r")
    leaks = (await program.backend.leaks()).leaks
    assert {leak.run for leak in leaks} == {run.name}


async def describe(program: Program) -> None:
    """Describe a pod of each queue, one that crashes, a run and a node."""
    async with program.setup():
        await program.launch()
    target = await program.pod()
    pod = program.server.get("Pod", target.name)
    waiting = {"name": "main", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    pod["status"]["containerStatuses"] = [waiting]
    meta = pod["metadata"]
    meta.setdefault("annotations", {})[labels.VOLCANO_GROUP] = "g"
    await program.backend.describe(target)
    meta["labels"][labels.KUEUE_GROUP] = "g"
    await program.backend.describe(target)
    del meta["labels"][labels.KUEUE_GROUP], meta["annotations"][labels.VOLCANO_GROUP]
    meta["labels"][labels.COSCHEDULING_GROUP] = "g"
    await program.backend.describe(target)
    meta["labels"][labels.JOB_SET] = "g"
    await program.backend.describe(target)
    await program.backend.describe(await program.run())
    if nodes := [node for node in (await program.backend.snapshot()).nodes.values() if node.gpus]:
        with suppress(ApiError):  # nodes without details are known from their pods
            await program.backend.describe(nodes[0])


async def events(program: Program) -> None:
    """List events of a run, and of all."""
    async with program.setup():
        await program.launch()
    await program.backend.events(await program.run())
    await program.backend.events()


async def logs(program: Program) -> None:
    """Read the log of a pod."""
    async with program.setup():
        await program.launch()
    async with asyncio.timeout(30), aclosing(program.backend.logs(await program.pod(), LogQuery())) as lines:
        async for _ in lines:
            pass


async def execute(program: Program) -> None:
    """Run a command in a pod; the server in memory opens no websocket."""
    async with program.setup():
        await program.launch()
    await _without_socket(program.backend.capture(await program.pod(), ["true"]))


async def forward(program: Program) -> None:
    """Forward a port and connect to it."""
    async with program.setup():
        await program.launch()
    messages = program.backend.forward(await program.pod(), 0, 80)
    async with asyncio.timeout(30), aclosing(messages):
        sentence = await anext(messages)
        port = int(re.search(r":(\d+)", sentence)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        failure = await anext(messages)
        writer.close()
    if "right" in failure:
        raise BackendError(failure)


async def volume(program: Program) -> None:
    """Create a volume, look at its files, delete it."""
    volumes = program.backend.volumes
    await volumes.create("v", "1Gi")
    await volumes.list()
    async with volumes.files("v", "i:1") as files:
        await _without_socket(files.entries())
    await volumes.create("other", "1Gi")
    await volumes.delete("other")


async def secret(program: Program) -> None:
    """Create, replace, list and delete a secret."""
    secrets = program.backend.secrets
    await secrets.keep(Secret("vars", SecretKind.VARIABLES, (("KEY", "x"),)))
    await secrets.keep(Secret("vars", SecretKind.VARIABLES, (("KEY", "y"),)), replace=True)
    await secrets.keep(Secret("vars", SecretKind.REGISTRY, ((".dockerconfigjson", "{}"),)), replace=True)
    async with program.setup():
        await program.launch(secrets=("vars",))
    assert [item.name for item in await secrets.list()] == ["vars"]
    await secrets.delete("vars")


async def reserve(program: Program) -> None:
    """Reserve two slots of a node, one after the other, and release them."""
    async with program.setup():
        await program.launch(binding=Binding.CPU)  # without a right to nodes, they are known from their pods
    slots = [SlotId("n1", 0, 1), SlotId("n1", 0, 2)]
    reservations = program.backend.reservations
    for slot in slots:
        await reservations.reserve([slot], time.time() + 3600, "tests")
    reserved = [item for node in (await program.backend.snapshot()).nodes.values() for item in node.reservations]
    assert len(reserved) == 2
    await reservations.release(slots)
    assert ("ConfigMap", "ml", labels.reservations_object("n1")) not in program.server.objects


async def check(program: Program) -> None:
    """Check the cluster, with its probe."""
    program.hear(await program.backend.doctor())


async def history(program: Program) -> None:
    """Attach a record to a run, and read those of others."""
    async with program.setup():
        await program.launch()
    view = await program.run()
    await share(program.backend, [HistoryRecord(HistoryEntry(view.name, view.uid, namespace=view.namespace))])
    await program.backend.records.list()


async def _without_socket(work: Awaitable[object]) -> None:
    try:
        await work
    except ApiError as error:
        if error.is_forbidden:
            raise


VERBS: Final[Mapping[str, Callable[[Program], Awaitable[None]]]] = {
    "view": view,
    "plan": plan,
    "launch": launch,
    "scale": scale,
    "kill": kill,
    "destroy": destroy,
    "leaks": leaks,
    "describe": describe,
    "events": events,
    "logs": logs,
    "exec": execute,
    "forward": forward,
    "volume": volume,
    "secret": secret,
    "reserve": reserve,
    "check": check,
    "history": history,
}
"""Verbs by their names in the table of rights."""
