"""Manifests of a planned run as plain dicts. Pure, and tested with golden files.

The ConfigMap comes first, because it owns the others; ``launch`` adds the owner reference when the server has
chosen the ConfigMap's uid. A set becomes one controller for each device that it is placed on: a ReplicaSet if its
processes always run, a Job if they end. The learner is always a Job: a finished learner must not start again. Each
stable replica has its own Job, which keeps its name fixed. A StatefulSet would restart a finished replica; a Job
does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from l2rtui.backends.common.run_variables import backstop_seconds
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.manifests import gpu_binding, import_services, pod_parts, podspec, scheduling
from l2rtui.backends.kubernetes.manifests.pod_parts import new_object
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts, imported_controller, pod_template
from l2rtui.domain.kinds import Binding
from l2rtui.domain.plan import LaunchPlan, PlanStep, PodPlan, RunPlan, StepVerb
from l2rtui.domain.workload import RestartPolicy, Role, RunSpec, SetSpec, pod_name
from runtime.base import bounded_json
from runtime.base.contract import DATA_PORT

MAX_RETRIES = 2**31 - 1
"""backoffLimit of a Job whose processes are restarted: the kubelet's own back-off limits the rate."""
LEARNER_RESTART_SECONDS = 180
"""Added to the deadline of a Job: a hung learner kills itself a minute after its limit, and the learner that the
kubelet then starts ends the run in order. Workers do not belong to the Job, so its deadline would leave them
behind.
"""


class Group(Struct, frozen=True):
    """The replicas of one set on one device: one controller.

    Attributes:
        number: Index of the device within the set, from 0.
        node: Empty if the cluster chooses it.
        gpus: Indices of its device, or of several whole GPUs; empty if the cluster chooses.
    """

    set_spec: SetSpec
    number: int
    node: str
    gpus: tuple[int, ...]
    pods: tuple[PodPlan, ...]

    def name(self, run: str) -> str:
        """Name of its controller."""
        if self.set_spec.stable:
            return pod_name(run, self.set_spec.name, self.pods[0].index)
        return labels.controller_name(run, self.set_spec.name, self.number)

    @property
    def kind(self) -> str:
        """Kind of its controller."""
        return controller_kind(self.set_spec)

    @property
    def seats(self) -> str:
        """Value of the annotation ``seats``: JSON list of ``[index, [slot, …]]``; whole GPUs have no slots."""
        seats = [seat_of(pod) for pod in self.pods]
        return json.dumps(seats, separators=(",", ":"))


def controller_kind(set_spec: SetSpec) -> str:
    """Return the kind of a set's controllers."""
    ends = set_spec.restart is not RestartPolicy.ALWAYS or set_spec.role is Role.LEARNER or set_spec.stable
    return "Job" if ends else "ReplicaSet"


def replicas_field(kind: str) -> str:
    """Return the field of a controller's spec with the number of its pods."""
    return "replicas" if kind == "ReplicaSet" else "parallelism"


def replicas_of(controller: dict[str, Any]) -> int:
    """Return the desired number of pods of a controller."""
    return int(controller["spec"][replicas_field(controller["kind"])])


def groups_of(pods: Sequence[PodPlan], first: int = 0) -> tuple[Group, ...]:
    """Group replicas of one set by device, in order of first use; stable replicas are not grouped.

    Args:
        first: Number of the first group.
    """
    by_device: dict[tuple[str, tuple[int, ...], int], list[PodPlan]] = {}
    for pod in pods:
        by_device.setdefault((*device_of(pod), pod.index if pod.set_spec.stable else 0), []).append(pod)
    return tuple(
        Group(members[0].set_spec, number, node, gpus, tuple(members))
        for number, ((node, gpus, _), members) in enumerate(by_device.items(), first)
    )


def device_of(pod: PodPlan) -> tuple[str, tuple[int, ...]]:
    """Return node and devices that a replica is pinned to; "" and empty if the cluster chooses."""
    if not pod.seat.slots:
        return (pod.node, ())
    gpus = tuple(dict.fromkeys(slot.gpu for slot in pod.seat.slots))
    return (pod.seat.slots[0].node, gpus if pod.set_spec.pod.binding.chooses_gpu else ())


