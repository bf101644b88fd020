"""Jobs of training operators as runs: ElasticJob, PyTorchJob, TrainJob as elastic, TFJob as parameter-server.

The result is the data of a spec file, so that its run is like any other. Fields of the pod template become
``pod.template``, which is merged in the same way as kubectl merges a patch. A finding names every field that a run
sets itself or does not have.

Sources: pytorch/elastic (elastic.pytorch.org/v1alpha1), kubeflow/training-operator (kubeflow.org/v1),
kubeflow/trainer (trainer.kubeflow.org/v1alpha1).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.extended_resources import is_countable
from l2rtui.backends.kubernetes.manifests import import_fields
from l2rtui.backends.kubernetes.manifests.gpu_binding import DEVICE_VARIABLES, WHOLE_GPU
from l2rtui.backends.kubernetes.manifests.import_fields import items, mapping, named
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.domain.workload import MAX_NAME
from l2rtui.errors import SpecError

_GROUPS: Final = {
    "ElasticJob": "elastic.pytorch.org",
    "PyTorchJob": "kubeflow.org",
    "TFJob": "kubeflow.org",
    "TrainJob": "trainer.kubeflow.org",
}
_LAUNCHERS: Final = (
    ("torchrun",),
    ("python", "-m", "torch.distributed.run"),
    ("python", "-m", "torch.distributed.launch"),
    ("python", "-m", "torchelastic.distributed.launch"),
)
_SWITCHES: Final = (
    "--standalone",
    "--no_python",
    "--no-python",
    "-m",
    "--module",
    "--run_path",
    "--run-path",
    "--with_etcd",
)
"""Flags of torchrun without a value."""
_RUN_OWNED: Final = ("nodeName", "hostname", "subdomain", "resourceClaims")
_MAIN: Final = "main"
_ETCD_PORTS: Final = (2379, 2380)
_RECOMMENDED: Final = "app.kubernetes.io/"


class _Reading:
    """Findings about one job, and its fields that were read."""

    def __init__(self, document: Mapping[str, Any], path: str) -> None:
        self.kind, self.path = str(document["kind"]), path
        self.meta = mapping(document, "metadata")
        self.spec = mapping(document, "spec")
        self.subject = f"{self.kind} {self.meta.get('name') or self.kind.lower()}"
        self.notes: list[Finding] = []

    def report(self, sentence: str, severity: Severity = Severity.OK, hint: str = "") -> None:
        self.notes.append(Finding(severity, self.subject, sentence, hint))

    def left_out(self, value: Any, path: str, why: str = "a run has no such field") -> None:
        if fields := named(value, path):
            self.report(f"left out, since {why}: {fields}", Severity.WARNING)

    def whole(self, value: Any, path: str) -> int:
        """Return a number of nodes or processes. Raises SpecError."""
        try:
            number = int(str(value))
        except ValueError:
            raise SpecError(
                f"{self.path}: {self.subject}: {path} is {value!r}, which is not a whole number."
            ) from None
        if not 1 <= number <= 4096:
            raise SpecError(f"{self.path}: {self.subject}: {path} is {number}: write 1 to 4096.")
        return number


def is_operator_job(document: Any) -> bool:
    """Return True for a job of one of the operators."""
    if not isinstance(document, dict):
        return False
    group = str(document.get("apiVersion", "")).rpartition("/")[0]
    return _GROUPS.get(str(document.get("kind")), "-") == group


def spec_of(documents: Sequence[Any], path: str, name: str = "") -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Return the data of a spec file for the job in a file, and findings about every difference.

    Raises:
        SpecError: the file has other objects too, or the job has no pod, command or image.
    """
    documents = [document for document in documents if document is not None]
    jobs = [item for item in documents if is_operator_job(item)]
    rendezvous = _rendezvous_objects(documents)
    others = [item for item in documents if item not in jobs and item not in rendezvous]
    if others or len(jobs) > 1:
        kinds = " and ".join(dict.fromkeys(str(mapping({"": item}, "").get("kind")) for item in others))
        has_pods = any(mapping({"": item}, "").get("kind") in import_fields.PARTS for item in others)
        hint = f"Apply the {kinds} with kubectl first, and take it out of this file."
        if len(jobs) > 1 or has_pods:
            hint = "Launch each from a file of its own; a run has its own rendezvous."
        raise SpecError(
            f"{path}: {jobs[0]['kind']} is a whole run, and the file has {kinds or 'several of them'} as well.",
            hint,
        )
    document = copy.deepcopy(jobs[0])
    gone = import_fields.pop_server_fields(document)
    reading = _Reading(document, path)
    if gone:
        reading.report(f"left out, since the API server sets them: {', '.join(gone)}")
    for item in rendezvous:
        what = f"{item['kind']} {mapping(item, 'metadata').get('name') or 'etcd'}"
        reading.report(f"{what} is left out, since the run has a rendezvous of its own")
    name = (
        name
        or re.sub(r"[^a-z0-9]+", "-", str(reading.meta.pop("name", reading.kind)).lower()).strip("-")[:MAX_NAME]
    )
    if namespace := reading.meta.pop("namespace", None):
        sentence = f"metadata.namespace: {namespace} does not count: a run goes into the namespace of -n"
        reading.report(sentence, Severity.WARNING, f"Write -n {namespace} if it belongs there.")
    job_labels = mapping(reading.meta, "labels")
    queue, priority = job_labels.pop(labels.KUEUE_QUEUE, None), job_labels.pop(labels.KUEUE_PRIORITY, None)
    reading.left_out(reading.meta, "metadata")
    outer = {key: value for key, value in document.items() if key not in ("apiVersion", "kind", "metadata", "spec")}
    reading.left_out(outer, "")
    made = {"ElasticJob": _elastic_job, "PyTorchJob": _pytorch_job, "TrainJob": _train_job, "TFJob": _tf_job}
    data = {"name": name, **made[reading.kind](reading)}
    if queue:
        data["queue"] = {"by": "kueue", "name": str(queue)}
        sentence = f"its label {labels.KUEUE_QUEUE} becomes `queue: {{by: kueue, name: {queue}}}`"
        reading.report(f"{sentence}, for which Kueue's integration of pods must be on")
    if priority:
        data["pod"] = {"template": {"metadata": {"labels": {labels.KUEUE_PRIORITY: str(priority)}}}}
        reading.report(f"its label {labels.KUEUE_PRIORITY} goes to each of its pods")
    return data, tuple(reading.notes)


