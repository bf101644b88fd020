"""Launch: create the runs' ConfigMaps, claim slots, then create all other objects together or in waves.

The ConfigMap of a run is created and never merged, so a name can be taken only once. All other objects name it as
their owner, so deleting it removes the run whatever else went wrong. Each object has an annotation of this launch.
If a creation got no response, the annotation identifies the object: it is never created twice, and another launch's
object is never adopted.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.backends.common.refusals import refuse_taken_slots, run_exists
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.actions import network_policies, slot_races, workdirs
from l2rtui.backends.kubernetes.actions.run_object import is_being_destroyed, owner_reference
from l2rtui.backends.kubernetes.actions.slot_leases import Claimant, Device, SlotLeases, slots_by_device
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.resources import kind_of
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.render import replicas_of
from l2rtui.domain.node import SlotId
from l2rtui.domain.plan import LaunchPlan, PlanStep, RunPlan, StepDone
from l2rtui.errors import BackendError, RefusedError
from runtime.base.processes import exponential_delay

AT_ONCE: Final = 8
"""Number of concurrent requests: more gains nothing, and API servers throttle it."""
_RETRIES: Final = 5
# Longer than one request can take, including retries inside the connection.
_SETTLE_SECONDS: Final = 40.0

Manifest = dict[str, Any]
WAVE_SECONDS: Final = 600.0
"""Time within which the pods of one wave must run; it includes pulling images."""
_POLL_SECONDS: Final = 0.4
Key = tuple[str, str]
"""Kind and name of an object of the launch."""


class ObjectCreator:
    """Requests of one launch; ``created`` has the server's response for each created object."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.created: list[Manifest] = []
        self._api = api
        self._namespace = namespace
        self._nonce = uuid.uuid4().hex
        self._requests: set[asyncio.Future[Manifest]] = set()
        self._gate = asyncio.Semaphore(AT_ONCE)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object, marked as created by this launch.

        Raises:
            ApiError: The server refused, or repeatedly did not respond.
        """
        meta = manifest["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), labels.LAUNCH: self._nonce}
        created = await self.send(lambda: self._post(manifest))
        # Some servers do not repeat the kind in their response.
        self.created.append({**created, "kind": manifest["kind"]})
        return created

    async def send(self, request: Callable[[], Awaitable[Manifest]]) -> Manifest:
        """Send a request when a lane is free; once sent, it is finished even if the caller is cancelled."""
        async with self._gate:
            task = asyncio.ensure_future(request())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            # Nobody waits for it any more if another request fails first.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return await asyncio.shield(task)

    async def wait_idle(self) -> None:
        """Wait until no request is in flight, so that the created objects can be counted."""
        if self._requests:
            await asyncio.wait(set(self._requests), timeout=_SETTLE_SECONDS)

    async def _post(self, manifest: Manifest) -> Manifest:
        """Create an object; retry if the result is unknown."""
        is_unsure = False
        for attempt in range(_RETRIES):
            try:
                return await self._api.create(manifest)
            except ApiError as error:
                # After a lost response, "AlreadyExists" most likely refers to our own object; otherwise to another
                # user's.
                if error.is_taken and is_unsure:
                    return await self._read_own(manifest, error)
                is_unsure = is_unsure or error.is_unreachable or error.status >= 500
                if not (error.is_unreachable or error.status >= 500) or attempt + 1 == _RETRIES:
                    raise
                await asyncio.sleep(exponential_delay(attempt + 1, 0.2, 5.0))
        raise AssertionError  # the last attempt returns or raises

    async def _read_own(self, manifest: Manifest, conflict: ApiError) -> Manifest:
        """Return the object of this name if this launch has created it."""
        existing = await self._api.read(kind_of(manifest), self._namespace, manifest["metadata"]["name"])
        if (existing["metadata"].get("annotations") or {}).get(labels.LAUNCH) != self._nonce:
            raise conflict
        return existing


@dataclass(slots=True)
class WavePart:
    """One controller in one wave.

    Attributes:
        replicas: Number of pods of the controller at the end of the wave, including earlier waves.
        is_first: The controller is created in this wave; otherwise it is scaled.
        is_last: The controller has all its pods after this wave.
    """

    manifest: Manifest
    replicas: int
    is_first: bool
    is_last: bool


def divide(controllers: Sequence[Manifest], size: int) -> list[list[WavePart]]:
    """Divide pods into waves of ``size``; the pods of one controller may be spread over several waves."""
    waves: list[list[WavePart]] = [[]]
    room = size
    for manifest in controllers:
        total = replicas_of(manifest)
        started = 0
        # At least one part for each controller: a controller with 0 replicas is created as well.
        while True:
            if not room:
                waves.append([])
                room = size
            count = min(total - started, room)
            waves[-1].append(WavePart(manifest, started + count, started == 0, started + count == total))
            started, room = started + count, room - count
            if started == total:
                break
    return waves


def pods_after(waves: Iterable[Iterable[WavePart]]) -> int:
    """Return the number of pods that exist after these waves."""
    latest = {(part.manifest["kind"], part.manifest["metadata"]["name"]): part for parts in waves for part in parts}
    return sum(max(0, part.replicas) for part in latest.values())


async def with_objects(context: ClusterContext, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with the objects that launch() will create, in its order."""
    names = []
    if await SlotLeases(context.api, await context.lease_namespace()).is_permitted():
        names = [labels.slot_lease(*device) for device in _claims(plan, "")]
    planned = await network_policies.with_steps(context, render.with_objects(plan, names))
    return await workdirs.with_steps(context, planned)


