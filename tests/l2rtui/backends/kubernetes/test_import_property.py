"""Each field of an imported file is in an object of the run, or named in a finding that ``plan`` prints."""

from __future__ import annotations

import copy
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2rtui.backends.kubernetes.manifests import import_fields
from l2rtui.backends.kubernetes.manifests.import_yaml import read_kubernetes_yaml
from l2rtui.domain.node import Gpu, Node
from l2rtui.errors import SpecError
from l2rtui.services.spec import import_operators, spec_file
from l2rtui.services.spec.yaml_lines import Locations
from tests.l2rtui.backends.kubernetes.test_render import NUMBERS, objects, planned

PROFILE = "nvidia.com/mig-1g.5gb"
NODES = NUMBERS | {
    name: Node(name, tuple(Gpu(name, index, slots=1, resource=resource) for index in range(64)))
    for name, resource in {"mig": PROFILE, "a100": "nvidia.com/a100", "whole": ""}.items()
}


class Made:
    """Makers of values from random numbers: strategies of hypothesis take 100 times as long for these."""

    @staticmethod
    def just(value):
        return lambda _: value

    @staticmethod
    def sampled_from(values):
        return lambda rng: rng.choice(values)

    @staticmethod
    def lists(inner, min_size=0, max_size=2, unique_by=None):
        def make(rng):
            made = [inner(rng) for _ in range(rng.randint(min_size, max_size))]
            return list({unique_by(item): item for item in made}.values()) if unique_by else made

        return make

    @staticmethod
    def dictionaries(keys, values, max_size=2):
        return lambda rng: {keys(rng): values(rng) for _ in range(rng.randint(0, max_size))}


def WORDS(rng):  # noqa: N802  (a maker like the others)
    return "".join(rng.choices("abcdefghijk", k=rng.randint(3, 6)))


def SMALL(rng):  # noqa: N802
    return rng.randint(1, 3)


def BOOL(rng):  # noqa: N802
    return rng.random() < 0.5


MAPS = Made.dictionaries(WORDS, WORDS)


def some(required, **optional):
    """Return a maker of mappings with these fields; optional ones may be missing."""

    def make(rng):
        made = {key: inner(rng) for key, inner in required.items()}
        return made | {key: inner(rng) for key, inner in optional.items() if rng.random() < 0.4}

    return make


