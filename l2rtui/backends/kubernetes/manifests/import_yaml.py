"""Read a user's ReplicaSet, Pod, Service YAML into a RunSpec.

The pod templates stay as they are. Fields that must differ between two runs are removed here and set again by
``render``: names, selectors, the node, the two variables of the GPU. A finding tells each such change. Placeholders
in double braces (``{{GPU_ID}}``) that a plan knows are filled when it is rendered; values of the others come from
``--set``.

Sources: learn-to-race's guide to its cluster and ``launch-multi-seed.py``, BrandonBian/l2r-distributed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from l2rtui.backends.kubernetes.manifests import scheduling
from l2rtui.backends.kubernetes.manifests.gpu_binding import DEVICE_VARIABLES, WHOLE_GPU
from l2rtui.domain.containers import Binding, PodSettings, Scheduling, Security
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import parse_quantity
from l2rtui.domain.workload import MAX_NAME, MAX_SET_NAME, Kind, Resources, RestartPolicy, Role, RunSpec, SetSpec
from l2rtui.errors import SpecError

PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
KNOWN: Final = {
    "SEED": "seed",
    "RUN": "run",
    "NAME": "run",
    "RUN_NAME": "run",
    "GPU": "gpu",
    "GPU_ID": "gpu",
    "NODE": "node",
    "HOST": "node",
    "PHORTX_NODE": "node",
}
"""Placeholders that a plan fills in, and the name of their value in the plan."""
_CONTROLLERS = ("ReplicaSet", "Deployment", "StatefulSet", "ReplicationController")
_UNNAMED = re.compile(r"[^a-z0-9]+")


@dataclass(slots=True)
class _Import:
    """Sets, Services and findings of one file so far."""

    source: str
    sets: list[SetSpec] = field(default_factory=list)
    selectors: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the pods in the file, by set."""
    services: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def report(self, subject: str, sentence: str, hint: str = "", weight: Severity = Severity.OK) -> None:
        self.notes.append(Finding(weight, subject, sentence, hint))

    def warn(self, subject: str, sentence: str, hint: str = "") -> None:
        self.report(subject, sentence, hint, Severity.WARNING)


def read_kubernetes_yaml(
    documents: Sequence[Any], source: str, name: str = ""
) -> tuple[RunSpec, tuple[Finding, ...]]:
    """Read the ReplicaSets, Pods and Services of a file as one run; return it, and findings on what was changed.

    Args:
        documents: The parsed YAML documents.
        source: The file, for messages; its stem names a run of several objects.
        name: Name of the run; empty takes that of the object, or of the file.

    Raises:
        SpecError: there is no workload in it, or an object that cannot be a part of a run.
    """
    objects = list(_objects(documents, source))
    workloads = [item for item in objects if item["kind"] != "Service"]
    if not workloads:
        raise SpecError(f"{source}: there is no workload in it.", "It needs a ReplicaSet, Deployment, Job or Pod.")
    reading = _Import(source, services=[item for item in objects if item["kind"] == "Service"])
    learners = _learner_of(workloads, reading.services)
    for item in workloads:
        _read_workload(reading, item, is_learner=item is learners, is_only=len(workloads) == 1)
    extras = _extras(reading)
    stem = source.rpartition("/")[2].rpartition(".")[0] or source
    own = str(_metadata(workloads[0]).get("name", "")) if len(workloads) == 1 else stem
    name = name or _name(own, MAX_NAME - 6)
    kind = Kind.LEARNER_WORKERS if learners is not None and len(workloads) > 1 else Kind.JOB
    sets = tuple(sorted(reading.sets, key=lambda item: item.role is not Role.LEARNER))
    spec = RunSpec(kind, name, name, sets, extras=json.dumps(extras, separators=(",", ":")))
    return spec, tuple(reading.notes)


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a template with the placeholders that a plan knows filled in; a value is not searched again."""
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda match: values.get(KNOWN.get(match[1], ""), match[0]), value)
    if isinstance(value, list):
        return [filled(item, values) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, values) for key, item in value.items()}
    return value


def placeholders(value: Any) -> set[str]:
    """Return names of the placeholders in a value."""
    if isinstance(value, str):
        return set(PLACEHOLDER.findall(value))
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for item in items for name in placeholders(item)}


# --- documents ----------------------------------------------------------------------------------------------
def _objects(documents: Iterable[Any], source: str) -> Iterable[dict[str, Any]]:
    for number, document in enumerate(documents):
        if document is None:
            continue
        where = f"{source}: document {number + 1}"
        if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
            raise SpecError(f"{where} is no Kubernetes object.", "Each has apiVersion, kind and metadata.")
        kind = document["kind"]
        if kind == "List":
            yield from _objects(document.get("items") or (), source)
            continue
        # A pod's spec under ``kind: Service``, which the API server would refuse, can only be meant as a Pod.
        if kind == "Service" and _dict(document, "spec").get("containers"):
            document = {**document, "kind": "Pod"}  # noqa: PLW2901  (as a Pod from here on)
        elif kind not in (*_CONTROLLERS, "Job", "Pod", "Service"):
            raise SpecError(
                f"{where} is a {kind}, which cannot be a part of a run: a run is removed with all that it owns.",
                f"Apply the {kind} with kubectl first, and take it out of this file.",
            )
        yield document


def _learner_of(workloads: Sequence[dict[str, Any]], services: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the workload that the others connect to: one that a Service selects, or one named like a learner."""
    for workload in workloads:
        labels = _labels(workload)
        selectors = [_dict(_dict(service, "spec"), "selector") for service in services]
        if any(selector and selector.items() <= labels.items() for selector in selectors):
            return workload
    named = [
        workload for workload in workloads if re.search("learner|server", str(_metadata(workload).get("name", "")))
    ]
    return named[0] if named else None


