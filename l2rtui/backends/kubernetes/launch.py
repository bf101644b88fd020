"""Carry out a launch: the ConfigMaps, then the claims on slots, then everything else at once, or in waves.

The ConfigMap of a run is created and never merged, so a name can be taken only once; all that follows names it as
its owner, so removing it removes the run, whatever else went wrong. An object whose creation got no answer is
looked up by a mark of this launch: it is never made twice, and somebody else's is never taken for ours.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from l2rtui.backends.base import StepDone
from l2rtui.backends.kubernetes import labels, leases, render
from l2rtui.backends.kubernetes.bindings import CudaIndex
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.podspec import ServerFacts
from l2rtui.domain.ledger import SlotState
from l2rtui.domain.node import Node, SlotId
from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan, Step
from l2rtui.domain.snapshot import ClusterSnapshot
from l2rtui.domain.workload import RunSpec
from l2rtui.errors import BackendError, NotFoundError, RefusedError

AT_ONCE: Final = 8
"""Requests under way at the same time: more gains nothing and is what API servers throttle."""
WAVE_SECONDS: Final = 600.0
"""How long the pods of one wave may take to run: images are pulled in this time."""
_RETRIES: Final = 5
_POLL_SECONDS: Final = 0.4
_SETTLE_SECONDS: Final = 40.0

Manifest = dict[str, Any]
Key = tuple[str, str]
Look = Callable[[], Awaitable[ClusterSnapshot]]


def server_facts(api: Api, nodes: Iterable[Node], cuda_index: str = "same") -> ServerFacts:
    """What rendering needs to know of this cluster."""
    names = {node.name: dict(node.labels).get(labels.HOSTNAME, node.name) for node in nodes}
    odd = {name: hostname for name, hostname in names.items() if name != hostname}
    return ServerFacts(api.server_version, CudaIndex(cuda_index), odd)


async def can_claim(api: Api, claims_namespace: str) -> bool:
    """Whether the user may claim slots through Leases."""
    asked = [api.can(verb, "Lease", claims_namespace) for verb in ("get", "create", "update")]
    return all(await asyncio.gather(*asked))


async def planned(api: Api, plan: LaunchPlan, *, claims_namespace: str) -> LaunchPlan:
    """The plan with the objects that launch() will make, in its order."""
    names = []
    if await can_claim(api, claims_namespace):
        names = [labels.claim_lease(*device) for device in _claims(plan, "")]
    return render.with_objects(plan, names)


async def launch(
    api: Api,
    plan: LaunchPlan,
    *,
    namespace: str,
    server: ServerFacts,
    look: Look,
    claims_namespace: str = "",
    wave: int = 0,
) -> AsyncGenerator[StepDone]:
    """Carry out a plan, one StepDone for each of its steps.

    Args:
        look: Gives a fresh snapshot: what the pods hold is looked at again once the slots are claimed.
        claims_namespace: Where the Leases are; empty for the run's own namespace.
        wave: Start so many pods, wait until they run, then the next; 0 starts all at once.

    Raises:
        RefusedError: a name or a slot is taken, or somebody destroys a run meanwhile; nothing of it is left.
        ApiError: claims could not be made. What was created stays, for destroy().
    """
    work = _Launch(api, plan, namespace, claims_namespace or namespace, server, look, wave)
    task = asyncio.ensure_future(work.run())
    try:
        for step in plan.steps():
            done = work.outcome(step)
            either: set[asyncio.Future[Any]] = {task, done}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                await task  # it raises: otherwise every step would have its outcome
            yield StepDone(step, done.result())
        await task
    finally:
        await work.stop(task)


async def read_spec(api: Api, namespace: str, run: str) -> RunSpec:
    """The spec of a run, as its ConfigMap keeps it.

    Raises:
        NotFoundError: there is no such run. BackendError: what is kept there is no spec.
    """
    try:
        found = await api.read("ConfigMap", namespace, labels.run_object(run))
    except ApiError as error:
        if error.is_not_found:
            raise NotFoundError(f"There is no run {run}.", "See `l2rtui runs`.") from error
        raise
    return decode_spec(found)


def decode_spec(config_map: Manifest) -> RunSpec:
    """The spec in a run's ConfigMap.

    Raises:
        BackendError: there is none, or it is of another version of l2rtui.
    """
    try:
        return msgspec.json.decode((config_map.get("data") or {})[labels.SPEC_KEY], type=RunSpec)
    except (KeyError, msgspec.MsgspecError, TypeError) as error:
        name = (config_map.get("metadata") or {}).get("name", "")
        raise BackendError(f"ConfigMap {name} holds no spec that this version reads: {error}.") from error


def _claims(plan: LaunchPlan, namespace: str) -> dict[leases.Device, dict[int, leases.Claimant]]:
    """Slots to claim, in the order of claiming; not those that are over-committed on purpose."""
    over = set(plan.overcommitted)
    return leases.wanted(
        {
            leases.Claimant(run.spec.name, run.uid, namespace): [
                slot for pod in run.pods for slot in pod.seat.slots if slot not in over
            ]
            for run in plan.runs
        }
    )


def refuse_held(pods: Iterable[PodPlan], snapshot: ClusterSnapshot, over: Iterable[SlotId] = ()) -> None:
    """Refuse when a slot is held by now; the same slots may be over-committed on purpose.

    Raises:
        RefusedError: naming the slot and who holds it.
    """
    allowed = set(over)
    for pod in pods:
        for slot_id in pod.seat.slots:
            slot = snapshot.ledger.slots.get(slot_id)
            if slot is None:
                raise RefusedError(f"There is no slot {slot_id} for {pod.name}.", "See `l2rtui slots`.")
            if slot.state is not SlotState.FREE and slot_id not in allowed:
                holder = f" by {slot.pod}" if slot.pod else ""
                raise RefusedError(
                    f"Slot {slot_id} is {slot.state}{holder}, so {pod.name} cannot sit there.", "Plan again."
                )


@dataclass(slots=True)
class _Part:
    """One controller, and how many of its pods are started in one wave.

    Attributes:
        is_first: It is created in this wave; otherwise it grows. is_last: it is complete then.
    """

    manifest: Manifest
    replicas: int
    is_first: bool
    is_last: bool


class _Launch:
    """One launch while it is under way."""

    def __init__(
        self,
        api: Api,
        plan: LaunchPlan,
        namespace: str,
        claims_namespace: str,
        server: ServerFacts,
        look: Look,
        wave: int,
    ) -> None:
        self._api, self._plan, self._server, self._look, self._wave = api, plan, server, look, wave
        self._namespace, self._claims_namespace = namespace, claims_namespace
        self._nonce = uuid.uuid4().hex
        self._outcomes: dict[Key, asyncio.Future[str]] = {}
        self._requests: set[asyncio.Future[Manifest]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._owners: dict[str, Manifest] = {}
        self._made: list[Manifest] = []
        self._controllers = {
            (run.spec.name, pod.name): (group.kind, group.name(run.spec.name))
            for run in plan.runs
            for group in render.run_groups(run)
            for pod in group.pods
        }
        self._pods = {pod: key for (_, pod), key in self._controllers.items()}

    def outcome(self, step: Step) -> asyncio.Future[str]:
        """What became of a step: an error, or nothing."""
        if step.kind == "Run":
            return self._future(("ConfigMap", labels.run_object(step.name)))
        return self._future(self._pods[step.name] if step.kind == "Pod" else (step.kind, step.name))

    async def run(self) -> None:
        """Do it all; outcomes tell how far it is."""
        rendered = [
            render.run_objects(run, namespace=self._namespace, token=secrets.token_hex(32), server=self._server)
            for run in self._plan.runs
        ]
        try:
            await self._create_runs([objects[0] for objects in rendered])
            await self._claim()
        except RefusedError:
            await asyncio.shield(asyncio.ensure_future(self._withdraw()))
            raise
        rest: list[Manifest] = []
        for run, objects in zip(self._plan.runs, rendered, strict=True):
            owner = self._owners.get(run.spec.name)
            for manifest in objects[1:]:
                if owner is None:
                    self._settle(manifest, "its run was not created")
                else:
                    manifest["metadata"]["ownerReferences"] = [owner_reference(owner)]
                    rest.append(manifest)
        parts = [one for one in rest if one["kind"] in ("Job", "ReplicaSet")]
        await asyncio.gather(*(self._create_and_tell(one) for one in rest if one not in parts))
        await self._refuse_gone()
        if self._wave:
            await self._in_waves(parts)
        else:
            await asyncio.gather(*(self._create_and_tell(one) for one in parts))
        await self._refuse_gone()

    async def stop(self, task: asyncio.Future[None]) -> None:
        """End the work; return when no request is under way, so that what was created can be counted."""
        task.cancel()
        with suppress(BaseException):
            await task
        if self._requests:
            await asyncio.wait(set(self._requests), timeout=_SETTLE_SECONDS)

    # --- phases ---------------------------------------------------------------------------------------------

    async def _create_runs(self, maps: Sequence[Manifest]) -> None:
        async def create(run: RunPlan, manifest: Manifest) -> None:
            try:
                self._owners[run.spec.name] = await self._create(manifest)
            except ApiError as error:
                if error.is_taken:
                    raise RefusedError(
                        f"A run named {run.spec.name} exists.",
                        f"Choose another name, or `l2rtui destroy {run.spec.name}` first.",
                    ) from error
                self._settle(manifest, _sentence(error))
            else:
                self._settle(manifest)

        made = [create(run, manifest) for run, manifest in zip(self._plan.runs, maps, strict=True)]
        results = await asyncio.gather(*made, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _claim(self) -> None:
        """Claim the slots, then look once more at what pods hold."""
        claims = _claims(self._plan, self._namespace)
        steps = [step for step in self._plan.objects if step.kind == "Lease"]
        if claims and (steps or (not self._plan.objects and await can_claim(self._api, self._claims_namespace))):
            await leases.acquire(self._api, self._claims_namespace, claims)
        for step in steps:
            self._resolve((step.kind, step.name), "")
        pods = [pod for run in self._plan.runs for pod in run.pods]
        if any(pod.seat.slots for pod in pods):
            refuse_held(pods, await self._look(), self._plan.overcommitted)

    async def _refuse_gone(self) -> None:
        """Refuse to go on with runs that somebody destroys meanwhile: nobody would count what is made from now on.

        Raises:
            RefusedError: naming them. What this launch has made for them is being deleted.
        """
        uids = {run.uid: run.spec.name for run in self._plan.runs if run.spec.name in self._owners}
        try:
            there = await self._api.list(
                "ConfigMap", self._namespace, labels=f"{labels.RUN_ID} in ({','.join(uids)})"
            )
        except ApiError:
            return  # nobody knows; whatever is made names its owner and goes with it
        standing = {one["metadata"]["uid"] for one in there if not _is_going(one["metadata"])}
        gone = [name for name in uids.values() if self._owners[name]["metadata"]["uid"] not in standing]
        if not gone:
            return
        for made in self._made:
            meta = made["metadata"]
            if meta["labels"][labels.RUN] in gone and made["kind"] != "ConfigMap":
                with suppress(ApiError):
                    await self._api.delete(
                        made["kind"], self._namespace, meta["name"], uid=meta["uid"], propagation="Background"
                    )
        raise RefusedError(
            f"{', '.join(gone)}: destroyed while it was being launched, so the launch stops.", "See `l2rtui runs`."
        )

    async def _withdraw(self) -> None:
        """Undo the beginning of a launch that is refused: its own ConfigMaps and claims, and no one else's."""
        for name, owner in self._owners.items():
            with suppress(ApiError):
                await self._api.delete(
                    "ConfigMap", self._namespace, labels.run_object(name), uid=owner["metadata"]["uid"]
                )
        with suppress(ApiError, BackendError):
            uids = [run.uid for run in self._plan.runs if run.spec.name in self._owners]
            await leases.release(self._api, self._claims_namespace, uids, _claims(self._plan, self._namespace))

    async def _in_waves(self, controllers: Sequence[Manifest]) -> None:
        wanted = 0
        waves = _waves(controllers, self._wave)
        for number, parts in enumerate(waves):
            if number:
                if problem := await self._wait_running(wanted):
                    for part in (part for later in waves[number:] for part in later):
                        self._settle(part.manifest, problem)
                    return
                await self._refuse_gone()
                if any(step.kind == "Lease" for step in self._plan.objects):  # they last for one wave at least
                    claims = _claims(self._plan, self._namespace)
                    await leases.acquire(self._api, self._claims_namespace, claims, seconds=WAVE_SECONDS + 60.0)
            await asyncio.gather(*(self._start(part) for part in parts))
            wanted = sum(max(0, part.replicas) for part in _newest(waves[: number + 1]))

    async def _start(self, part: _Part) -> None:
        manifest = part.manifest
        key = "replicas" if manifest["kind"] == "ReplicaSet" else "parallelism"
        try:
            if part.is_first:
                await self._create({**manifest, "spec": {**manifest["spec"], key: part.replicas}})
            else:
                name = manifest["metadata"]["name"]
                await self._bounded(
                    lambda: self._api.patch(manifest["kind"], self._namespace, name, {"spec": {key: part.replicas}})
                )
        except ApiError as error:
            self._settle(manifest, _sentence(error))
            return
        if part.is_last:
            self._settle(manifest)

    async def _wait_running(self, wanted: int) -> str:
        """Wait until so many pods run or have ended well; a sentence when they do not."""
        until = asyncio.get_running_loop().time() + WAVE_SECONDS
        while True:
            running = 0
            for run in self._plan.runs:
                pods = await self._api.list("Pod", self._namespace, labels=f"{labels.RUN_ID}={run.uid}")
                running += sum((pod.get("status") or {}).get("phase") in ("Running", "Succeeded") for pod in pods)
            if running >= wanted:
                return ""
            if asyncio.get_running_loop().time() > until:
                return f"only {running} of the {wanted} pods before it run after {WAVE_SECONDS:g} s"
            await asyncio.sleep(_POLL_SECONDS)

    # --- requests -------------------------------------------------------------------------------------------

    async def _create_and_tell(self, manifest: Manifest) -> None:
        try:
            await self._create(manifest)
        except ApiError as error:
            self._settle(manifest, _sentence(error))
        else:
            self._settle(manifest)

    async def _create(self, manifest: Manifest) -> Manifest:
        meta = manifest["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), labels.LAUNCH: self._nonce}
        made = await self._bounded(lambda: self._post(manifest))
        self._made.append({**made, "kind": manifest["kind"]})  # not every server says the kind of what it has made
        return made

    async def _bounded(self, request: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """One request at a time in each of a few lanes; it is finished even when we are stopped."""
        async with self._slots:
            task = asyncio.ensure_future(request())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            return await asyncio.shield(task)

    async def _post(self, manifest: Manifest) -> Manifest:
        """Create an object; ask again where nobody knows whether it was done."""
        is_unsure = False
        for attempt in range(_RETRIES):
            try:
                return await self._api.create(manifest)
            except ApiError as error:
                if error.is_taken and is_unsure:
                    return await self._own(manifest, error)
                is_unsure = is_unsure or error.is_unreachable or error.status >= 500
                if not (error.is_unreachable or error.status >= 500) or attempt + 1 == _RETRIES:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError  # the last attempt returns or raises

    async def _own(self, manifest: Manifest, taken: ApiError) -> Manifest:
        """The object of this name, if this launch has made it."""
        found = await self._api.read(manifest["kind"], self._namespace, manifest["metadata"]["name"])
        if (found["metadata"].get("annotations") or {}).get(labels.LAUNCH) != self._nonce:
            raise taken
        return found

    # --- outcomes -------------------------------------------------------------------------------------------

    def _settle(self, manifest: Manifest, error: str = "") -> None:
        self._resolve((manifest["kind"], manifest["metadata"]["name"]), error)

    def _resolve(self, key: Key, error: str) -> None:
        future = self._future(key)
        if not future.done():
            future.set_result(error)

    def _future(self, key: Key) -> asyncio.Future[str]:
        if key not in self._outcomes:
            self._outcomes[key] = asyncio.get_running_loop().create_future()
        return self._outcomes[key]


def _is_going(meta: Manifest) -> bool:
    """Whether the ConfigMap of a run is being deleted, or its destroy has begun."""
    return bool(meta.get("deletionTimestamp")) or labels.TERMINATING in (meta.get("annotations") or {})


def owner_reference(owner: Manifest) -> Manifest:
    """What ties an object to the ConfigMap of its run."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": True,
    }


def _waves(controllers: Sequence[Manifest], size: int) -> list[list[_Part]]:
    """Divide pods into waves of a size; a controller may grow over several."""
    waves: list[list[_Part]] = [[]]
    room = size
    for manifest in controllers:
        total = _replicas(manifest)
        started = 0
        while True:
            if not room:
                waves.append([])
                room = size
            count = min(total - started, room)
            waves[-1].append(_Part(manifest, started + count, started == 0, started + count == total))
            started, room = started + count, room - count
            if started == total:
                break
    return waves


def _newest(waves: Iterable[Iterable[_Part]]) -> Iterable[_Part]:
    """The latest part of each controller."""
    found = {(part.manifest["kind"], part.manifest["metadata"]["name"]): part for parts in waves for part in parts}
    return found.values()


def _replicas(manifest: Manifest) -> int:
    """How many pods a controller is to have."""
    return int(manifest["spec"]["replicas" if manifest["kind"] == "ReplicaSet" else "parallelism"])


def _sentence(error: ApiError) -> str:
    return error.message.rstrip(".")