ENV = some(
    {"name": Made.sampled_from(["A", "ADDR", "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])}, value=WORDS
)
AMOUNTS = Made.dictionaries(
    Made.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/a100", "nvidia.com/mig-1g.5gb", "rdma/hca"]),
    Made.just("1"),
    max_size=3,
)
PROBE = some({"exec": some({"command": Made.lists(WORDS, min_size=1, max_size=2)})}, periodSeconds=SMALL)
CONTAINER = some(
    {"name": WORDS, "image": WORDS},
    command=Made.lists(WORDS, min_size=1, max_size=2),
    args=Made.lists(WORDS, min_size=1, max_size=2),
    env=Made.lists(ENV, max_size=3, unique_by=lambda item: item["name"]),
    envFrom=Made.lists(some({"configMapRef": some({"name": WORDS})}), max_size=1),
    resources=some({}, limits=AMOUNTS, requests=AMOUNTS),
    ports=Made.lists(
        some({"containerPort": SMALL}, hostPort=SMALL, name=WORDS),
        unique_by=lambda port: port["containerPort"],  # merged by this key
    ),
    livenessProbe=PROBE,
    securityContext=some({}, runAsUser=SMALL),
    workingDir=WORDS,
    volumeMounts=Made.lists(some({"name": WORDS, "mountPath": WORDS}), max_size=1),
)
RULE = some(
    {"key": Made.sampled_from(["kubernetes.io/hostname", "zone"]), "operator": Made.just("In")},
    values=Made.lists(WORDS, min_size=1, max_size=2),
)
AFFINITY = some(
    {},
    nodeAffinity=some(
        {},
        requiredDuringSchedulingIgnoredDuringExecution=some(
            {
                "nodeSelectorTerms": Made.lists(
                    some({"matchExpressions": Made.lists(RULE, min_size=1, max_size=2)}), min_size=1, max_size=2
                )
            }
        ),
    ),
)
POD = some(
    {"containers": Made.lists(CONTAINER, min_size=1, max_size=2)},
    initContainers=Made.lists(CONTAINER, max_size=1),
    nodeName=WORDS,
    nodeSelector=MAPS,
    affinity=AFFINITY,
    hostname=WORDS,
    subdomain=WORDS,
    restartPolicy=Made.sampled_from(["Always", "OnFailure", "Never"]),
    terminationGracePeriodSeconds=SMALL,
    volumes=Made.lists(some({"name": WORDS}, emptyDir=some({}, medium=WORDS)), max_size=2),
    hostNetwork=BOOL,
    serviceAccountName=WORDS,
    tolerations=Made.lists(some({"key": WORDS, "operator": Made.just("Exists")}), max_size=1),
    priorityClassName=WORDS,
)
META = some(
    {"name": WORDS},
    namespace=WORDS,
    labels=Made.dictionaries(Made.sampled_from(["app", "team", "app.kubernetes.io/name"]), WORDS, max_size=3),
    annotations=MAPS,
    finalizers=Made.lists(WORDS, max_size=1),
    uid=WORDS,
    resourceVersion=WORDS,
    creationTimestamp=Made.just(None),
)
TEMPLATE = some({"metadata": some({}, labels=MAPS, annotations=MAPS, name=WORDS), "spec": POD})
JOB = some(
    {"template": TEMPLATE},
    parallelism=SMALL,
    backoffLimit=SMALL,
    activeDeadlineSeconds=SMALL,
    ttlSecondsAfterFinished=SMALL,
    suspend=BOOL,
    completions=Made.just(1),
    completionMode=Made.sampled_from(["Indexed", "NonIndexed"]),
    podReplacementPolicy=WORDS,
    maxFailedIndexes=SMALL,
)


def controller(kind, **fields):
    spec = some({"template": TEMPLATE}, replicas=SMALL, selector=some({"matchLabels": MAPS}), **fields)
    return some({"apiVersion": Made.just("apps/v1"), "kind": Made.just(kind), "metadata": META, "spec": spec})


WORKLOADS = (
    some(
        {"apiVersion": Made.just("v1"), "kind": Made.just("Pod"), "metadata": META, "spec": POD},
        status=some({"phase": WORDS}),
    ),
    some({"apiVersion": Made.just("batch/v1"), "kind": Made.just("Job"), "metadata": META, "spec": JOB}),
    controller("ReplicaSet", minReadySeconds=SMALL),
    controller("Deployment", strategy=some({"type": WORDS}), paused=BOOL, revisionHistoryLimit=SMALL),
    controller("StatefulSet", serviceName=WORDS, podManagementPolicy=WORDS),
    some(
        {
            "apiVersion": Made.just("jobset.x-k8s.io/v1alpha2"),
            "kind": Made.just("JobSet"),
            "metadata": META,
            "spec": some(
                {
                    "replicatedJobs": Made.lists(
                        some({"name": WORDS, "template": some({"spec": JOB})}, replicas=SMALL, groupName=WORDS),
                        min_size=1,
                        max_size=2,
                        unique_by=lambda part: part["name"],
                    )
                },
                network=some({}, enableDNSHostnames=BOOL, subdomain=WORDS),
                failurePolicy=some({"maxRestarts": SMALL}),
                suspend=BOOL,
            ),
        }
    ),
)
PARTS = some({"template": some({"metadata": some({}, labels=MAPS, annotations=MAPS), "spec": POD})}, replicas=SMALL,
             restartPolicy=Made.sampled_from(["OnFailure", "Never", "ExitCode"]))  # fmt: skip
POLICY = some({}, backoffLimit=SMALL, ttlSecondsAfterFinished=SMALL, cleanPodPolicy=WORDS)


def operator(version, kind, **fields):
    return some(
        {"apiVersion": Made.just(version), "kind": Made.just(kind), "metadata": META, "spec": some(**fields)}
    )


OPERATORS = (
    operator(
        "elastic.pytorch.org/v1alpha1",
        "ElasticJob",
        required={"replicaSpecs": some({"Worker": PARTS})},
        rdzvEndpoint=WORDS,
        minReplicas=Made.just(1),
        maxReplicas=Made.just(3),
        runPolicy=POLICY,
    ),
    operator(
        "kubeflow.org/v1",
        "PyTorchJob",
        required={"pytorchReplicaSpecs": some({"Worker": PARTS}, Master=PARTS)},
        runPolicy=POLICY,
        nprocPerNode=Made.sampled_from(["auto", "1"]),
        elasticPolicy=some({}, minReplicas=Made.just(1), rdzvBackend=WORDS, maxRestarts=SMALL),
    ),
    operator(
        "kubeflow.org/v1",
        "TFJob",
        required={"tfReplicaSpecs": some({"PS": PARTS, "Worker": PARTS}, Chief=PARTS, Evaluator=PARTS)},
        runPolicy=POLICY,
        successPolicy=WORDS,
    ),
    operator(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        required={
            "trainer": some(
                {"image": WORDS, "command": Made.lists(WORDS, min_size=1)},
                args=Made.lists(WORDS),
                numNodes=SMALL,
                numProcPerNode=Made.sampled_from(["auto", 1]),
                env=Made.lists(ENV, max_size=2, unique_by=lambda item: item["name"]),
                resourcesPerNode=some({}, limits=AMOUNTS),
            )
        },
        runtimeRef=some({"name": WORDS}),
        suspend=BOOL,
        podSpecOverrides=Made.lists(some({"serviceAccountName": WORDS})),
    ),
)
SERVICE = some(
    {
        "apiVersion": Made.just("v1"),
        "kind": Made.just("Service"),
        "metadata": META,
        "spec": some(
            {"ports": Made.lists(some({"port": SMALL}, nodePort=SMALL, name=WORDS), min_size=1, max_size=2)},
            selector=Made.just({"app": "x"}),
            clusterIP=Made.sampled_from(["None", "1.2.3.4"]),
            type=WORDS,
            sessionAffinity=WORDS,
        ),
    }
)


def keyed(value):
    """Return key and text of each leaf of a value."""
    keys = ((path.rpartition(".")[2].partition("[")[0], str(leaf)) for path, leaf in import_fields.leaves(value))
    return {(ARGUMENTS.get(key, key), leaf) for key, leaf in keys}


def rendered_leaves(spec):
    """Return the leaves of the objects of a run, without the ConfigMap that holds the file."""
    return keyed([item for item in objects(planned(spec, NODES)) if item["kind"] != "ConfigMap"])


def missing(document, leaves, notes):
    """Return the leaves of a document that are neither in an object nor in a finding."""
    said = " ".join(f"{note.subject}: {note.sentence}" for note in notes)
    if re.search(rf"Service {document['metadata']['name']}: .*is left out", said):
        return []
    lost = []
    for path, value in import_fields.leaves(document):
        key = path.rpartition(".")[2].partition("[")[0]
        key = ARGUMENTS.get(key, key)
        text = str(value).lower() if isinstance(value, bool) else str(value)
        keys = [part.partition("[")[0] for part in path.split(".")]
        is_named = any(
            re.search(rf"\b{re.escape(part)}\b", said) for part in (key, *keys[:-1]) if part not in VAGUE
        )
        if key == "value" and variable_of(document, path) in said:
            continue
        if (key, str(value)) not in leaves and not is_named and text not in said:
            lost.append(f"{path}: {value}")
    return lost


def variable_of(document, path):
    """Return the name of the variable whose value is at a path."""
    value = document
    for part in re.findall(r"[^.\[\]]+", path.removesuffix(".value")):
        value = value[int(part)] if part.isdigit() else value[part]
    return value["name"]


VAGUE = {
    "metadata",
    "spec",
    "template",
    "containers",
    "initContainers",
    "env",
    "name",
    "kind",
    "ports",
    "",
}
"""Keys that a finding may contain for other reasons; for these, only the value of a leaf counts."""
ARGUMENTS = dict.fromkeys(("args", "nprocPerNode", "numProcPerNode"), "command")
"""Keys whose values become words of a set's command."""
COUNTS = ("numNodes", "replicas", "parallelism", "completions")


def file_of(seed):
    """Return the documents of one file."""
    rng = random.Random(seed)
    document = rng.choice(WORKLOADS)(rng)
    service = SERVICE(rng) if BOOL(rng) else None
    if service is not None and document["kind"] != "JobSet":
        holder = document if document["kind"] == "Pod" else document["spec"]["template"]
        if BOOL(rng):
            holder.setdefault("metadata", {}).setdefault("labels", {})["app"] = "x"
            service["spec"]["selector"] = {"app": "x"}
    return [document, *([service] if service else [])]


@pytest.mark.slow
@settings(max_examples=2 * settings.default.max_examples)  # 2,000 with --hypothesis-profile=nightly
@given(st.integers(0, 2**32))
def test_every_field_of_a_file_is_in_an_object_or_in_a_finding(seed):
    documents = file_of(seed)
    before = copy.deepcopy(documents)
    try:
        spec, notes = read_kubernetes_yaml(documents, "file.yaml")
    except SpecError:  # a sentence; nothing is launched
        return
    assert documents == before  # the caller's file is not modified
    if any(note.severity == "refusal" for note in notes):
        leaves = keyed([json.loads(spec.extras), *(json.loads(part.template) for part in spec.sets)])
    else:
        leaves = rendered_leaves(spec)
    lost = []
    for document in documents:
        plain = [
            item
            for item in missing(document, leaves, notes)
            if item.partition(":")[0].rpartition(".")[2] not in COUNTS
        ]
        lost += [item for item in plain if not item.startswith(("apiVersion", "kind"))]
    assert not lost, lost
    pods = sum(part.replicas for part in spec.sets)
    assert pods == sum(_pods(document) for document in documents), [part.template for part in spec.sets]


def _pods(document):
    spec = document["spec"]
    match document["kind"]:
        case "Service":
            return 0
        case "Pod":
            return 1
        case "Job":
            return _job_pods(spec)
        case "JobSet":
            return sum(
                part.get("replicas", 1) * _job_pods({"completionMode": "Indexed", **part["template"]["spec"]})
                for part in spec["replicatedJobs"]
            )
        case _:
            return spec.get("replicas", 1)


def _job_pods(spec):
    pods = spec.get("parallelism", 1)
    return min(pods, spec.get("completions", pods)) if spec.get("completionMode") == "Indexed" else pods


@settings(max_examples=2 * settings.default.max_examples)
@given(st.integers(0, 2**32))
def test_every_field_of_an_operators_job_is_in_an_object_or_in_a_finding(seed):
    rng = random.Random(seed)
    document = rng.choice(OPERATORS)(rng)
    before = copy.deepcopy(document)
    try:
        data, notes = import_operators.spec_of([document], "file.yaml")
        spec = spec_file._loaded(data, Locations("file.yaml"), "", spec_file.NO_LIMITS).spec
    except SpecError:
        return
    assert document == before
    leaves = rendered_leaves(spec)
    lost = [
        item for item in missing(document, leaves, notes) if item.partition(":")[0].rpartition(".")[2] not in COUNTS
    ]
    lost = [item for item in lost if not item.startswith(("apiVersion", "kind"))]
    assert not lost, lost