def _read_workload(reading: _Import, document: dict[str, Any], *, is_learner: bool, is_only: bool) -> None:
    """Read one ReplicaSet, Deployment, StatefulSet, Job or Pod as a set."""
    kind = document["kind"]
    spec, meta = _dict(document, "spec"), _metadata(document)
    template = {"metadata": meta, "spec": spec} if kind == "Pod" else _dict(spec, "template")
    original = str(meta.get("name", "")) or kind.lower()
    subject = f"{kind} {original}"
    is_bare_learner = is_learner and not is_only
    set_name = "learner" if is_bare_learner else "w" if is_only else _name(original, MAX_SET_NAME)
    if any(other.name == set_name for other in reading.sets):
        set_name = f"{set_name[: MAX_SET_NAME - 3]}-{len(reading.sets)}"
    pod_spec = _dict(template, "spec")
    containers = pod_spec.get("containers")
    if not isinstance(containers, list) or not all(isinstance(item, dict) for item in containers) or not containers:
        raise SpecError(f"{reading.source}: {subject} has no containers.")
    selector = _selector(spec) if kind != "Pod" else {}
    reading.selectors[set_name] = _labels(document)
    _report_names(reading, subject, set_name, selector)
    binding, slots = _binding(reading, subject, containers, pod_spec)
    restart = _restart(reading, subject, kind, pod_spec, is_learner=is_bare_learner)
    reading.warn(subject, "its containers are taken as the file has them: Pod Security `restricted` may not hold")
    if kind in ("Deployment", "StatefulSet"):
        lost = "rolling updates" if kind == "Deployment" else "stable names and one volume for each pod"
        if spec.get("volumeClaimTemplates"):
            raise SpecError(f"{reading.source}: {subject} makes volumes of its own, which a run does not keep.")
        reading.warn(subject, f"it becomes a ReplicaSet: {lost} are not kept")
    own_labels = {key: value for key, value in _labels(document).items() if key not in selector}
    annotations = _dict(_dict(template, "metadata"), "annotations")
    clean = {"metadata": {"labels": own_labels, "annotations": annotations}, "spec": pod_spec}
    first = containers[0]
    command = (*_words(first.get("command")), *_words(first.get("args")))
    reading.sets.append(
        SetSpec(
            name=set_name,
            role=Role.LEARNER if is_bare_learner else Role.JOB if kind in ("Job", "Pod") else Role.WORKER,
            command=command or (str(first.get("image", "")),),
            replicas=1 if is_bare_learner or kind == "Pod" else _replicas(reading, subject, kind, spec),
            slots=slots,
            restart=restart,
            resources=_resources(containers),
            grace_seconds=_number(pod_spec.get("terminationGracePeriodSeconds"), 30.0),
            pod=PodSettings(
                binding=binding,
                image=str(first.get("image", "")),
                security=Security.BASELINE,
                patched_scheduling=_scheduling(reading, subject, pod_spec),
            ),
            template=json.dumps(clean, separators=(",", ":")),
        )
    )


