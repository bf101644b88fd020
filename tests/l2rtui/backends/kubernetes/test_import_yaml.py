"""Kubernetes YAML as a run: fields kept, fields changed, and a report of every change."""

from __future__ import annotations

import json

import pytest

from l2rtui.backends.kubernetes.manifests import import_yaml
from l2rtui.domain.containers import Scheduling, Toleration
from l2rtui.domain.kinds import Binding
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, RestartPolicy, Role
from l2rtui.errors import SpecError
from l2rtui.services.spec import spec_file

LEARNER_AND_WORKERS = """\
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: mcar-workers}
spec:
  replicas: "{{NUM_WORKERS}}"
  selector: {matchLabels: {tier: mcar}}
  template:
    metadata: {labels: {tier: mcar, team: rl}}
    spec:
      nodeSelector: {nodetype: "{{PHORTX_NODE}}"}
      containers:
        - name: worker
          resources: {limits: {nvidia.com/gpu: 1, cpu: 2, memory: 1Gi}}
          env:
            - {name: NVIDIA_VISIBLE_DEVICES, value: "{{GPU_ID}}"}
            - {name: CUDA_VISIBLE_DEVICES, value: "0"}
            - {name: SEED_OF, value: "seed {{SEED}} of {{RUN}}"}
          image: "{{WORKER_IMAGE}}"
          command: [/bin/bash, -c, "python worker.py --to mcar-learner"]
---
apiVersion: v1
kind: Pod
metadata: {name: mcar-learner, labels: {app.kubernetes.io/name: proxy}}
spec:
  hostname: learner-1
  containers:
    - {name: learner, image: l:1, resources: {limits: {nvidia.com/gpu: 1}}, command: [python, server.py]}
---
apiVersion: v1
kind: Service
metadata: {name: mcar-learner}
spec:
  selector: {app.kubernetes.io/name: proxy}
  ports: [{port: 4444}]
"""
WORKER_PODS_NAMES = (
    "it becomes the set w, with a name for each run, "
    "and in place of the selector tier: worker-set one by run, set and GPU"
)
SET = ("NUM_WORKERS=3", "WORKER_IMAGE=w:1")


@pytest.fixture
def load(tmp_path):
    def _load(text, *overrides, name=""):
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return spec_file.load(str(path), overrides, name)

    return _load


def sentences(wish, severity=None):
    return [f"{note.subject}: {note.sentence}" for note in wish.notes if severity in (None, note.severity)]


def test_the_lab_clusters_replica_set_is_read_as_it_is():
    wish = spec_file.load("manifests/worker-pods.yaml")

    (item,) = wish.spec.sets
    assert (wish.spec.name, item.name, item.role, item.replicas, item.slots) == (
        "worker-pods",
        "w",
        Role.WORKER,
        4,
        1,
    )
    assert (item.restart, item.pod.binding, wish.spec.kind) == (RestartPolicy.ALWAYS, Binding.ENV, Kind.JOB)
    assert json.loads(item.template)["spec"]["containers"][0]["command"][-1] == "./run.bash -b random"
    assert json.loads(item.template)["metadata"]["labels"] == {}
    assert {note.subject for note in wish.notes} == {"ReplicaSet worker-pods"}
    assert [note.sentence for note in wish.notes] == [
        WORKER_PODS_NAMES,
        "in place of its node selector (kubernetes.io/hostname: phortx1) each pod gets the node of its slot",
        "NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES get the GPU of each pod's slot",
        "its containers are taken as the file has them: Pod Security `restricted` may not hold",
    ]


def test_a_learner_beside_its_workers_becomes_a_run_with_a_service(load):
    wish = load(LEARNER_AND_WORKERS, *SET)
    learner, workers = wish.spec.sets

    assert wish.spec.kind is Kind.LEARNER_WORKERS
    assert (wish.spec.name, workers.name, workers.replicas) == ("job", "mcar-workers", 3)
    assert (learner.name, learner.role, learner.pod.binding) == ("learner", Role.LEARNER, Binding.DEVICE_PLUGIN)
    assert learner.restart is RestartPolicy.ON_FAILURE
    assert (workers.resources.cpu_cores, workers.resources.memory_bytes) == (2, 2**30)
    template = json.loads(workers.template)
    assert template["metadata"]["labels"] == {"team": "rl"}
    assert "nvidia.com/gpu" not in template["spec"]["containers"][0]["resources"]["limits"]
    assert [extra["set"] for extra in json.loads(wish.spec.extras)] == ["learner"]
    warned = sentences(wish, Severity.WARNING)
    assert any("names a GPU by variable and requests one of the device plugin" in item for item in warned)
    assert any("its command names the Service mcar-learner" in item for item in warned)


def test_placeholders_that_the_plan_knows_stay_until_it_is_rendered(load):
    item = load(LEARNER_AND_WORKERS, *SET).spec.sets[1]
    values = {"seed": "7", "run": "r-s7", "gpu": "3", "node": "n1"}

    container = import_yaml.filled(json.loads(item.template), values)["spec"]["containers"][0]

    assert container["image"] == "w:1"
    assert container["env"][2]["value"] == "seed 7 of r-s7"


def test_values_of_placeholders_are_data(load):
    nasty = 'x"}\n- {{SEED}} $(rm -rf)'
    item = load(LEARNER_AND_WORKERS, "NUM_WORKERS=1", f"WORKER_IMAGE={nasty}").spec.sets[1]
    assert json.loads(item.template)["spec"]["containers"][0]["image"] == nasty