async def launch(context: ClusterContext, plan: LaunchPlan) -> AsyncGenerator[StepDone]:
    """Execute a plan; yield one StepDone for each of its steps.

    Raises:
        RefusedError: a name or a slot is taken, or a run is destroyed meanwhile; no object remains.
        SlotTakenError: also when all was created, and pods of another namespace were first; what was created stays,
            for destroy().
        ApiError: slots could not be claimed. Created objects stay, for destroy().
    """
    work = _Launch(context, plan, SlotLeases(context.api, await context.lease_namespace()))
    task = asyncio.ensure_future(work.run())
    try:
        steps = plan.steps()
        for step in steps:
            outcome = work.outcome(step)
            either: set[asyncio.Future[Any]] = {task, outcome}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not outcome.done() or step is steps[-1]:
                # It raises where a step has no outcome, and where the second look finds a slot lost.
                await task
            yield StepDone(step, outcome.result())
        await task
    finally:
        await work.stop(task)


def _claims(plan: LaunchPlan, namespace: str) -> dict[Device, dict[int, Claimant]]:
    """Return the slots to claim, in claiming order, without deliberately over-committed slots."""
    overcommitted = set(plan.overcommitted)
    claimants: dict[Claimant, list[SlotId]] = {}
    for run in plan.runs:
        for pod in run.pods:
            is_counted = bool(pod.seat.resource) and not pod.set_spec.pod.binding.chooses_gpu
            claimant = Claimant(run.spec.name, run.uid, namespace, is_counted=is_counted)
            slots = [slot for slot in pod.seat.slots if slot not in overcommitted]
            claimants.setdefault(claimant, []).extend(slots)
    return slots_by_device(claimants)