def _report_names(reading: _Import, subject: str, set_name: str, selector: Mapping[str, str]) -> None:
    """Report that names and selectors of the file are replaced: two runs would adopt each other's pods."""
    selector_text = ", ".join(f"{key}: {value}" for key, value in selector.items())
    chosen = f", and in place of the selector {selector_text} one by run, set and GPU" if selector_text else ""
    reading.report(subject, f"it becomes the set {set_name}, with a name for each run{chosen}")


# --- parts of a workload ------------------------------------------------------------------------------------
def _binding(
    reading: _Import, subject: str, containers: Sequence[dict[str, Any]], pod_spec: dict[str, Any]
) -> tuple[Binding, int]:
    """Return binding mode and slots of each pod; removes from the template what the plan decides."""
    names = {
        str(variable.get("name"))
        for container in containers
        for variable in _list(container, "env")
        if str(variable.get("value", "")) not in ("none", "void")  # values of NVIDIA's runtime for "no GPU"
    }
    is_pinned = bool(names & set(DEVICE_VARIABLES))
    requesting = [container for container in containers if WHOLE_GPU in _requested(container)]
    selector = _dict(pod_spec, "nodeSelector")
    if selector and (is_pinned or requesting):
        was = ", ".join(f"{key}: {value}" for key, value in selector.items())
        reading.report(subject, f"in place of its node selector ({was}) each pod gets the node of its slot")
    if is_pinned:
        reading.report(subject, f"{' and '.join(DEVICE_VARIABLES)} get the GPU of each pod's slot")
        for container in requesting:
            for part in ("limits", "requests"):
                _dict(_dict(container, "resources"), part).pop(WHOLE_GPU, None)
        if requesting:
            reading.warn(
                subject,
                "it names a GPU by variable and requests one of the device plugin: the request is left out, since "
                "the plugin would give it another",
                "Choose the plugin with --binding device-plugin.",
            )
        return Binding.ENV, 1
    if requesting:
        return Binding.DEVICE_PLUGIN, 1
    reading.report(subject, "it asks for no GPU: its pods get none, and the scheduler chooses their node")
    return Binding.CPU, 0


def _scheduling(reading: _Import, subject: str, pod_spec: Mapping[str, Any]) -> Scheduling:
    """Return the tolerations of a template; variables may name its nodes, so only the server can judge them."""
    try:
        return Scheduling((), scheduling.of_pod({"tolerations": pod_spec.get("tolerations")}).tolerations)
    except ValueError as error:
        raise SpecError(f"{reading.source}: {subject}: {error}.") from None


def _restart(
    reading: _Import, subject: str, kind: str, pod_spec: Mapping[str, Any], *, is_learner: bool
) -> RestartPolicy:
    written = pod_spec.get("restartPolicy", "Always")
    policy = RestartPolicy(written) if written in tuple(RestartPolicy) else RestartPolicy.ALWAYS
    # Pods default to Always, so the file says nothing about what a finished learner should do.
    if is_learner and policy is RestartPolicy.ALWAYS:
        reading.report(subject, "it becomes a Job: a learner that has finished is not started again")
        return RestartPolicy.ON_FAILURE
    if kind == "Pod":
        becomes = "ReplicaSet" if policy is RestartPolicy.ALWAYS else "Job"
        reading.report(subject, f"it becomes a {becomes}: a bare pod that is lost stays lost")
    return policy