def seat_of(pod: PodPlan) -> tuple[int, tuple[int, ...]]:
    """Return index and slots of a replica; no slots if it has whole GPUs, or if the cluster chooses."""
    is_numbered = pod.set_spec.pod.binding.chooses_gpu and len(device_of(pod)[1]) == 1
    return (pod.index, tuple(slot.slot for slot in pod.seat.slots) if is_numbered else ())


def run_groups(run: RunPlan) -> tuple[Group, ...]:
    """Return all groups of a run, set by set."""
    return tuple(
        group
        for set_spec in run.spec.sets
        for group in groups_of([pod for pod in run.pods if pod.set_spec == set_spec])
    )


def run_objects(run: RunPlan, *, namespace: str, token: str, server: ServerFacts) -> list[dict[str, Any]]:
    """Return manifests of a run in the order in which they are created.

    Args:
        token: Secret of the exchange; imported runs, which do not use it, get none.

    Raises:
        RefusedError: A binding mode is not available.
    """
    objects = [config_map(run)]
    if any(not set_spec.template for set_spec in run.spec.sets):
        objects.append(_secret(run, token))
    objects += _services(run)
    objects += _claims(run, server)
    objects += scheduling.pod_groups(run)
    objects += [controller(run, group, server) for group in run_groups(run)]
    for manifest in objects:
        manifest["metadata"] = {
            "name": manifest["metadata"]["name"],
            "namespace": namespace,
            **manifest["metadata"],
            "labels": run_labels(run) | manifest["metadata"].get("labels", {}),
        }
    return objects


def sent_objects(run: RunPlan, *, namespace: str, token: str, server: ServerFacts) -> list[dict[str, Any]]:
    """Return the manifests of a run as they are sent; arguments and errors as in `run_objects`."""
    return as_sent(run, run_objects(run, namespace=namespace, token=token, server=server))


