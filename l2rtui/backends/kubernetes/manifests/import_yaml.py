"""Read a user's ReplicaSet, Job, JobSet, Pod, Service YAML into a RunSpec.

The pod templates stay as they are. Fields that must differ between two runs are removed here and set again by
``render``: names, selectors, the node, the two variables of the GPU. A finding reports each such change, and each
field that a run does not keep. Placeholders in double braces (``{{GPU_ID}}``) that a plan knows are filled in when
it is rendered; ``--set`` provides the values of the others.

Sources: learn-to-race's guide to its cluster and ``launch-multi-seed.py``, BrandonBian/l2r-distributed,
kubernetes-sigs/jobset.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.extended_resources import is_countable
from l2rtui.backends.kubernetes.manifests import import_fields, import_services, scheduling
from l2rtui.backends.kubernetes.manifests.gpu_binding import CUDA, DEVICE_VARIABLES, NVIDIA, WHOLE_GPU
from l2rtui.backends.kubernetes.manifests.import_fields import items, mapping, named
from l2rtui.domain.containers import PodSettings, Scheduling, Security
from l2rtui.domain.kinds import Binding
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.quantity import counted, parse_bytes, parse_cores, parse_quantity
from l2rtui.domain.workload import (
    MAX_NAME,
    MAX_SET_NAME,
    Kind,
    Queue,
    QueueSystem,
    Resources,
    RestartPolicy,
    Role,
    RunSpec,
    SetSpec,
)
from l2rtui.errors import SpecError
from runtime.base import bounded_json

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
_JOB_FIELDS: Final = ("backoffLimit", "activeDeadlineSeconds", "podFailurePolicy")
"""Fields of a Job that each Job of the set keeps."""
_OWN_LABELS: Final = (
    labels.APP_NAME, labels.APP_INSTANCE, labels.APP_COMPONENT, labels.APP_PART_OF, labels.APP_MANAGED_BY,
)  # fmt: skip
_UNNAMED = re.compile(r"[^a-z0-9]+")


@dataclass(slots=True)
class _Import:
    """Sets, Services and findings of one file, collected while reading."""

    source: str
    sets: list[SetSpec] = field(default_factory=list)
    selectors: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the pods in the file, by set."""
    pod_names: dict[str, str] = field(default_factory=dict)
    """Names of bare pods, by set."""
    services: list[dict[str, Any]] = field(default_factory=list)
    extras: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    queue: Queue | None = None

    def report(self, subject: str, sentence: str, hint: str = "", weight: Severity = Severity.OK) -> None:
        self.notes.append(Finding(weight, subject, sentence, hint))

    def warn(self, subject: str, sentence: str, hint: str = "") -> None:
        self.report(subject, sentence, hint, Severity.WARNING)

    def take_queue(self, subject: str, by: QueueSystem, meta: Mapping[str, Any]) -> None:
        """Move the queue of Kueue from the labels of an object to the run, which is admitted as a whole."""
        theirs = mapping(meta, "labels")
        name = str(theirs.pop(labels.KUEUE_QUEUE, None) or "")
        # The group of a run is another in each launch, and has as many pods as the run.
        theirs.pop(labels.KUEUE_GROUP, None)
        mapping(meta, "annotations").pop(labels.KUEUE_COUNT, None)
        if not name:
            return
        queue = Queue(by, name)
        if self.queue not in (None, queue):
            self.warn(subject, f"its queue {name} is left out: all pods of a run wait in {self.queue.name}")
            return
        self.queue = queue
        self.report(subject, f"its label {labels.KUEUE_QUEUE} becomes `queue: {{by: {by}, name: {name}}}`")

    def left_out(self, subject: str, value: Any, path: str = "", why: str = "a run has no such field") -> None:
        """Warn about every field in a value that no object of the run has."""
        if fields := named(value, path):
            self.warn(subject, f"left out, since {why}: {fields}")