def _replicas(reading: _Import, subject: str, kind: str, spec: Mapping[str, Any]) -> int:
    key = "parallelism" if kind == "Job" else "replicas"
    # A set has one number of pods; a Job that works through a queue has two.
    if kind == "Job" and _number(spec.get("completions"), 1) > _number(spec.get(key), 1):
        raise SpecError(f"{reading.source}: {subject} has more completions than pods at a time: that is no set.")
    value = spec.get(key, 1)
    try:
        count = int(str(value))
    except ValueError:
        raise SpecError(f"{reading.source}: {subject}: {key} is {value!r}, which is no whole number.") from None
    if not 0 <= count <= 4096:
        raise SpecError(f"{reading.source}: {subject}: {key} is {count}: write 0 to 4096.")
    return count


def _resources(containers: Iterable[Mapping[str, Any]]) -> Resources:
    cores, memory = 0.0, 0
    for container in containers:
        resources = _dict(container, "resources")
        amounts = {**_dict(resources, "limits"), **_dict(resources, "requests")}
        try:
            cores += parse_quantity(amounts.get("cpu", 0))
            memory += int(parse_quantity(amounts.get("memory", 0)))
        except (ValueError, TypeError):  # only for the capacity check; the server refuses a wrong quantity
            continue
    return Resources(cores or None, memory or None)


def _extras(reading: _Import) -> list[dict[str, Any]]:
    """Return Services of the file, each selecting one set by our own labels."""
    extras = []
    for service in reading.services:
        spec, old = dict(_dict(service, "spec")), str(_metadata(service).get("name", "")) or "service"
        selector = _dict(spec, "selector")
        subject = f"Service {old}"
        matches = [name for name, labels in reading.selectors.items() if selector.items() <= labels.items()]
        target = matches[0] if selector and matches else ""
        if not target:
            reading.warn(subject, "it selects no pod of this file: it is left out")
            continue
        # Addresses and node ports belong to one Service in a cluster; two runs would collide on them.
        for key in ("clusterIP", "clusterIPs", "nodePort", "externalIPs", "selector"):
            if spec.get(key) != "None":  # a headless Service stays one
                spec.pop(key, None)
        extras.append({"name": old, "set": target, "spec": spec})
        reading.report(subject, f"it selects the set {target} of its own run, and is named after the run")
        for set_spec in reading.sets:
            if re.search(rf"\b{re.escape(old)}\b", " ".join(set_spec.command)) and set_spec.name != target:
                reading.warn(
                    f"set {set_spec.name}",
                    f"its command names the Service {old}, which has another name in each run",
                    "Read the name from L2R_LEARNER_HOST.",
                )
    return extras


# --- values of unknown type ---------------------------------------------------------------------------------
def _dict(value: Any, key: str) -> dict[str, Any]:
    """Return a field that should be a mapping; an empty one where it is anything else."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _list(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    inner = value.get(key)
    return [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []


def _metadata(document: Any) -> dict[str, Any]:
    return _dict(document, "metadata")


def _labels(document: dict[str, Any]) -> dict[str, str]:
    """Return labels of the pods of a workload."""
    source = document if document["kind"] == "Pod" else _dict(_dict(document, "spec"), "template")
    return {str(key): str(value) for key, value in _dict(_metadata(source), "labels").items()}


def _selector(spec: Mapping[str, Any]) -> dict[str, str]:
    selector = _dict(spec, "selector")
    return {str(key): str(value) for key, value in (_dict(selector, "matchLabels") or selector).items()}


def _requested(container: Mapping[str, Any]) -> set[str]:
    resources = _dict(container, "resources")
    return {*_dict(resources, "limits"), *_dict(resources, "requests")}


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _name(text: str, longest: int) -> str:
    """Return the nearest legal name of a run or set."""
    name = _UNNAMED.sub("-", text.lower()).strip("-")[:longest].strip("-")
    return name if name[:1].isalpha() else f"r{name}"[:longest].strip("-")
