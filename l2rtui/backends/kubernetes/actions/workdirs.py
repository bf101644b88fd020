"""Own code of a launch: its steps in a plan, the check of its size, and its sending, once for all that share it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from l2rtui.backends.common import workdirs as stored
from l2rtui.backends.kubernetes.actions.run_object import owner_reference
from l2rtui.backends.kubernetes.api.backoff import RetryPauses
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.context import ClusterContext
from l2rtui.backends.kubernetes.manifests import workdirs
from l2rtui.backends.kubernetes.storage.volumes import Volumes
from l2rtui.config import user_name
from l2rtui.domain.plan import LaunchPlan, PlanStep, StepVerb
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import format_bytes
from l2rtui.domain.workload import Workdir
from l2rtui.errors import BackendError

Manifest = dict[str, Any]
_TRIES: Final = 8


def of_plan(plan: LaunchPlan) -> tuple[Workdir, ...]:
    """Return the different archives of a plan; seeds and trials share one."""
    archives = (run.spec.workdir for run in plan.runs)
    return tuple({workdir.sha256: workdir for workdir in archives if workdir is not None}.values())


def key_of(workdir: Workdir) -> tuple[str, str]:
    """Return kind and name of the object that carries an archive."""
    if workdirs.is_in_volume(workdir):
        return "File", f"{workdir.volume}:{workdirs.VOLUME_FOLDER}/{workdirs.file_name(workdir)}"
    return "ConfigMap", workdirs.config_map_name(workdir)


async def with_steps(context: ClusterContext, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan with a step for each archive, before the objects of the runs."""
    steps = []
    for workdir in of_plan(plan):
        kind, name = key_of(workdir)
        is_sent = kind == "ConfigMap" and await context.api.find(kind, context.namespace, name) is not None
        verb, detail = StepVerb.CREATE, f"own code: {workdir.size}"
        if is_sent:
            verb, detail = StepVerb.KEEP, f"{detail}; another run has sent it"
        steps.append(PlanStep(verb, kind, name, detail))
    if not steps:
        return plan
    first = sum(step.kind in ("ConfigMap", "Lease") for step in plan.objects)
    return replace(plan, objects=(*plan.objects[:first], *steps, *plan.objects[first:]))


def check(plan: LaunchPlan) -> Iterable[Finding]:
    """Yield a refusal for each archive that neither a ConfigMap nor a volume can carry."""
    for workdir in of_plan(plan):
        if workdirs.is_in_volume(workdir) and not workdir.volume:
            sentence = (
                f"the packed files take {format_bytes(workdir.packed_bytes)}B, and a ConfigMap carries "
                f"{format_bytes(workdirs.MAX_BYTES)}B"
            )
            volume = f"workdir: {{path: {workdir.path}, volume: CLAIM}}"
            hint = f"Leave files out by .l2rignore, or name a volume that carries them: `{volume}`."
            yield Finding(Severity.REFUSAL, stored.SUBJECT, sentence, hint)


def manifests_of(context: ClusterContext, plan: LaunchPlan) -> list[Manifest]:
    """Return the ConfigMaps of a plan for display, without owners, which the server chooses."""
    sent = (workdir for workdir in of_plan(plan) if not workdirs.is_in_volume(workdir))
    return [workdirs.config_map(workdir, context.namespace) for workdir in sent]


async def send(
    context: ClusterContext, plan: LaunchPlan, owners: Mapping[str, Manifest]
) -> dict[tuple[str, str], str]:
    """Send the archives that are not there yet, and make the runs their owners; return an error for each step.

    Args:
        owners: ConfigMaps of the created runs, by name.
    """
    users: defaultdict[str, list[Manifest]] = defaultdict(list)
    for run in plan.runs:
        if run.spec.workdir is not None and run.spec.name in owners:
            # Not blocking: a foreground deletion of one run must not wait for what others share.
            reference = owner_reference(owners[run.spec.name]) | {"blockOwnerDeletion": False}
            users[run.spec.workdir.sha256].append(reference)
    errors = {}
    for workdir in of_plan(plan):
        error = ""
        try:
            if workdirs.is_in_volume(workdir):
                await _put(context, plan, workdir)
            elif users[workdir.sha256]:
                await _share(context, workdir, users[workdir.sha256])
        except BackendError as failure:
            error = failure.message.rstrip(".")
        errors[key_of(workdir)] = error
    return errors


async def _share(context: ClusterContext, workdir: Workdir, owners: list[Manifest]) -> None:
    """Create the ConfigMap of an archive, or add owners to the existing one."""
    api, namespace, name = context.api, context.namespace, workdirs.config_map_name(workdir)
    pauses = RetryPauses(0.1)
    for _ in range(_TRIES):
        try:
            existing = await api.find("ConfigMap", namespace, name)
            if existing is None:
                await api.create(workdirs.config_map(workdir, namespace, owners))
            elif change := _with_owners(existing["metadata"], owners):
                await api.patch("ConfigMap", namespace, name, {"metadata": change})
        except ApiError as error:
            is_race = error.is_taken or error.is_conflict or error.is_not_found
            if not (is_race or error.is_unreachable or error.status >= 500):
                raise
            await pauses.wait()
        else:
            return
    raise BackendError(f"The ConfigMap {name} changes all the time.", "Try again.")


def _with_owners(meta: Manifest, owners: list[Manifest]) -> Manifest:
    """Return the change of an object's metadata that adds owners; empty if it has them."""
    there = meta.get("ownerReferences") or []
    uids = {owner["uid"] for owner in there}
    if added := [owner for owner in owners if owner["uid"] not in uids]:
        # With the version that was read: another launch may add itself at the same time.
        return {"resourceVersion": meta["resourceVersion"], "ownerReferences": [*there, *added]}
    return {}


async def _put(context: ClusterContext, plan: LaunchPlan, workdir: Workdir) -> None:
    """Copy an archive to its volume, unless it is there."""
    spec = next(run.spec for run in plan.runs if run.spec.workdir == workdir)
    image = spec.image or context.settings.image

    async def connect() -> Any:
        return context.api

    stored.packed(workdir)  # a damaged archive is not sent
    async with Volumes(connect, image, user_name()).files(workdir.volume, image) as files:
        target = f"{workdirs.VOLUME_FOLDER}/{workdirs.file_name(workdir)}"
        await files.put(stored.path_of(workdir), target, lambda _: None)