def read_kubernetes_yaml(
    documents: Sequence[Any], source: str, name: str = ""
) -> tuple[RunSpec, tuple[Finding, ...]]:
    """Read the workloads and Services of a file as one run; return it with findings on the changes.

    Args:
        documents: The parsed YAML documents.
        source: The file, for messages; its stem names a run of several objects.
        name: Name of the run; empty for the name of the object, or of the file.

    Raises:
        SpecError: The file has no workload, or an object that cannot be part of a run.
    """
    reading = _Import(source)
    objects = [copy.deepcopy(item) for item in import_fields.objects(documents, source)]
    for item in objects:
        if gone := import_fields.pop_server_fields(item):
            reading.report(_subject(item), f"left out, since the API server sets them: {', '.join(gone)}")
    jobs = [item for item in objects if item["kind"] != "JobSet"]
    for job_set in (item for item in objects if item["kind"] == "JobSet"):
        jobs += _jobs_of(reading, job_set)
    workloads = [item for item in jobs if item["kind"] != "Service"]
    if not workloads:
        raise SpecError(f"{source}: it contains no workload.", "It needs a ReplicaSet, Deployment, Job or Pod.")
    reading.services = [item for item in jobs if item["kind"] == "Service"]
    learners = _learner_of(workloads, reading.services)
    for item in workloads:
        _read_workload(reading, item, is_learner=item is learners, is_only=len(workloads) == 1)
    _read_services(reading)
    stem = source.rpartition("/")[2].rpartition(".")[0] or source
    first = _metadata(objects[0] if len(objects) == 1 else workloads[0])
    own = str(first.get("name") or str(first.get("generateName") or "").rstrip("-"))
    own = own if len(workloads) == 1 or len(objects) == 1 else stem
    name = name or _name(own, MAX_NAME - 6)
    kind = Kind.LEARNER_WORKERS if learners is not None and len(workloads) > 1 else Kind.JOB
    sets = tuple(sorted(reading.sets, key=lambda item: item.role is not Role.LEARNER))
    spec = RunSpec(
        kind, name, name, sets, extras=json.dumps(reading.extras, separators=(",", ":")), queue=reading.queue
    )
    return spec, tuple(reading.notes)


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return a template with the placeholders that a plan knows filled in; inserted values are not searched
    again.
    """
    return with_texts(
        value,
        lambda text: import_fields.PLACEHOLDER.sub(
            lambda match: values.get(KNOWN.get(match[1], ""), match[0]), text
        ),
    )


def with_texts(value: Any, changed: Callable[[str], str]) -> Any:
    """Return a document with each of its texts changed; the names of its fields stay."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, list):
        return [with_texts(item, changed) for item in value]
    if isinstance(value, dict):
        return {str(key): with_texts(item, changed) for key, item in value.items()}
    return value


def placeholders(value: Any) -> set[str]:
    """Return names of the placeholders in a value."""
    if isinstance(value, str):
        return set(import_fields.PLACEHOLDER.findall(value))
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for item in inner for name in placeholders(item)}


# --- documents ----------------------------------------------------------------------------------------------
def _subject(document: Mapping[str, Any]) -> str:
    return f"{document['kind']} {_metadata(document).get('name') or str(document['kind']).lower()}"