def as_sent(run: RunPlan, objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the manifests of `run_objects` as they are sent: with a JobSet, the Jobs of the run are parts of
    it.
    """
    return scheduling.folded(run, objects, run_labels(run))


def maker_of(run: RunPlan, group: Group) -> tuple[str, str]:
    """Return kind and name of the object that is sent for a group."""
    if group.kind == "Job" and scheduling.is_job_set(run.spec):
        return "JobSet", run.spec.name
    return group.kind, group.name(run.spec.name)


def planned_steps(plan: LaunchPlan, leases: Sequence[str] = ()) -> tuple[PlanStep, ...]:
    """Return the objects of a plan as steps, in launch()'s order; ``leases`` are the names of its slot Leases."""
    names = [run.spec.name for run in plan.runs]
    steps = [
        _creation("ConfigMap", labels.run_object(name), f"the run {name}, which owns the rest") for name in names
    ]
    steps += [PlanStep(StepVerb.CLAIM, "Lease", name, "slots of one device") for name in leases]
    for run in plan.runs:
        steps += _without_pods(run)
        by_maker: dict[tuple[str, str], list[Group]] = {}
        for group in run_groups(run):
            by_maker.setdefault(maker_of(run, group), []).append(group)
        steps += [_controller_step(*maker, groups) for maker, groups in by_maker.items()]
    return tuple(steps)


def with_objects(plan: LaunchPlan, leases: Sequence[str] = ()) -> LaunchPlan:
    """Return the plan with the steps of this backend."""
    return replace(plan, objects=planned_steps(plan, leases))


# --- labels -------------------------------------------------------------------------------------------------
def run_labels(run: RunPlan) -> dict[str, str]:
    """Return the labels of every object of a run."""
    spec = run.spec
    return {
        labels.APP_NAME: "l2r",
        labels.APP_INSTANCE: spec.name,
        labels.APP_PART_OF: labels.label_value(spec.experiment),
        labels.APP_MANAGED_BY: labels.MANAGED_BY,
        labels.RUN: spec.name,
        labels.RUN_ID: run.uid,
        labels.EXPERIMENT: labels.label_value(spec.experiment),
        labels.OWNER: labels.label_value(run.owner),
        labels.SEED: str(spec.seed),
        **({} if spec.trial is None else {labels.TRIAL: str(spec.trial.number)}),
    }


def group_labels(run: RunPlan, group: Group) -> dict[str, str]:
    """Return the labels of a controller and of its pods."""
    set_spec = group.set_spec
    own_labels = {
        **run_labels(run),
        labels.APP_COMPONENT: str(set_spec.role),
        labels.SET: set_spec.name,
        labels.ROLE: str(set_spec.role),
    }
    if group.node:
        own_labels[labels.HOST] = labels.label_value(group.node)
    if set_spec.port:
        own_labels[labels.STABLE] = "true"
    if set_spec.role is Role.LEARNER and set_spec.replicas > 1:
        own_labels[labels.NODE_NUMBER] = str(group.pods[0].index)
    if group.gpus:
        own_labels[labels.GPU] = labels.gpus_label(group.gpus)
    if len(group.pods) == 1 and len(group.gpus) == 1:
        own_labels[labels.SLOT] = str(group.pods[0].seat.slots[0].slot)
    return own_labels


def _selector(run: RunPlan, group: Group) -> dict[str, str]:
    """Return the selector of this controller: only its own pods, not pods of the same set on other devices."""
    keys = (labels.RUN_ID, labels.SET, labels.HOST, labels.GPU)
    return {key: value for key, value in group_labels(run, group).items() if key in keys}


# --- objects ------------------------------------------------------------------------------------------------
def config_map(run: RunPlan) -> dict[str, Any]:
    """Return the object that represents the run, with its spec, its plan and its owner."""
    data = {
        labels.SPEC_KEY: spec_json(run.spec),
        labels.PLAN_KEY: _plan_json(run.pods),
        **pod_parts.texts(run.spec),
    }
    meta = {"annotations": {labels.OWNER: run.owner}}
    return new_object("ConfigMap", labels.run_object(run.spec.name), meta=meta, data=data)


def spec_json(spec: RunSpec) -> str:
    """Encode a spec in the format of the ConfigMap."""
    return msgspec.json.encode(spec).decode()


def _plan_json(pods: Sequence[PodPlan]) -> str:
    rows = [
        {"pod": pod.name, "set": pod.set_spec.name, "index": pod.index, "node": pod.node}
        | {"slots": [str(slot) for slot in pod.seat.slots]}
        for pod in pods
    ]
    return msgspec.json.encode(rows).decode()


def _secret(run: RunPlan, token: str) -> dict[str, Any]:
    return new_object("Secret", labels.run_object(run.spec.name), type="Opaque", stringData={"token": token})


def _services(run: RunPlan) -> list[dict[str, Any]]:
    """Return the learner's Service, the stable replicas' Service, and Services that were imported with the run."""
    services = podspec.service(run)
    learners = (item for item in run.spec.sets if item.role is Role.LEARNER and not item.template)
    learner = next(learners, None)
    if learner is not None:
        ports = [
            {"name": "data", "port": DATA_PORT},
            {"name": "model", "port": DATA_PORT + 1},
            *({"name": f"port-{port}", "port": port} for port in learner.pod.ports),
        ]
        first = {labels.NODE_NUMBER: "0"} if learner.replicas > 1 else {}
        spec = {
            "selector": {labels.RUN_ID: run.uid, labels.ROLE: str(Role.LEARNER), **first},
            "ports": [{**port, "protocol": "TCP", "targetPort": port["port"]} for port in ports],
            # Workers connect before the learner reports ready; its Service would have no endpoint until then.
            "publishNotReadyAddresses": True,
        }
        services.append(new_object("Service", labels.learner_service(run.spec.name, learner.name), spec=spec))
    for extra in bounded_json.loads(run.spec.extras):
        target = {labels.SET: extra["set"]} if extra["set"] else {}  # the Service of a JobSet selects all pods
        spec = {**extra["spec"], "selector": {labels.RUN_ID: run.uid, **target}}
        name = import_services.service_name(run.spec.name, extra)
        services.append(new_object("Service", name, meta=extra.get("metadata"), spec=spec))
    return services


def _claims(run: RunPlan, server: ServerFacts) -> list[dict[str, Any]]:
    """Return one ResourceClaim for each GPU that pods of the run share with DRA."""
    claims = {}
    for pod in run.pods:
        name = gpu_binding.bind(run, pod, server.cuda).claim
        if name:
            claims[name] = gpu_binding.resource_claim(name, pod.devices, server.version)
    return list(claims.values())


def controller(run: RunPlan, group: Group, server: ServerFacts) -> dict[str, Any]:
    """Return the Job or ReplicaSet of one group."""
    set_spec = group.set_spec
    own_labels = group_labels(run, group)
    annotations = {labels.SEATS: group.seats, labels.BINDING: str(set_spec.pod.binding), labels.OWNER: run.owner}
    if set_spec.workers_in_pod > 1:
        annotations[labels.WORKERS] = str(set_spec.workers_in_pod)
    template = pod_template(run, group.pods, server, own_labels, annotations)
    if group.kind == "ReplicaSet":
        spec: dict[str, Any] = {
            "replicas": len(group.pods),
            "selector": {"matchLabels": _selector(run, group)},
            "template": template,
        }
    else:
        is_restarted = set_spec.restart is not RestartPolicy.NEVER
        template["spec"]["restartPolicy"] = "OnFailure" if is_restarted else "Never"
        spec = {
            "parallelism": len(group.pods),
            "backoffLimit": MAX_RETRIES if is_restarted else 0,
            "template": template,
        }
        if set_spec.role is Role.LEARNER or set_spec.stable:
            # Unset for other sets: a "work queue" Job ends when its processes succeed, and its parallelism can
            # change.
            spec["completions"] = 1
        if (backstop := backstop_seconds(run.spec, run.pods)) is not None:
            # For a learner that hangs, and for kinds without a learner. Not for the pods of a ReplicaSet, which
            # would replace them: they end with their learner.
            spec["activeDeadlineSeconds"] = math.ceil(backstop) + LEARNER_RESTART_SECONDS
    own_fields = imported_controller(run, set_spec)
    if group.kind == "Job":
        bounds = (part.get("activeDeadlineSeconds") for part in (spec, own_fields.get("spec") or {}))
        deadline = min((bound for bound in bounds if isinstance(bound, int)), default=None)
        spec |= own_fields.get("spec") or {}
        if deadline is not None:
            spec["activeDeadlineSeconds"] = deadline
    theirs = own_fields.get("metadata") or {}
    meta = {
        "labels": {**(theirs.get("labels") or {}), **own_labels},
        "annotations": {**(theirs.get("annotations") or {}), **annotations},
    }
    return new_object(group.kind, group.name(run.spec.name), meta=meta, spec=spec)


# --- steps --------------------------------------------------------------------------------------------------
def _creation(kind: str, name: str, detail: str) -> PlanStep:
    return PlanStep(StepVerb.CREATE, kind, name, detail)


def _without_pods(run: RunPlan) -> list[PlanStep]:
    """Return the steps between the ConfigMap and the controllers."""
    steps = []
    if any(not set_spec.template for set_spec in run.spec.sets):
        steps.append(_creation("Secret", labels.run_object(run.spec.name), "key of the exchange"))
    services = (service["metadata"]["name"] for service in _services(run))
    steps += [_creation("Service", name, "how the pods find each other") for name in services]
    names = dict.fromkeys(
        gpu_binding.claim_name(run.spec.name, pod.devices)
        for pod in run.pods
        if pod.gpu is not None and pod.set_spec.pod.binding is Binding.DRA and pod.gpu.uuid and pod.seat.slots
    )
    steps += [_creation("ResourceClaim", name, "one GPU") for name in names]
    groups = (group["metadata"]["name"] for group in scheduling.pod_groups(run))
    return steps + [_creation("PodGroup", name, f"all {len(run.pods)} pods start together") for name in groups]


def _controller_step(kind: str, name: str, groups: Sequence[Group]) -> PlanStep:
    details = []
    for group in groups:
        set_spec = group.set_spec
        slots = " ".join(str(slot) for pod in group.pods for slot in pod.seat.slots) or "any node, no device"
        number = set_spec.workers_in_pod
        what = f"pod of {number} {set_spec.role}s" if number > 1 else str(set_spec.role)
        details.append(f"{len(group.pods)} x {what} on {slots}: {' '.join(set_spec.command)}")
    return _creation(kind, name, "; ".join(details))