class _Launch:
    """One launch in progress."""

    def __init__(self, context: ClusterContext, plan: LaunchPlan, leases: SlotLeases) -> None:
        self._context, self._plan = context, plan
        self._api, self._namespace = context.api, context.namespace
        self._leases = leases
        self._creator = ObjectCreator(context.api, context.namespace)
        self._outcomes: dict[Key, asyncio.Future[str]] = {}
        self._owners: dict[str, Manifest] = {}
        self._since = ""
        self._controller_of_pod = {
            pod.name: render.maker_of(run, group)
            for run in plan.runs
            for group in render.run_groups(run)
            for pod in group.pods
        }

    def outcome(self, step: PlanStep) -> asyncio.Future[str]:
        """Return the future of a step's outcome: the sentence of its error, or an empty one."""
        if step.kind == "Run":
            return self._future(("ConfigMap", labels.run_object(step.name)))
        return self._future(self._controller_of_pod[step.name] if step.kind == "Pod" else (step.kind, step.name))

    async def run(self) -> None:
        """Carry out the plan; progress shows in the outcomes."""
        server = await self._context.server_facts([run.spec for run in self._plan.runs])
        rendered = [
            render.sent_objects(run, namespace=self._namespace, token=secrets.token_hex(32), server=server)
            for run in self._plan.runs
        ]
        policed = await network_policies.runs_with_policy(self._context, self._plan)
        for run, objects in zip(self._plan.runs, rendered, strict=True):
            if run in policed:
                objects.append(network_policies.policy_of(self._context, run))
        try:
            for objects in rendered:
                objects[0]["metadata"]["annotations"] |= self._annotations()
            # Names first, slots second: a refused name costs one object, a refused slot none that runs.
            await self._create_runs([objects[0] for objects in rendered])
            await self._claim()
        except RefusedError:
            await asyncio.shield(asyncio.ensure_future(self._withdraw()))
            raise
        owned = self._with_owners(rendered)
        controllers = [manifest for manifest in owned if manifest["kind"] in ("JobSet", "Job", "ReplicaSet")]
        # Services, Secrets and policies come before the controllers: without them a pod restarts, waits, or is
        # reachable by others.
        others = [manifest for manifest in owned if manifest not in controllers]
        await asyncio.gather(self._send_workdirs(), *(self._create_and_resolve(manifest) for manifest in others))
        await self._refuse_destroyed()
        if self._plan.wave:
            await self._start_waves(controllers)
        else:
            await asyncio.gather(*(self._create_and_resolve(manifest) for manifest in controllers))
        # Once more: the last run that used the same code may have been destroyed with it in between.
        await self._send_workdirs()
        # Checked again at the end: a destroy that counted before the last objects were created would miss them.
        await self._refuse_destroyed()
        if not any(future.result() for future in self._outcomes.values() if future.done()):
            await self._refuse_lost_slots()

    async def _send_workdirs(self) -> None:
        for key, error in (await workdirs.send(self._context, self._plan, self._owners)).items():
            self._resolve(key, error)

    async def _refuse_lost_slots(self) -> None:
        """Look once more at the pods of all namespaces; those of a queue come when it admits them."""
        runs = [run for run in self._plan.runs if run.spec.queue is None]
        await slot_races.refuse_lost_slots(self._context, runs, self._since, set(self._plan.overcommitted))

    async def stop(self, task: asyncio.Future[None]) -> None:
        """Stop the work; return when no request is in flight, so that the created objects can be counted."""
        task.cancel()
        with suppress(BaseException):
            await task
        await self._creator.wait_idle()

    def _annotations(self) -> dict[str, str]:
        """Return what each run's ConfigMap says of its launch, for later readers."""
        pins = ",".join(map(str, self._plan.pins))
        return ({labels.WAVE: str(self._plan.wave)} if self._plan.wave else {}) | (
            {labels.PINS: pins} if pins else {}
        )

    # --- phases ---------------------------------------------------------------------------------------------
    async def _create_runs(self, config_maps: Sequence[Manifest]) -> None:
        async def create(run: RunPlan, manifest: Manifest) -> None:
            try:
                self._owners[run.spec.name] = await self._creator.create(manifest)
            except ApiError as error:
                if error.is_taken:
                    raise run_exists(run.spec.name) from error
                self._resolve_manifest(manifest, _sentence(error))
            else:
                self._resolve_manifest(manifest)

        # Wait for all of them before raising an error: _withdraw() must know every created ConfigMap.
        created = [create(run, manifest) for run, manifest in zip(self._plan.runs, config_maps, strict=True)]
        for result in await asyncio.gather(*created, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _claim(self) -> None:
        """Claim the slots, then compare them with the slots that pods use now."""
        claims = _claims(self._plan, self._namespace)
        steps = [step for step in self._plan.objects if step.kind == "Lease"]
        # A plan with objects has a step for each Lease if claims are permitted; one without objects checks now.
        if claims and (steps or (not self._plan.objects and await self._leases.is_permitted())):
            await self._leases.claim(claims)
        for step in steps:
            self._resolve((step.kind, step.name), "")
        pods = [pod for run in self._plan.runs for pod in run.pods]
        # Listed after the claim: a pod that started between plan and claim is in this snapshot, and a launch that
        # comes after the claim sees our Lease.
        if any(pod.seat.slots for pod in pods):
            self._since = await slot_races.revision(self._context)
            refuse_taken_slots(pods, await self._context.snapshot(), self._plan.overcommitted)

    def _with_owners(self, rendered: Sequence[Sequence[Manifest]]) -> list[Manifest]:
        """Return all objects except ConfigMaps, each owned by its run; steps of a run that was not created are
        resolved.
        """
        owned: list[Manifest] = []
        for run, objects in zip(self._plan.runs, rendered, strict=True):
            owner = self._owners.get(run.spec.name)
            for manifest in objects[1:]:
                if owner is None:
                    self._resolve_manifest(manifest, "its run was not created")
                else:
                    manifest["metadata"]["ownerReferences"] = [owner_reference(owner)]
                    owned.append(manifest)
        return owned

    async def _refuse_destroyed(self) -> None:
        """Stop if a run is being destroyed meanwhile: that destroy would not count objects created from now on.

        Raises:
            RefusedError: The message names the runs. Their objects from this launch are being deleted.
        """
        names = {run.uid: run.spec.name for run in self._plan.runs if run.spec.name in self._owners}
        try:
            config_maps = await self._api.list(
                "ConfigMap", self._namespace, labels=f"{labels.RUN_ID} in ({','.join(names)})"
            )
        except ApiError:
            return  # unknown; every created object names its owner, so the garbage collector removes it
        uids = {item["metadata"]["uid"] for item in config_maps if not is_being_destroyed(item["metadata"])}
        destroyed = [name for name in names.values() if self._owners[name]["metadata"]["uid"] not in uids]
        if not destroyed:
            return
        for created in self._creator.created:
            meta = created["metadata"]
            if meta["labels"][labels.RUN] in destroyed and created["kind"] != "ConfigMap":
                with suppress(ApiError):
                    await self._api.delete(
                        created["kind"], self._namespace, meta["name"], uid=meta["uid"], propagation="Background"
                    )
        raise RefusedError(
            f"{', '.join(destroyed)}: destroyed while it was being launched, so the launch stops.",
            "See `l2rtui runs`.",
        )

    async def _withdraw(self) -> None:
        """Undo the beginning of a refused launch: only its own ConfigMaps and claims."""
        for name, owner in self._owners.items():
            with suppress(ApiError):
                await self._api.delete(
                    "ConfigMap", self._namespace, labels.run_object(name), uid=owner["metadata"]["uid"]
                )
        with suppress(ApiError, BackendError):
            run_ids = [run.uid for run in self._plan.runs if run.spec.name in self._owners]
            await self._leases.release(run_ids, _claims(self._plan, self._namespace))

    # --- waves ----------------------------------------------------------------------------------------------
    async def _start_waves(self, controllers: Sequence[Manifest]) -> None:
        divided = divide(controllers, self._plan.wave)
        for number, parts in enumerate(divided):
            if number:
                if problem := await self._wait_running(pods_after(divided[:number])):
                    for part in (part for later in divided[number:] for part in later):
                        self._resolve_manifest(part.manifest, problem)
                    return
                await self._refuse_destroyed()
                if any(step.kind == "Lease" for step in self._plan.objects):
                    # The claims of later waves must outlive the longest wave; CLAIM_SECONDS is too short for that.
                    claims = _claims(self._plan, self._namespace)
                    await self._leases.claim(claims, seconds=WAVE_SECONDS + 60.0)
            await asyncio.gather(*(self._start_part(part) for part in parts))

    async def _start_part(self, part: WavePart) -> None:
        manifest = part.manifest
        field = render.replicas_field(manifest["kind"])
        try:
            if part.is_first:
                await self._creator.create({**manifest, "spec": {**manifest["spec"], field: part.replicas}})
            else:
                name = manifest["metadata"]["name"]
                body = {"spec": {field: part.replicas}}
                await self._creator.send(lambda: self._api.patch(manifest["kind"], self._namespace, name, body))
        except ApiError as error:
            self._resolve_manifest(manifest, _sentence(error))
            return
        if part.is_last:
            self._resolve_manifest(manifest)

    async def _wait_running(self, expected: int) -> str:
        """Wait until ``expected`` pods run or have succeeded; return a sentence on a timeout."""
        until = asyncio.get_running_loop().time() + WAVE_SECONDS
        while True:
            running = 0
            for run in self._plan.runs:
                pods = await self._api.list("Pod", self._namespace, labels=f"{labels.RUN_ID}={run.uid}")
                running += sum((pod.get("status") or {}).get("phase") in ("Running", "Succeeded") for pod in pods)
            if running >= expected:
                return ""
            if asyncio.get_running_loop().time() > until:
                return f"only {running} of the {expected} pods before it run after {WAVE_SECONDS:g} s"
            await asyncio.sleep(_POLL_SECONDS)

    # --- outcomes -------------------------------------------------------------------------------------------
    async def _create_and_resolve(self, manifest: Manifest) -> None:
        try:
            await self._creator.create(manifest)
        except ApiError as error:
            self._resolve_manifest(manifest, _sentence(error))
        else:
            self._resolve_manifest(manifest)

    def _resolve_manifest(self, manifest: Manifest, error: str = "") -> None:
        self._resolve((manifest["kind"], manifest["metadata"]["name"]), error)

    def _resolve(self, key: Key, error: str) -> None:
        future = self._future(key)
        if not future.done():
            future.set_result(error)

    def _future(self, key: Key) -> asyncio.Future[str]:
        if key not in self._outcomes:
            self._outcomes[key] = asyncio.get_running_loop().create_future()
        return self._outcomes[key]


def _sentence(error: ApiError) -> str:
    return error.message.rstrip(".")