def _rendezvous_objects(documents: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the Services of etcd in the same file as a job, and the workloads that they select."""
    objects = [item for item in documents if isinstance(item, dict) and not is_operator_job(item)]
    services = [
        item
        for item in objects
        if item.get("kind") == "Service"
        and any(port.get("port") in _ETCD_PORTS for port in items(mapping(item, "spec"), "ports"))
    ]
    selectors = [mapping(mapping(item, "spec"), "selector") for item in services]

    def is_selected(item: dict[str, Any]) -> bool:
        template = mapping(mapping(item, "spec"), "template") or item
        labels = mapping(mapping(template, "metadata"), "labels")
        return any(selector and selector.items() <= labels.items() for selector in selectors)

    kinds = ("Pod", "Deployment", "ReplicaSet", "StatefulSet")
    return [*services, *(item for item in objects if item.get("kind") in kinds and is_selected(item))]


# --- elastic ------------------------------------------------------------------------------------------------
def _elastic_job(reading: _Reading) -> dict[str, Any]:
    spec = reading.spec
    if endpoint := spec.pop("rdzvEndpoint", None):
        reading.report(f"rdzvEndpoint: {endpoint} is not used: the run has a rendezvous of its own")
    low, high = (spec.pop(key, None) for key in ("minReplicas", "maxReplicas"))
    parts = spec.pop("replicaSpecs", None)
    worker = mapping(parts, "Worker")
    reading.left_out({key: value for key, value in (parts or {}).items() if key != "Worker"}, "spec.replicaSpecs")
    reading.left_out(spec, "spec")
    replicas = reading.whole(worker.pop("replicas", low or 1), "replicas")
    nodes = _set(reading, worker, "spec.replicaSpecs.Worker", launcher=True)
    return _elastic(reading, nodes, replicas, low, high)


def _pytorch_job(reading: _Reading) -> dict[str, Any]:
    spec = reading.spec
    parts = spec.pop("pytorchReplicaSpecs", None)
    parts = parts if isinstance(parts, dict) else {}
    policy, processes = mapping(spec, "elasticPolicy"), spec.pop("nprocPerNode", None)
    spec.pop("elasticPolicy", None)
    low, high = policy.pop("minReplicas", None), policy.pop("maxReplicas", None)
    processes = policy.pop("nProcPerNode", processes)
    backend = policy.pop("rdzvBackend", None)
    if backend not in (None, "c10d"):
        reading.report(f"elasticPolicy.rdzvBackend: {backend} is not used: the run's rendezvous is c10d")
    reading.left_out(policy, "spec.elasticPolicy")
    reading.left_out(spec, "spec")
    master, worker = mapping(parts, "Master"), mapping(parts, "Worker")
    reading.left_out(
        {key: part for key, part in parts.items() if key not in ("Master", "Worker")}, "spec.pytorchReplicaSpecs"
    )
    main, other = (worker, master) if worker else (master, {})
    counts = [reading.whole(part.pop("replicas", 1), "replicas") for part in (master, worker) if part]
    replicas = sum(counts) or 1
    if master and worker:
        reading.report(
            f"Master (replicas: {counts[0]}) and Worker (replicas: {counts[1]}) become {replicas} equal nodes"
        )
        if other.get("template") != main.get("template"):
            reading.left_out(other, "spec.pytorchReplicaSpecs.Master", "all nodes run the pod of the workers")
        else:
            reading.left_out(
                {key: value for key, value in other.items() if key != "template"}, "spec.pytorchReplicaSpecs.Master"
            )
    where = "Worker" if worker else "Master"
    nodes = _set(reading, main, f"spec.pytorchReplicaSpecs.{where}", launcher=True)
    _processes(reading, nodes, processes, "nprocPerNode")
    return _elastic(reading, nodes, replicas, low if low is not None else replicas, high)


def _train_job(reading: _Reading) -> dict[str, Any]:
    spec = reading.spec
    trainer, runtime = mapping(spec, "trainer"), mapping(spec, "runtimeRef")
    spec.pop("trainer", None), spec.pop("runtimeRef", None)
    if runtime:
        sentence = f"runtimeRef ({named(runtime)}) is not read: what its template adds is not in the run"
        reading.report(sentence, Severity.WARNING)
    replicas = reading.whole(trainer.pop("numNodes", 1), "trainer.numNodes")
    processes = trainer.pop("numProcPerNode", None)
    keys = ("image", "command", "args", "env")
    container = {"name": _MAIN, **{key: trainer.pop(key) for key in keys if key in trainer}}
    if resources := trainer.pop("resourcesPerNode", None):
        container["resources"] = resources
    reading.left_out(trainer, "spec.trainer")
    reading.left_out(spec, "spec")
    template = {"template": {"spec": {"containers": [container]}}}
    nodes = _set(reading, template, "spec.trainer", launcher=True)
    _processes(reading, nodes, processes, "numProcPerNode")
    return _elastic(reading, nodes, replicas, replicas, None)


def _elastic(reading: _Reading, nodes: dict[str, Any], replicas: int, low: Any, high: Any) -> dict[str, Any]:
    low = reading.whole(1 if low is None else low, "minReplicas")
    high = max(reading.whole(replicas if high is None else high, "maxReplicas"), replicas)
    reading.report(
        "it becomes kind elastic: a rendezvous of the run's own, and nodes that `l2rtui scale` changes "
        f"(replicas {replicas}, min {min(low, replicas)}, max {high})"
    )
    sentence = (
        "its image runs `l2r-runtime elastic` and `l2r-runtime rendezvous`, which an image of others does not have"
    )
    hint = "Build it FROM l2rtui's image, or name another with --set image=NAME (docs/kinds.md, docs/images.md)."
    reading.report(sentence, Severity.WARNING, hint)
    return {"kind": "elastic", "nodes": {**nodes, "replicas": replicas, "min": min(low, replicas), "max": high}}


def _processes(reading: _Reading, nodes: dict[str, Any], value: Any, field: str) -> None:
    """Read the number of processes of a node; words such as ``auto`` leave it to the node."""
    if value is None:
        return
    if str(value).isdigit():
        nodes["nproc_per_node"] = reading.whole(value, field)
    else:
        reading.report(f"{field}: {value} is one process for each GPU of a node")


# --- parameter servers --------------------------------------------------------------------------------------
def _tf_job(reading: _Reading) -> dict[str, Any]:
    parts = reading.spec.pop("tfReplicaSpecs", None)
    parts = dict(parts) if isinstance(parts, dict) else {}
    reading.left_out(reading.spec, "spec")
    chief = next((parts.pop(key) for key in ("Chief", "Master") if key in parts), None)
    worker, servers = parts.pop("Worker", None), parts.pop("PS", None)
    if not isinstance(servers, dict):
        raise SpecError(
            f"{reading.path}: {reading.subject} has no PS: it is not a run of parameter servers.",
            "Write `kind: job` with `replicas`, or `kind: elastic` for torch (docs/kinds.md).",
        )
    reading.left_out(parts, "spec.tfReplicaSpecs", "a run has servers and workers")
    first = worker if isinstance(worker, dict) else chief
    if not isinstance(first, dict):
        raise SpecError(f"{reading.path}: {reading.subject} has no Worker.")
    count = reading.whole(first.pop("replicas", 1), "Worker.replicas")
    if isinstance(chief, dict) and chief is not first:
        reading.report("Chief: worker 0 is the chief, and the run has one worker more")
        reading.left_out(
            {key: value for key, value in chief.items() if value != first.get(key)},
            "spec.tfReplicaSpecs.Chief",
            "all workers run the pod of the Worker",
        )
        count += reading.whole(chief.get("replicas", 1), "Chief.replicas")
    number = reading.whole(servers.pop("replicas", 1), "PS.replicas")
    reading.report("it becomes kind parameter-server: TF_CONFIG names each replica by its host name in the run")
    sets = {"workers": (first, "Worker", count), "servers": (servers, "PS", number)}
    made = {
        key: {**_set(reading, part, f"spec.tfReplicaSpecs.{where}", launcher=False), "replicas": replicas}
        for key, (part, where, replicas) in sets.items()
    }
    return {"kind": "parameter-server", **made}


# --- pods ---------------------------------------------------------------------------------------------------
def _set(reading: _Reading, part: dict[str, Any], path: str, *, launcher: bool) -> dict[str, Any]:
    """Return the fields of a set from a replica spec with a pod template."""
    template = mapping(part, "template")
    pod_spec, meta = mapping(template, "spec"), mapping(template, "metadata")
    containers = items(pod_spec, "containers")
    if not containers:
        raise SpecError(f"{reading.path}: {reading.subject} has no pod with containers in {path}.")
    data: dict[str, Any] = {"pod": {"security": "baseline"}}
    inner, policy = pod_spec.pop("restartPolicy", None), part.pop("restartPolicy", None)
    policy = policy or inner
    data["restart"] = "Never" if policy == "Never" else "OnFailure"
    if policy not in (None, "Never", "OnFailure"):
        reading.report(f"restartPolicy: {policy} becomes OnFailure")
    if inner not in (None, policy):
        reading.report(f"restartPolicy: {policy} counts, and the template's {inner} does not, as with the operator")
    for value, where in ((part, path), (template, f"{path}.template"), (meta, f"{path}.template.metadata")):
        read = ("template", "metadata", "spec", "labels", "annotations", "apiVersion", "kind")
        reading.left_out({key: inner for key, inner in value.items() if key not in read}, where)
    main, *others = containers
    _devices(reading, pod_spec, data)
    _container(reading, main, data, path, launcher=launcher)
    _pod(reading, pod_spec, meta, main, others, data)
    return data


def _container(reading: _Reading, main: dict[str, Any], data: dict[str, Any], path: str, *, launcher: bool) -> None:
    """Move command, image, variables, resources of the first container into a set; the rest stays for the patch."""
    pod = data["pod"]
    was = main.pop("name", _MAIN)
    if was != _MAIN:
        reading.report(f"its container {was} is called {_MAIN}")
    pod["image"] = str(main.pop("image", "") or "")
    if pull := main.pop("imagePullPolicy", None):
        pod["pull_policy"] = pull
    command, args = ([str(word) for word in main.pop(key, None) or ()] for key in ("command", "args"))
    if not command and args:
        # The images of the operators' examples have a launcher as their entrypoint, and the arguments are the
        # launcher's.
        reading.report("args without a command: the entrypoint of the image is not run, they are", Severity.WARNING)
        command = ["torchrun"] if launcher and (args[0].startswith("-") or args[0].endswith(".py")) else []
    words = [*command, *args]
    if launcher:
        words, processes = _program(reading, words)
        data |= processes
    if not words:
        raise SpecError(
            f"{reading.path}: {reading.subject} names no command in {path}.", "Write the container's command."
        )
    data["command"] = words
    variables = items(main, "env")
    main.pop("env", None)
    data["env"] = {
        str(item["name"]): str(item["value"]) for item in variables if "name" in item and "value" in item
    }
    if rest := [item for item in variables if "value" not in item]:
        main["env"] = rest
    amounts = {**mapping(mapping(main, "resources"), "limits"), **mapping(mapping(main, "resources"), "requests")}
    data["resources"] = {key: amounts[key] for key in ("cpu", "memory") if key in amounts}


def _devices(reading: _Reading, pod_spec: dict[str, Any], data: dict[str, Any]) -> None:
    """Remove device requests from all containers of a pod: a set requests them by its slots."""
    try:
        devices = import_fields.device_requests(pod_spec)
    except ValueError as error:
        raise SpecError(f"{reading.path}: {reading.subject}: {error}.") from None
    data["slots"] = 0
    for container in import_fields.containers(pod_spec):
        _without_devices(reading, container, devices)
    for name, number in devices.items():
        if name != WHOLE_GPU and not is_countable(name):
            reading.left_out({name: number}, "resources", "no slot counts it")
            continue
        if data["slots"]:
            reading.left_out({name: number}, "resources", "a pod of a run gets devices of one kind")
            continue
        data["slots"], data["pod"]["binding"] = 1, "device-plugin"
        if name != WHOLE_GPU:
            data["pod"]["device"] = name
        if number > 1:
            data["gpus"] = number
    if not data["slots"]:
        data["pod"]["binding"] = "cpu"
        reading.report("it asks for no GPU: its pods get none, and the scheduler chooses their node")


def _without_devices(reading: _Reading, container: dict[str, Any], devices: Mapping[str, int]) -> None:
    for part in ("limits", "requests"):
        amounts = mapping(mapping(container, "resources"), part)
        for name in devices:
            amounts.pop(name, None)
    pinned = [item for item in items(container, "env") if item.get("name") in DEVICE_VARIABLES]
    if pinned:
        container["env"] = [item for item in items(container, "env") if item not in pinned]
        fields = {
            str(item["name"]): {key: item[key] for key in item if key != "name"} or "empty" for item in pinned
        }
        reading.left_out(fields, "env", "both variables get the GPU of the slot")


def _pod(
    reading: _Reading,
    pod_spec: dict[str, Any],
    meta: Mapping[str, Any],
    main: dict[str, Any],
    others: list[dict[str, Any]],
    data: dict[str, Any],
) -> None:
    """Move fields that a spec has into a set, and the rest of the pod into its ``pod.template``."""
    pod = data["pod"]
    if grace := pod_spec.pop("terminationGracePeriodSeconds", None):
        data["grace_seconds"] = grace
    if account := pod_spec.pop("serviceAccountName", None):
        pod["service_account"] = account
    if secrets := items(pod_spec, "imagePullSecrets"):
        pod["pull_secrets"] = [str(secret.get("name")) for secret in secrets]
        pod_spec.pop("imagePullSecrets")
    owned = {key: pod_spec.pop(key) for key in _RUN_OWNED if key in pod_spec}
    reading.left_out(owned, "spec", "the plan chooses nodes, and the run names and devices")
    if was := import_fields.node_fields(pod_spec):
        reading.report(f"in place of its {was} the plan chooses nodes")
    import_fields.without_hostnames(pod_spec)
    patch: dict[str, Any] = {
        key: value for key, value in pod_spec.items() if key != "containers" and value not in (None, [], {})
    }
    if main or others:
        patch["containers"] = [{"name": _MAIN, **main}, *others]
    metadata: dict[str, dict[str, str]] = {}
    for part in ("labels", "annotations"):
        theirs = {str(key): str(value) for key, value in mapping(meta, part).items()}
        ours = {key: value for key, value in theirs.items() if key.startswith((labels.PREFIX, _RECOMMENDED))}
        reading.left_out(ours, f"metadata.{part}", "a run sets them itself")
        if own := {key: value for key, value in theirs.items() if key not in ours}:
            metadata[part] = own
    if template := {key: value for key, value in (("metadata", metadata), ("spec", patch)) if value}:
        pod["template"] = template


def _program(reading: _Reading, words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the program started by a launcher of torch, and its processes per node: nodes launch torch
    themselves.
    """
    launcher = next((prefix for prefix in _LAUNCHERS if _begins(words, prefix)), None)
    if launcher is None:
        return words, {}
    rest, is_module, has_python, gone, processes = words[len(launcher) :], False, True, [], None
    while rest and rest[0].startswith("-"):
        flag, equals, value = rest.pop(0).partition("=")
        if not equals and flag not in _SWITCHES and rest:
            value = rest.pop(0)
        key = flag.lstrip("-").replace("-", "_")
        if key in ("m", "module"):
            is_module = True
        elif key == "no_python":
            has_python = False
        elif key in ("nproc_per_node", "nproc"):
            processes = value
        else:
            gone.append(f"{flag} {value}".strip())
    what = " ".join(launcher) + (f" {' '.join(gone)}" if gone else "")
    reading.report(f"its launcher {what} is left out: the nodes of the run launch torch themselves")
    python = ["python", *(["-m"] if is_module else [])] if has_python else []
    numbers: dict[str, Any] = {}
    _processes(reading, numbers, processes, "--nproc_per_node")
    return [*python, *rest], numbers


def _begins(words: Sequence[str], launcher: Sequence[str]) -> bool:
    start = [re.sub(r"^(?:.*/)?python3?(?:\.\d+)?$", "python", word) for word in words[:1]] + list(
        words[1 : len(launcher)]
    )
    return [start[0].rpartition("/")[2] if start else "", *start[1:]] == list(launcher)