def test_image_and_replicas_are_set_for_all(load):
    wish = load(LEARNER_AND_WORKERS, *SET, "image=new:2", "replicas=5", name="mine")
    assert [item.pod.image for item in wish.spec.sets] == ["new:2", "new:2"]
    assert (wish.spec.name, wish.spec.sets[1].replicas) == ("mine", 5)


WORKLOAD = "apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{{spec}}}\n"
POD = "containers: [{name: c, image: i, command: [a]}]"


@pytest.mark.parametrize(
    ("text", "restart", "role", "words"),
    [
        (WORKLOAD.format(kind="Pod", spec=POD), "Always", "job", "it becomes a ReplicaSet: a bare pod"),
        (WORKLOAD.format(kind="Pod", spec=f"restartPolicy: Never, {POD}"), "Never", "job", "it becomes a Job"),
        (
            WORKLOAD.format(
                kind="Job", spec=f"parallelism: 2, template: {{spec: {{restartPolicy: OnFailure, {POD}}}}}"
            ),
            "OnFailure",
            "job",
            "it asks for no GPU",
        ),
        (
            WORKLOAD.format(kind="Deployment", spec=f"replicas: 2, template: {{spec: {{{POD}}}}}"),
            "Always",
            "worker",
            "rolling updates are not kept",
        ),
        (
            WORKLOAD.format(kind="StatefulSet", spec=f"template: {{spec: {{{POD}}}}}"),
            "Always",
            "worker",
            "stable names and one volume",
        ),
        (WORKLOAD.format(kind="Service", spec=POD), "Always", "job", "a bare pod that is lost stays lost"),
        (
            f"apiVersion: v1\nkind: List\nitems:\n- {{kind: Pod, metadata: {{name: 1x}}, spec: {{{POD}}}}}\n",
            "Always",
            "job",
            "a bare pod",
        ),
    ],
)
def test_other_workloads_become_what_is_nearest(load, text, restart, role, words):
    wish = load(text)
    (item,) = wish.spec.sets
    assert (item.restart, item.role) == (restart, role)
    assert (item.pod.binding, item.slots) == (Binding.CPU, 0)
    assert any(words in item for item in sentences(wish))


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (LEARNER_AND_WORKERS, (), "nothing is known for NUM_WORKERS, WORKER_IMAGE. Add --set NUM_WORKERS=VALUE"),
        (LEARNER_AND_WORKERS, (*SET, "train.x=1"), "--set train.x: .* its placeholders are GPU_ID"),
        (LEARNER_AND_WORKERS, (*SET, "image"), "write it as NAME=value"),
        (
            LEARNER_AND_WORKERS,
            ("NUM_WORKERS=lots", "WORKER_IMAGE=i"),
            "replicas is 'lots', which is not a whole number",
        ),
        (LEARNER_AND_WORKERS, ("NUM_WORKERS=9999", "WORKER_IMAGE=i"), "write 0 to 4096"),
        ("apiVersion: v1\nkind: PersistentVolumeClaim\n", (), "is a PersistentVolumeClaim, which cannot be a part"),
        ("apiVersion: v1\nkind: Service\nspec: {}\n", (), "it contains no workload"),
        ("apiVersion: v1\n", (), "document 1 is not a Kubernetes object"),
        ("apiVersion: v1\nkind: Pod\nspec: {}\n", (), "Pod pod has no containers"),
        ("apiVersion: v1\nkind: [\n", (), ":3: not YAML"),
        ("apiVersion: v1\nx: \x00\n", (), "not YAML"),
        (WORKLOAD.format(kind="Pod", spec=POD), ("x=1",), "and it has no placeholders"),
        (
            WORKLOAD.format(kind="Job", spec=f"completions: 5, template: {{spec: {{{POD}}}}}"),
            (),
            "more completions than parallel pods",
        ),
        (
            WORKLOAD.format(
                kind="StatefulSet", spec=f"volumeClaimTemplates: [{{}}], template: {{spec: {{{POD}}}}}"
            ),
            (),
            "makes volumes of its own",
        ),
    ],
)
def test_what_cannot_be_a_run_is_said_with_its_place(load, text, overrides, words):
    with pytest.raises(SpecError, match=words):
        load(text, *overrides)


def test_a_service_that_selects_nothing_is_left_out_and_said(load):
    text = (
        f"{WORKLOAD.format(kind='Pod', spec=POD)}---\napiVersion: v1\nkind: Service\nspec: {{selector: {{a: b}}}}\n"
    )
    wish = load(text)
    assert wish.spec.extras == "[]"
    assert "Service service: it selects no pod of this file: it is left out" in sentences(wish)


def test_tolerations_of_a_template_are_those_by_which_its_nodes_are_chosen(load):
    tolerations = "tolerations: [{key: team, operator: Exists}]\n      containers:"
    text = LEARNER_AND_WORKERS.replace("containers:", tolerations, 1)
    _, workers = load(text, *SET).spec.sets
    assert workers.pod.scheduling == Scheduling((), (Toleration("team"),))
    with pytest.raises(SpecError, match=r"tolerations"):
        load(text.replace("[{key: team, operator: Exists}]", "{key: team}"), *SET)


def test_a_name_that_is_no_text_becomes_a_legal_one(load):
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: {a: b}}\nspec: {containers: [{name: c, image: i}]}\n"
    assert load(text).spec.name == "a-b"
