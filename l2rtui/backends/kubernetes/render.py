"""A planned run to the manifests of its objects, as plain dicts: pure, and compared as text by its tests.

The ConfigMap comes first, because it owns the others; the owner reference itself is added by ``launch``, when the
server has given the ConfigMap its uid. A set is one controller for each device that it sits on: a ReplicaSet where
its processes always run, a Job where they end. The learner is a Job in any case: a learner that has finished its
training must not start again. Stable replicas have a Job each: its name is theirs for good, and one that has
finished stays so, which a StatefulSet would start again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from l2rtui.backends.kubernetes import bindings, labels, naming, programs
from l2rtui.backends.kubernetes.podspec import ServerFacts, extra_name, pod_template
from l2rtui.domain.containers import Binding
from l2rtui.domain.plan import LaunchPlan, PodPlan, RunPlan, Step, Verb
from l2rtui.domain.workload import RestartPolicy, Role, RunSpec, SetSpec, pod_name
from runtime.contract import DATA_PORT

MOST_RETRIES = 2**31 - 1
"""backoffLimit of a Job whose processes are restarted: kubelet's own back-off keeps the pace."""


@dataclass(frozen=True, slots=True)
class Group:
    """The replicas of one set on one device: one controller.

    Attributes:
        number: Counts the devices of the set from 0. gpu: index of the device; None where the cluster chooses it.
    """

    set_spec: SetSpec
    number: int
    node: str
    gpu: int | None
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
        """Value of the annotation with its seats."""
        chooses = self.set_spec.pod.binding.chooses_gpu
        seats = [[pod.index, [slot.slot for slot in pod.seat.slots] if chooses else []] for pod in self.pods]
        return json.dumps(seats, separators=(",", ":"))


def controller_kind(one: SetSpec) -> str:
    """Kind of the controllers of a set."""
    ends = one.restart is not RestartPolicy.ALWAYS or one.role is Role.LEARNER or one.stable
    return "Job" if ends else "ReplicaSet"


def groups_of(pods: Sequence[PodPlan], first: int = 0) -> tuple[Group, ...]:
    """Group replicas of one set by device, in the order in which the devices appear; stable ones stay alone.

    Args:
        first: Number of the first group.
    """
    found: dict[tuple[str, int | None, int], list[PodPlan]] = {}
    for pod in pods:
        found.setdefault((*device_of(pod), pod.index if pod.set_spec.stable else 0), []).append(pod)
    return tuple(
        Group(members[0].set_spec, number, node, gpu, tuple(members))
        for number, ((node, gpu, _), members) in enumerate(found.items(), first)
    )


def device_of(pod: PodPlan) -> tuple[str, int | None]:
    """Node and device to which a replica is pinned: ("", None) for none, no device where the cluster chooses it."""
    if not pod.seat.slots:
        return (pod.node, None)
    slot = pod.seat.slots[0]
    return (slot.node, slot.gpu if pod.set_spec.pod.binding.chooses_gpu else None)


def run_groups(run: RunPlan) -> tuple[Group, ...]:
    """All groups of a run, set by set."""
    return tuple(
        group for one in run.spec.sets for group in groups_of([pod for pod in run.pods if pod.set_spec == one])
    )


def run_objects(run: RunPlan, *, namespace: str, token: str, server: ServerFacts) -> list[dict[str, Any]]:
    """Manifests of a run in the order in which they are created.

    Args:
        token: Secret of the exchange; imported runs, which do not use it, get none.

    Raises:
        RefusedError: a binding mode cannot be had.
    """
    objects = [config_map(run)]
    if any(not one.template for one in run.spec.sets):
        objects.append(_secret(run, token))
    objects += _services(run)
    objects += _claims(run, server)
    objects += [controller(run, group, server) for group in run_groups(run)]
    for manifest in objects:
        manifest["metadata"] = {
            "name": manifest["metadata"]["name"],
            "namespace": namespace,
            **manifest["metadata"],
            "labels": run_labels(run) | manifest["metadata"].get("labels", {}),
        }
    return objects


def planned_steps(plan: LaunchPlan, leases: Sequence[str] = ()) -> tuple[Step, ...]:
    """The objects of a plan as steps, in the order in which launch() reports them.

    Args:
        leases: Names of the Leases through which slots are claimed.
    """
    steps = [
        Step(
            Verb.CREATE,
            "ConfigMap",
            labels.run_object(run.spec.name),
            f"the run {run.spec.name}, which owns the rest",
        )
        for run in plan.runs
    ]
    steps += [Step(Verb.CLAIM, "Lease", name, "slots of one GPU") for name in leases]
    for run in plan.runs:
        for manifest in [*_without_pods(run), *(_headline(run, group) for group in run_groups(run))]:
            steps.append(Step(Verb.CREATE, manifest["kind"], manifest["metadata"]["name"], manifest["detail"]))
    return tuple(steps)


def with_objects(plan: LaunchPlan, leases: Sequence[str] = ()) -> LaunchPlan:
    """The plan with the steps that this backend takes."""
    return replace(plan, objects=planned_steps(plan, leases))


# --- labels -------------------------------------------------------------------------------------------------


def run_labels(run: RunPlan) -> dict[str, str]:
    """Labels of every object of a run."""
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
    }


def group_labels(run: RunPlan, group: Group) -> dict[str, str]:
    """Labels of a controller and of its pods."""
    one = group.set_spec
    found = {
        **run_labels(run),
        labels.APP_COMPONENT: str(one.role),
        labels.SET: one.name,
        labels.ROLE: str(one.role),
    }
    if group.node:
        found[labels.HOST] = labels.label_value(group.node)
    if one.port:
        found[labels.STABLE] = "true"
    if group.gpu is not None:
        found[labels.GPU] = str(group.gpu)
    if len(group.pods) == 1 and group.gpu is not None:
        found[labels.SLOT] = str(group.pods[0].seat.slots[0].slot)
    return found