def _jobs_of(reading: _Import, job_set: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Return the Jobs of a JobSet; its headless Service, which gives DNS names to their pods, is kept with the
    run.
    """
    subject, meta, spec = _subject(job_set), _metadata(job_set), mapping(job_set, "spec")
    name = str(meta.get("name") or "jobset")
    parts = spec.pop("replicatedJobs", None)
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise SpecError(f"{reading.source}: {subject} has no replicatedJobs.")
    network = mapping(spec, "network")
    service, has_names = (
        str(network.pop("subdomain", "") or name),
        network.pop("enableDNSHostnames", True) is not False,
    )
    if has_names:
        headless = {"clusterIP": "None", "publishNotReadyAddresses": True}
        reading.extras.append({"name": service, "set": "", "spec": headless, "keeps": True})
        sentence = f"network: the headless Service {service} of its pods goes with the run, and is named after it"
        reading.report(subject, sentence)
    else:
        sentence = f"network.enableDNSHostnames: false: its pods have no names, and no Service {service}"
        reading.report(subject, sentence)
    reading.report(
        subject, "it becomes the sets of a job: each replica has a Job of its own, with its host name of the JobSet"
    )
    _namespace(reading, subject, meta)
    reading.take_queue(subject, QueueSystem.JOBSET, meta)
    why = "a run has neither its policies nor its order of start"
    reading.left_out(subject, _without(meta, "name"), "metadata")
    reading.left_out(subject, spec, "spec", why)
    for part in parts:
        template = mapping(part, "template")
        job, job_spec, job_meta = (
            f"{name}-{part.get('name', 'job')}",
            mapping(template, "spec"),
            _metadata(template),
        )
        count = _whole(reading, subject, "replicas", part.get("replicas", 1))
        job_spec = {"completionMode": "Indexed", **job_spec}
        pods = _job_pods(reading, subject, job_spec)
        if count > 1:
            job_spec = {**job_spec, "parallelism": count * pods, "completions": count * pods}
            reading.report(
                subject, f"replicas: {count} of {part.get('name')} become one set of {counted(count * pods, 'pod')}"
            )
        reading.left_out(
            subject, _without(part, "name", "replicas", "template"), f"replicatedJobs {part.get('name')}"
        )
        hosts = [
            f"{job}-{index // max(pods, 1)}-{index % max(pods, 1)}" for index in range(min(count * pods, 4096))
        ]
        if has_names and (pod := mapping(mapping(job_spec, "template"), "spec")):
            pod.setdefault("subdomain", service)
        yield {
            "kind": "Job",
            "metadata": {**job_meta, "name": job},
            "spec": job_spec,
            "hosts": hosts,
            "indices": pods,
            "short": str(part.get("name") or "job"),
        }


def _without(value: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: inner for key, inner in value.items() if key not in keys}


def _namespace(reading: _Import, subject: str, meta: dict[str, Any]) -> None:
    if namespace := meta.pop("namespace", None):
        reading.warn(
            subject,
            f"metadata.namespace: {namespace} does not count: a run goes into the namespace of -n",
            f"Write -n {namespace} if it belongs there.",
        )


def _learner_of(workloads: Sequence[dict[str, Any]], services: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the workload that the others connect to: one that a Service selects, or one named like a learner."""
    selectors = [mapping(mapping(service, "spec"), "selector") for service in services]
    selected = [
        workload
        for workload in workloads
        if any(selector and selector.items() <= _labels(workload).items() for selector in selectors)
    ]
    named_so = [
        workload for workload in workloads if re.search("learner|server", str(_metadata(workload).get("name", "")))
    ]
    # If each of them has a Service they are peers, and none of them is central.
    peers = len(workloads) > 1 and len(selected) == len(workloads)
    return next(iter([*([] if peers else selected), *named_so]), None)


def _read_workload(reading: _Import, document: dict[str, Any], *, is_learner: bool, is_only: bool) -> None:
    """Read one ReplicaSet, Deployment, StatefulSet, Job or Pod as a set."""
    kind, subject = document["kind"], _subject(document)
    spec, meta = mapping(document, "spec"), _metadata(document)
    template = {"metadata": meta, "spec": spec} if kind == "Pod" else mapping(spec, "template")
    is_bare_learner = is_learner and not is_only
    set_name = _set_name(reading, document, is_learner=is_bare_learner, is_only=is_only)
    pod_spec = mapping(template, "spec")
    own = pod_spec.get("containers")
    if not isinstance(own, list) or not all(isinstance(item, dict) for item in own) or not own:
        raise SpecError(f"{reading.source}: {subject} has no containers.")
    selector = _selector(spec) if kind != "Pod" else {}
    reading.selectors[set_name] = _labels(document)
    if kind == "Pod":
        reading.pod_names[set_name] = str(_metadata(document).get("name"))
        reading.take_queue(subject, QueueSystem.KUEUE, meta)
    _report_names(reading, subject, set_name, selector)
    is_indexed = kind == "Job" and spec.get("completionMode") == "Indexed"
    replicas = 1 if is_bare_learner or kind == "Pod" else _replicas(reading, subject, kind, spec)
    controller = _controller(reading, subject, document, is_learner=is_bare_learner)
    binding, slots, device, gpus = _binding(reading, subject, pod_spec)
    restart = _restart(reading, subject, kind, pod_spec, is_learner=is_bare_learner)
    reading.warn(subject, "its containers are taken as the file has them: Pod Security `restricted` may not hold")
    template_meta = _metadata(template)
    if kind != "Pod":
        reading.left_out(subject, _without(template_meta, "labels", "annotations"), "spec.template.metadata")
        reading.left_out(subject, _without(template, "metadata", "spec"), "spec.template")
    own_labels = {key: value for key, value in mapping(template_meta, "labels").items() if str(key) not in selector}
    own_labels = _report_own_names(reading, subject, "labels", own_labels)
    annotations = _report_own_names(reading, subject, "annotations", mapping(template_meta, "annotations"))
    _report_pods(reading, subject, pod_spec, replicas)
    _report_amounts(reading, subject, pod_spec)
    clean = {
        "metadata": {"labels": own_labels, "annotations": annotations},
        "spec": pod_spec,
        **({"controller": controller} if controller else {}),
    }
    first = own[0]
    command = (*_words(first.get("command")), *_words(first.get("args")))
    reading.sets.append(
        SetSpec(
            name=set_name,
            role=Role.LEARNER if is_bare_learner else Role.JOB if kind in ("Job", "Pod") else Role.WORKER,
            command=command or (str(first.get("image", "")),),
            replicas=replicas,
            slots=slots,
            restart=restart,
            resources=_resources(own),
            grace_seconds=_number(pod_spec.get("terminationGracePeriodSeconds"), 30.0),
            pod=PodSettings(
                binding=binding,
                image=str(first.get("image", "")),
                security=Security.BASELINE,
                device=device,
                patched_scheduling=_scheduling(reading, subject, pod_spec),
            ),
            template=json.dumps(clean, separators=(",", ":")),
            gpus=gpus,
            stable=is_indexed and not is_bare_learner,
        )
    )


def _set_name(reading: _Import, document: Mapping[str, Any], *, is_learner: bool, is_only: bool) -> str:
    if is_learner:
        return "learner"
    if is_only:
        return "w"
    text = str(document.get("short") or _metadata(document).get("name") or document["kind"].lower())
    # The end of a long name is distinctive: ``imagenet-worker-1`` and ``-2`` become ``worker-1`` and ``worker-2``.
    while len(text) > MAX_SET_NAME and "-" in text:
        text = text.partition("-")[2]
    name = _name(text, MAX_SET_NAME)
    if any(other.name == name for other in reading.sets):
        name = f"{name[: MAX_SET_NAME - 3].rstrip('-')}-{len(reading.sets)}"
    return name


def _report_names(reading: _Import, subject: str, set_name: str, selector: Mapping[str, str]) -> None:
    """Report that names and selectors of the file are replaced: two runs would adopt each other's pods."""
    selector_text = ", ".join(f"{key}: {value}" for key, value in selector.items())
    chosen = f", and in place of the selector {selector_text} one by run, set and GPU" if selector_text else ""
    reading.report(subject, f"it becomes the set {set_name}, with a name for each run{chosen}")


def _report_own_names(reading: _Import, subject: str, part: str, theirs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return labels or annotations without those that a run sets itself; report the removed ones."""
    ours = {key: value for key, value in theirs.items() if key in _OWN_LABELS or str(key).startswith(labels.PREFIX)}
    reading.left_out(subject, ours, f"metadata.{part}", f"a run sets these {part} itself")
    return {key: value for key, value in theirs.items() if key not in ours}


# --- parts of a workload ------------------------------------------------------------------------------------
def _controller(reading: _Import, subject: str, document: dict[str, Any], *, is_learner: bool) -> dict[str, Any]:
    """Return the fields of the file that the controllers of a set keep; report the other fields."""
    kind, spec, meta = document["kind"], mapping(document, "spec"), _metadata(document)
    _namespace(reading, subject, meta)
    if kind == "Pod":
        rest = {"metadata": _without(meta, "name", "labels", "annotations"), **_without(document, *_READ)}
        reading.left_out(subject, rest)
        return {}
    if kind in ("Deployment", "StatefulSet"):
        lost = "rolling updates" if kind == "Deployment" else "stable names and one volume for each pod"
        if spec.get("volumeClaimTemplates"):
            raise SpecError(f"{reading.source}: {subject} makes volumes of its own, which a run does not keep.")
        reading.warn(subject, f"it becomes a ReplicaSet: {lost} are not kept")
    rest = _without(spec, "replicas", "template", "parallelism")
    selector = mapping(spec, "selector")
    rest["selector"] = (
        _without(selector, "matchLabels") if "matchLabels" in selector or kind != "ReplicationController" else {}
    )
    controller: dict[str, Any] = {}
    if kind == "Job" and not is_learner:
        controller = _job_fields(reading, subject, document, rest)
    own = {key: _report_own_names(reading, subject, key, mapping(meta, key)) for key in ("labels", "annotations")}
    selected = _selector(spec)  # reported with the selector, like the pods' labels in it
    own["labels"] = {key: value for key, value in own["labels"].items() if str(key) not in selected}
    if any(own.values()):
        controller["metadata"] = {key: value for key, value in own.items() if value}
    outer = {"metadata": _without(meta, "name", "labels", "annotations"), **_without(document, *_READ)}
    reading.left_out(subject, {**outer, "spec": rest})
    return controller


_READ: Final = ("apiVersion", "kind", "metadata", "spec", "hosts", "indices", "short")


def _job_fields(reading: _Import, subject: str, document: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Take the fields that a set keeps of a Job out of its remaining fields; report changes."""
    job = {key: rest.pop(key) for key in _JOB_FIELDS if rest.get(key) is not None}
    controller: dict[str, Any] = {"spec": job} if job else {}
    mode, completions = rest.pop("completionMode", None), rest.pop("completions", None)
    if (after := rest.pop("ttlSecondsAfterFinished", None)) is not None:
        sentence = f"ttlSecondsAfterFinished: {after} is left out: a finished run stays until it is destroyed"
        reading.warn(subject, sentence)
    if (suspended := rest.pop("suspend", None)) is not None:
        reading.warn(
            subject,
            f"suspend: {str(suspended).lower()} is left out: a launch starts the run, or --queue lets it wait",
        )
    if mode == "Indexed":
        name = str(_metadata(document).get("name") or "job")
        controller["hosts"] = document.get("hosts") or name
        if "indices" in document:
            controller["indices"] = document["indices"]
        sentence = (
            f"{named({'completionMode': mode, 'completions': completions})}: each index has a Job of its own, "
            "with its JOB_COMPLETION_INDEX and host name"
        )
        reading.report(subject, sentence)
    elif completions is not None or mode is not None:
        fields = named({"completionMode": mode, "completions": completions})
        reading.report(subject, f"{fields}: each of its pods runs once, and the run ends with the last of them")
    if job:
        verb = "hold" if len(job) > 1 else "holds"
        sentence = f"{', '.join(job)} {verb} for each Job of the set: one for each GPU, or each index"
        reading.report(subject, sentence)
    return controller


def _report_pods(reading: _Import, subject: str, pod_spec: Mapping[str, Any], replicas: int) -> None:
    if replicas > 1 and pod_spec.get("hostname"):
        sentence = f"hostname: {pod_spec['hostname']} is the host name of all {replicas} pods, as the file says"
        reading.warn(subject, sentence)
    ports = [
        f"{container}: {number}/{protocol}" for number, protocol, container in import_fields.host_ports(pod_spec)
    ]
    if ports and replicas > 1:
        reading.warn(
            subject,
            f"each pod takes ports of its node ({', '.join(ports)}): a node has room for one of {replicas}",
            "Place them on nodes of their own: --on NODE1/0,NODE2/0 or --policy spread.",
        )
    if asking := import_services.own_variables(pod_spec):
        reading.warn(subject, f"{', '.join(asking)}: it reads the name of its Job, which is another in each run")


def _binding(reading: _Import, subject: str, pod_spec: dict[str, Any]) -> tuple[Binding, int, str, int]:
    """Return binding mode, slots, device and number of whole GPUs of each pod, 0 if one device is enough.

    Removes the fields that the plan decides from the template.
    """
    containers = import_fields.containers(pod_spec)
    named_devices = {
        str(variable.get("name"))
        for container in containers
        for variable in items(container, "env")
        if str(variable.get("value", "")) not in ("none", "void")  # values of NVIDIA's runtime for "no GPU"
    } & set(DEVICE_VARIABLES)
    try:
        devices = import_fields.device_requests(pod_spec)
    except ValueError as error:
        raise SpecError(f"{reading.source}: {subject}: {error}.") from None
    # With a request, CUDA's variable counts the container's own devices, so it names no device of the node.
    plugin_only = [name for name in devices if is_countable(name) and name != WHOLE_GPU]
    is_pinned = not plugin_only and (NVIDIA in named_devices or (CUDA in named_devices and not devices))
    if (was := import_fields.node_fields(pod_spec)) and (is_pinned or WHOLE_GPU in devices or plugin_only):
        reading.report(subject, f"in place of its {was} each pod gets the node of its slot")
    if is_pinned:
        reading.report(subject, f"{' and '.join(DEVICE_VARIABLES)} get the GPU of each pod's slot")
        _drop_requests(reading, subject, containers, devices)
        return Binding.ENV, 1, "", 0
    if devices.get(WHOLE_GPU) or plugin_only:
        name = WHOLE_GPU if devices.get(WHOLE_GPU) else plugin_only[0]
        if NVIDIA in named_devices:
            reading.warn(subject, f"{' and '.join(DEVICE_VARIABLES)} are left out: the plugin of {name} sets them")
        number = devices[name] if devices[name] > 1 else 0
        return Binding.DEVICE_PLUGIN, 1, "" if name == WHOLE_GPU else name, number
    if import_fields.claims_devices(pod_spec):
        reading.warn(
            subject,
            f"it asks for {', '.join(devices) or 'resourceClaims'}, which no slot counts: the request stays, "
            "the cluster chooses node and device, and the pods take no slot",
        )
        return Binding.CPU, 0, "", 0
    reading.report(subject, "it asks for no GPU: its pods get none, and the scheduler chooses their node")
    return Binding.CPU, 0, "", 0


def _drop_requests(
    reading: _Import, subject: str, containers: Iterable[dict[str, Any]], devices: Mapping[str, int]
) -> None:
    """Remove requests of devices from containers whose variables name a GPU."""
    for container in containers:
        for part in ("limits", "requests"):
            amounts = mapping(mapping(container, "resources"), part)
            for name in devices:
                amounts.pop(name, None)
    if devices:
        reading.warn(
            subject,
            f"it names a GPU by variable and requests one of the device plugin: the request ({named(devices)}) "
            "is left out, since the plugin would give it another",
            "Choose the plugin with --binding device-plugin.",
        )


def _scheduling(reading: _Import, subject: str, pod_spec: Mapping[str, Any]) -> Scheduling:
    """Return tolerations, node selector and affinity of a template, without the nodes that it names.

    If placeholders name its nodes, only the server can check them.
    """
    fields = {key: copy.deepcopy(pod_spec.get(key)) for key in ("tolerations", "nodeSelector", "affinity")}
    if placeholders(fields["affinity"]):
        fields["affinity"] = None
    import_fields.without_hostnames(fields)
    try:
        rules = scheduling.of_pod(fields)
    except ValueError as error:
        raise SpecError(f"{reading.source}: {subject}: {error}.") from None
    return rules if any(rules.alternatives) else Scheduling((), rules.tolerations)


def _restart(
    reading: _Import, subject: str, kind: str, pod_spec: Mapping[str, Any], *, is_learner: bool
) -> RestartPolicy:
    written = pod_spec.get("restartPolicy", "Always")
    policy = RestartPolicy(written) if written in tuple(RestartPolicy) else RestartPolicy.ALWAYS
    # Pods default to Always, so the file does not say whether a finished learner should restart.
    if is_learner and policy is RestartPolicy.ALWAYS:
        reading.report(
            subject, f"it becomes a Job{_was(pod_spec)}: a learner that has finished is not started again"
        )
        return RestartPolicy.ON_FAILURE
    if kind == "Job" and policy is RestartPolicy.ALWAYS:
        reading.report(subject, f"its pods are restarted when they fail{_was(pod_spec)}: a Job has no Always")
        return RestartPolicy.ON_FAILURE
    if kind == "Pod":
        becomes = "ReplicaSet" if policy is RestartPolicy.ALWAYS else "Job"
        reading.report(subject, f"it becomes a {becomes}: a bare pod that is lost stays lost")
    return policy


def _was(pod_spec: Mapping[str, Any]) -> str:
    return f" in place of restartPolicy: {pod_spec['restartPolicy']}" if pod_spec.get("restartPolicy") else ""


def _replicas(reading: _Import, subject: str, kind: str, spec: Mapping[str, Any]) -> int:
    key = "parallelism" if kind == "Job" else "replicas"
    # A set has one number of pods; a Job that works through a queue has two.
    if kind == "Job" and _number(spec.get("completions"), 1) > _number(spec.get(key), 1):
        raise SpecError(
            f"{reading.source}: {subject} has more completions than parallel pods: a set cannot express this."
        )
    return _job_pods(reading, subject, spec) if kind == "Job" else _whole(reading, subject, key, spec.get(key, 1))


def _job_pods(reading: _Import, subject: str, spec: Mapping[str, Any]) -> int:
    """Return the number of concurrent pods of a Job: an Indexed Job has at most one for each completion."""
    count = _whole(reading, subject, "parallelism", spec.get("parallelism", 1))
    completions = int(_number(spec.get("completions"), count))
    if spec.get("completionMode") == "Indexed" and completions < count:
        sentence = f"parallelism: {count} is more than its completions: it has {counted(completions, 'pod')}"
        reading.report(subject, sentence)
        return completions
    return count


def _whole(reading: _Import, subject: str, key: str, value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        raise SpecError(f"{reading.source}: {subject}: {key} is {value!r}, which is not a whole number.") from None
    if not 0 <= count <= 4096:
        raise SpecError(f"{reading.source}: {subject}: {key} is {count}: write 0 to 4096.")
    return count


def _report_amounts(reading: _Import, subject: str, pod_spec: Mapping[str, Any]) -> None:
    """Warn about amounts that the API server accepts but users do not mean, such as ``memory: 512m``, half a
    byte.
    """
    parsers = {"cpu": parse_cores, "memory": parse_bytes, "ephemeral-storage": parse_bytes}
    for container in import_fields.containers(pod_spec):
        for part in ("requests", "limits"):
            amounts = mapping(mapping(container, "resources"), part)
            for name in parsers.keys() & amounts.keys():
                try:
                    parsers[name](amounts[name])
                except (ValueError, TypeError) as error:
                    if not placeholders(amounts[name]):
                        reading.warn(subject, f"{container.get('name')}: {part}.{name}: {error}")


def _resources(containers: Iterable[Mapping[str, Any]]) -> Resources:
    cores, memory = 0.0, 0
    for container in containers:
        resources = mapping(container, "resources")
        amounts = {**mapping(resources, "limits"), **mapping(resources, "requests")}
        try:
            cores += parse_quantity(amounts.get("cpu", 0))
            memory += int(parse_quantity(amounts.get("memory", 0)))
        except (ValueError, TypeError):  # only for the capacity check; the server refuses a wrong quantity
            continue
    return Resources(cores or None, memory or None)


# --- Services -----------------------------------------------------------------------------------------------
def _read_services(reading: _Import) -> None:
    """Read the Services of the file, each selecting one set by our own labels, and rewrite their addresses."""
    for service in reading.services:
        meta, old = _metadata(service), str(_metadata(service).get("name", "")) or "service"
        selector = mapping(mapping(service, "spec"), "selector")
        for label in import_fields.SERVER_LABELS & selector.keys():  # its pods have lost these labels
            del selector[label]
        subject = f"Service {old}"
        matches = [name for name, labels_ in reading.selectors.items() if selector.items() <= labels_.items()]
        target = matches[0] if selector and matches else ""
        if not target:
            reading.warn(subject, "it selects no pod of this file: it is left out")
            continue
        namespace = str(meta.get("namespace") or "")
        _namespace(reading, subject, meta)
        spec, gone = import_services.own_fields(mapping(service, "spec"))
        reading.left_out(subject, gone, "spec", "two runs would collide on it")
        own = {
            key: _report_own_names(reading, subject, key, mapping(meta, key)) for key in ("labels", "annotations")
        }
        own = {key: value for key, value in own.items() if value}
        outer = {"metadata": _without(meta, "name", "labels", "annotations"), **_without(service, *_READ)}
        reading.left_out(subject, outer)
        extra = {"name": old, "set": target, "spec": spec, "keeps": True}
        # A pod's host name is its own name: a headless Service of that name makes it resolvable.
        if spec.get("clusterIP") == "None" and reading.pod_names.get(target) == old:
            extra["names_pod"] = True
            reading.report(subject, "the host name of its pod is the new name of the Service")
        reading.extras.append(
            extra | ({"metadata": own} if own else {}) | ({"namespace": namespace} if namespace else {})
        )
        was = ", ".join(f"{key}: {value}" for key, value in selector.items())
        sentence = f"it selects the set {target} of its own run, and is named after the run"
        reading.report(subject, f"{sentence}, in place of the selector {was}")
    for set_spec in reading.sets:
        pod_spec = bounded_json.loads(set_spec.template)["spec"]
        for extra in reading.extras:
            _report_addresses(reading, set_spec, pod_spec, extra)
        names = [str(extra["name"]) for extra in reading.extras]
        for name, where in import_services.foreign_addresses(pod_spec, names).items():
            sentence = (
                f"{where} names {name}, of which this file has no Service: it is looked up in the run's namespace"
            )
            reading.report(f"set {set_spec.name}", sentence)


def _report_addresses(
    reading: _Import, set_spec: SetSpec, pod_spec: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    name = extra["name"]
    followed, left = import_services.named_places(pod_spec, extra)
    if followed:
        sentence = f"{', '.join(followed)}: the address of the Service {name} becomes that of the run's own"
        reading.report(f"set {set_spec.name}", sentence)
    # The processes behind a Service often have its name in paths and options that are not addresses.
    if left and set_spec.name != extra["set"]:
        where = ", ".join("its command" if place.endswith(": command") else place for place in left)
        reading.warn(
            f"set {set_spec.name}",
            f"{where} names the Service {name}, which has another name in each run",
            "Read the name from L2R_LEARNER_HOST, or write it before a port: NAME:PORT.",
        )


# --- values of unknown type ---------------------------------------------------------------------------------
def _metadata(document: Any) -> dict[str, Any]:
    return mapping(document, "metadata")


def _labels(document: dict[str, Any]) -> dict[str, str]:
    """Return labels of the pods of a workload."""
    source = document if document["kind"] == "Pod" else mapping(mapping(document, "spec"), "template")
    return {str(key): str(value) for key, value in mapping(_metadata(source), "labels").items()}


def _selector(spec: Mapping[str, Any]) -> dict[str, str]:
    selector = mapping(spec, "selector")
    plain = {key: value for key, value in selector.items() if isinstance(value, str)}
    return {str(key): str(value) for key, value in (mapping(selector, "matchLabels") or plain).items()}


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _number(value: Any, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _name(text: str, longest: int) -> str:
    """Return the nearest legal name of a run or set."""
    name = _UNNAMED.sub("-", text.lower()).strip("-")[:longest].strip("-")
    return name if name[:1].isalpha() else f"r{name}"[:longest].strip("-")