def _selector(run: RunPlan, group: Group) -> dict[str, str]:
    """What tells the pods of this controller from all others, those of the same set on other devices included."""
    keys = (labels.RUN_ID, labels.SET, labels.HOST, labels.GPU)
    return {key: value for key, value in group_labels(run, group).items() if key in keys}


# --- objects ------------------------------------------------------------------------------------------------


def config_map(run: RunPlan) -> dict[str, Any]:
    """The object that stands for the run: its spec, its plan, and who launched it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": labels.run_object(run.spec.name), "annotations": {labels.OWNER: run.owner}},
        "data": {
            labels.SPEC_KEY: spec_json(run.spec),
            labels.PLAN_KEY: _plan_json(run.pods),
            **programs.texts(run.spec),
        },
    }


def spec_json(spec: RunSpec) -> str:
    """A spec as it is kept in the ConfigMap."""
    return msgspec.json.encode(spec).decode()


def _plan_json(pods: Sequence[PodPlan]) -> str:
    rows = [
        {
            "pod": pod.name,
            "set": pod.set_spec.name,
            "index": pod.index,
            "node": pod.node,
            "slots": [str(slot) for slot in pod.seat.slots],
        }
        for pod in pods
    ]
    return msgspec.json.encode(rows).decode()


def _secret(run: RunPlan, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": labels.run_object(run.spec.name)},
        "type": "Opaque",
        "stringData": {"token": token},
    }


def _services(run: RunPlan) -> list[dict[str, Any]]:
    """The learner's Service, that of stable replicas, and those that were imported with the run."""
    found = naming.service(run)
    learner = next((one for one in run.spec.sets if one.role is Role.LEARNER and not one.template), None)
    if learner is not None:
        ports = [
            {"name": "data", "port": DATA_PORT},
            {"name": "model", "port": DATA_PORT + 1},
            *({"name": f"port-{port}", "port": port} for port in learner.pod.ports),
        ]
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": labels.learner_service(run.spec.name, learner.name)},
                "spec": {
                    "selector": {labels.RUN_ID: run.uid, labels.ROLE: str(Role.LEARNER)},
                    "ports": [{**port, "protocol": "TCP", "targetPort": port["port"]} for port in ports],
                    # Workers may ask for the name before the learner reports ready.
                    "publishNotReadyAddresses": True,
                },
            }
        )
    for extra in json.loads(run.spec.extras):
        selector = {labels.RUN_ID: run.uid, labels.SET: extra["set"]}
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": extra_name(run.spec.name, extra["name"])},
                "spec": {**extra["spec"], "selector": selector},
            }
        )
    return found


def _claims(run: RunPlan, server: ServerFacts) -> list[dict[str, Any]]:
    """One ResourceClaim for each GPU that pods of the run share by DRA."""
    found = {}
    for pod in run.pods:
        name = bindings.bind(run, pod, server.cuda).claim
        if name and pod.gpu is not None:
            found[name] = bindings.resource_claim(name, pod.gpu, server.version)
    return list(found.values())


def controller(run: RunPlan, group: Group, server: ServerFacts) -> dict[str, Any]:
    """The Job or ReplicaSet of one group."""
    one = group.set_spec
    found_labels = group_labels(run, group)
    annotations = {labels.SEATS: group.seats, labels.BINDING: str(one.pod.binding), labels.OWNER: run.owner}
    template = pod_template(run, group.pods, server, found_labels, annotations)
    if group.kind == "ReplicaSet":
        spec: dict[str, Any] = {
            "replicas": len(group.pods),
            "selector": {"matchLabels": _selector(run, group)},
            "template": template,
        }
    else:
        is_restarted = one.restart is not RestartPolicy.NEVER
        template["spec"]["restartPolicy"] = "OnFailure" if is_restarted else "Never"
        spec = {
            "parallelism": len(group.pods),
            "backoffLimit": MOST_RETRIES if is_restarted else 0,
            "template": template,
        }
        if one.role is Role.LEARNER or one.stable:
            spec["completions"] = 1  # elsewhere unset: the Job ends when its processes end well, and can be scaled
    return {
        "apiVersion": "apps/v1" if group.kind == "ReplicaSet" else "batch/v1",
        "kind": group.kind,
        "metadata": {"name": group.name(run.spec.name), "labels": found_labels, "annotations": annotations},
        "spec": spec,
    }


# --- steps --------------------------------------------------------------------------------------------------


def _without_pods(run: RunPlan) -> list[dict[str, Any]]:
    """Kind, name and words for the objects between the ConfigMap and the controllers."""
    found: list[dict[str, Any]] = []
    if any(not one.template for one in run.spec.sets):
        found.append({**_secret(run, ""), "detail": "key of the exchange"})
    found += [{**service, "detail": "how the pods find each other"} for service in _services(run)]
    names = dict.fromkeys(
        bindings.claim_name(run.spec.name, pod.gpu)
        for pod in run.pods
        if pod.gpu is not None and pod.set_spec.pod.binding is Binding.DRA and pod.gpu.uuid and pod.seat.slots
    )
    found += [{"kind": "ResourceClaim", "metadata": {"name": name}, "detail": "one GPU"} for name in names]
    return found


def _headline(run: RunPlan, group: Group) -> dict[str, Any]:
    one = group.set_spec
    slots = " ".join(str(slot) for pod in group.pods for slot in pod.seat.slots) or "any node, no device"
    detail = f"{len(group.pods)} x {one.role} on {slots}: {' '.join(one.command)}"
    return {"kind": group.kind, "metadata": {"name": group.name(run.spec.name)}, "detail": detail}
