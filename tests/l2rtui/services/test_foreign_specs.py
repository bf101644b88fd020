"""Files of other tools in every form that kubectl reads, jobs of operators, and both charts."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest
import yaml

from l2rtui.domain.kinds import Binding
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Queue, QueueSystem, Resources, Role
from l2rtui.errors import SpecError
from l2rtui.services import runtime_commands
from l2rtui.services.spec import spec_file

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "command": ["a"]}]},
}
TEXT = json.dumps(POD)
PLAIN = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {restartPolicy: Never, containers: [{name: c, image: i, command: [a]}]}
"""


@pytest.fixture
def load(tmp_path):
    def _load(data, *overrides, name="spec.yaml"):
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return spec_file.load(str(path), overrides)

    return _load


def said(request):
    return "\n".join(f"{note.subject}: {note.sentence}" for note in request.notes)


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        json.dumps(POD, indent="\t"),
        f"\n\n  {TEXT}",
        f"# flow style\n{TEXT}",
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        b"\xfe\xff" + PLAIN.encode("utf-16-be"),
        TEXT.encode("utf-16"),
        PLAIN.replace("apiVersion", '"apiVersion"'),
        PLAIN.replace("apiVersion", "'apiVersion'"),
        PLAIN.replace("apiVersion: v1", "apiVersion  : v1"),
        PLAIN.replace("apiVersion: v1", "? apiVersion\n: v1"),
        "\n".join(f"  {line}" for line in PLAIN.splitlines()),
        PLAIN.replace("\n", "\r\n"),
        f"---\n{PLAIN}---\n",
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [POD]}),
    ],
)
def test_an_object_is_read_as_kubectl_reads_it(load, data):
    spec = load(data).spec
    assert (spec.name, spec.kind, spec.sets[0].command) == ("p", Kind.JOB, ("a",))


def test_json_objects_may_follow_each_other(load):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}}
    pod = {**POD, "metadata": {"name": "p", "labels": {"a": "b"}}}
    assert json.loads(load(f"{json.dumps(pod)}\n{json.dumps(service)}").spec.extras)[0]["name"] == "s"


def test_a_spec_with_an_api_version_inside_stays_a_spec(load):
    text = "kind: job\nname: j\njob: {command: [a]}\npod: {template: {metadata: {annotations: {apiVersion: v1}}}}\n"
    assert load(text).spec.name == "j"


def test_the_standard_input_and_several_files_are_read(load, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PLAIN.encode())))
    assert spec_file.load("-").spec.name == "p"
    assert not sys.stdin.closed  # the question of a launch comes later
    first, second = tmp_path / "pod.yaml", tmp_path / "service.yaml"
    first.write_text(PLAIN.replace("name: p", "name: p, labels: {a: b}"))
    second.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {a: b}}\n")
    assert json.loads(spec_file.load(str(first), more=[str(second)]).spec.extras)[0]["name"] == "s"
    with pytest.raises(SpecError, match="several files with -f are for Kubernetes objects"):
        spec_file.load("manifests/ps-digits.yaml", more=[str(second)])


@pytest.mark.parametrize(
    ("version", "kind", "words"),
    [
        ("batch.volcano.sh/v1alpha1", "Job", "is a Job of batch.volcano.sh/v1alpha1.*queue: {by: volcano}"),
        (
            "apps.kruise.io/v1beta1",
            "StatefulSet",
            "is a StatefulSet of apps.kruise.io/v1beta1.*not the StatefulSet of apps",
        ),
        ("serving.knative.dev/v1", "Service", "is a Service of serving.knative.dev/v1"),
        ("kubeflow.org/v2beta1", "MPIJob", "is a MPIJob.*docs/kinds.md"),
        ("ray.io/v1", "RayJob", "is a RayJob.*docs/kinds.md"),
        ("batch/v1", "CronJob", "is a CronJob.*jobTemplate"),
        ("argoproj.io/v1alpha1", "Workflow", "is a Workflow.*steps.*docs/kinds.md"),
        ("v1", "Secret", "is a Secret.*docs/secrets.md"),
        ("example.org/v1", "TFJob", "is a TFJob"),
        ("apps/v1", "DaemonSet", "is a DaemonSet.*docs/kubernetes.md"),
    ],
)
def test_a_kind_of_others_is_named_with_what_replaces_it(load, version, kind, words):
    with pytest.raises(SpecError) as caught:
        load(f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{tasks: []}}\n")
    assert re.search(words, f"{caught.value.message} {caught.value.hint}")


# --- operators: pytorch/elastic, kubeflow/training-operator, kubeflow/trainer ------------------------------------
POD_SPEC = """\
{metadata: {labels: {team: rl}}, spec: {priorityClassName: high, nodeName: g-1,
  volumes: [{name: d, emptyDir: {}}], containers: [{name: x, image: "i:1", command: [COMMAND],
    env: [{name: A, value: "1"}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}],
    resources: {limits: {nvidia.com/gpu: 1, memory: 2Gi}}, volumeMounts: [{name: d, mountPath: /d}]}]}}"""


def pod(*words):
    return POD_SPEC.replace("COMMAND", ", ".join(json.dumps(word) for word in words))


ELASTIC = f"""\
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {{name: imagenet, namespace: elastic-job}}
spec:
  rdzvEndpoint: "etcd:2379"
  minReplicas: 1
  maxReplicas: 3
  replicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template: {pod("torchrun", "--nproc_per_node=2", "main.py", "--epochs=2")}
"""
ETCD = """\
apiVersion: v1
kind: Service
metadata: {name: etcd-service}
spec: {ports: [{port: 2379}], selector: {app: etcd}}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd, labels: {app: etcd}}
spec: {containers: [{name: etcd, image: "quay.io/coreos/etcd:latest", command: [etcd]}]}
---
"""


def test_an_etcd_beside_an_elastic_job_gives_way_to_the_rendezvous_of_the_run(load):
    request = load(f"{ETCD}{ELASTIC}")
    assert [part.name for part in request.spec.sets] == [part.name for part in load(ELASTIC).spec.sets]
    said = " ".join(note.sentence for note in request.notes)
    for what in ("Service etcd-service is left out", "Pod etcd is left out"):
        assert what in said
    for other in (
        ETCD.replace("app: etcd}}\nspec", "app: web}}\nspec"),
        ETCD.replace("2379", "80"),
        f"{ELASTIC}---\n",
    ):
        with pytest.raises(SpecError, match="is a whole run, and the file has"):
            load(f"{other}{ELASTIC}")


PYTORCH = f"""\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: mnist}}
spec:
  runPolicy: {{cleanPodPolicy: None, backoffLimit: 4}}
  pytorchReplicaSpecs:
    Master: {{replicas: 1, template: {pod("python3", "mnist.py")}}}
    Worker: {{replicas: 3, template: {pod("python3", "mnist.py")}}}
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tj}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    numProcPerNode: 1
    image: "i:1"
    command: [torchrun, t.py]
    resourcesPerNode: {limits: {nvidia.com/gpu: 1}}
  suspend: true
"""


def test_the_queue_of_a_job_of_an_operator_is_that_of_the_run(load):
    request = load(PYTORCH.replace("{name: mnist}", "{name: mnist, labels: {kueue.x-k8s.io/queue-name: team}}"))
    assert request.spec.queue == Queue(QueueSystem.KUEUE, "team")
    said = " ".join(note.sentence for note in request.notes)
    assert "becomes `queue: {by: kueue, name: team}`, for which Kueue's integration of pods must be on" in said
    assert "left out, since a run has no such field: metadata" not in said


def test_the_priority_of_a_job_of_an_operator_is_that_of_its_pods(load):
    key = "kueue.x-k8s.io/priority-class"
    request = load(PYTORCH.replace("{name: mnist}", f"{{name: mnist, labels: {{{key}: high}}}}"))
    for part in request.spec.sets:
        assert json.loads(part.pod.templates[0])["metadata"]["labels"] == {key: "high"}


NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: demo}\n"


def test_a_namespace_beside_the_objects_of_a_run_is_left_out_and_named(load):
    of_list = json.dumps({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(NAMESPACE), POD]})
    for text in (f"{NAMESPACE}---\n{TEXT}", f"{TEXT}\n---\n{NAMESPACE}", f"{NAMESPACE}---\n{ELASTIC}", of_list):
        (note,) = [note for note in load(text).notes if note.subject == "Namespace demo"]
        assert note.severity is Severity.WARNING
        assert note.sentence.startswith("it is left out: a run goes into the namespace of -n")
        assert note.hint == "Write -n demo if it belongs there."


def test_an_object_without_its_version_is_not_taken_for_a_spec(load):
    with pytest.raises(SpecError) as error:
        load("kind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n")
    assert error.value.hint.startswith("An object of Kubernetes begins with its apiVersion")


def test_a_runtime_beside_its_job_is_to_be_applied_first(load):
    runtime = (
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nspec: {template: {spec: {}}}\n---\n"
    )
    with pytest.raises(SpecError) as error:
        load(f"{runtime}{TRAIN}")
    assert error.value.hint == "Apply the TrainingRuntime with kubectl first, and take it out of this file."


@pytest.mark.parametrize(
    ("text", "replicas", "bounds", "command", "words"),
    [
        (
            ELASTIC,
            2,
            (1, 3),
            ("python", "main.py", "--epochs=2"),
            ("rdzvEndpoint: etcd:2379", "ExitCode", "elastic-job"),
        ),
        (
            PYTORCH,
            4,
            (4, 4),
            ("python3", "mnist.py"),
            ("runPolicy.backoffLimit: 4", "Master (replicas: 1) and Worker"),
        ),
        (TRAIN, 2, (2, 2), ("python", "t.py"), ("spec.suspend: true", "runtimeRef (name: torch-distributed)")),
    ],
)
def test_a_torch_job_of_an_operator_becomes_elastic(load, text, replicas, bounds, command, words):
    request = load(text)
    rendezvous, nodes = request.spec.sets
    assert (request.spec.kind, rendezvous.role) == (Kind.ELASTIC, Role.RENDEZVOUS)
    assert (nodes.replicas, nodes.bounds, nodes.pod.image, nodes.slots) == (replicas, bounds, "i:1", 1)
    assert runtime_commands.read_elastic(nodes.command)[1] == command
    for part in (*words, "its image runs `l2r-runtime elastic`"):
        assert part in said(request)


def test_a_pod_template_of_an_operator_stays_as_a_patch(load):
    request = load(ELASTIC)
    nodes = request.spec.sets[1]
    patch = json.loads(nodes.pod.templates[0])
    assert patch["metadata"]["labels"] == {"team": "rl"}
    assert patch["spec"]["priorityClassName"] == "high"
    (main,) = patch["spec"]["containers"]
    assert (main["name"], main["volumeMounts"]) == ("main", [{"name": "d", "mountPath": "/d"}])
    assert [item["name"] for item in main["env"]] == ["B"]
    assert (nodes.env, nodes.resources) == ((("A", "1"),), Resources(None, 2 * 2**30))
    assert "spec.nodeName: g-1" in said(request)
    assert load(ELASTIC, "image=mine:2").spec.sets[1].pod.image == "mine:2"


def test_a_tf_job_becomes_parameter_servers(load):
    parts = "\n".join(
        f"    {name}: {{replicas: {count}, template: {pod('python', 'tf.py')}}}"
        for name, count in (("PS", 2), ("Worker", 3), ("Chief", 1))
    )
    request = load(
        f"apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {{name: tf}}\nspec:\n  tfReplicaSpecs:\n{parts}\n"
    )
    servers, workers = request.spec.sets
    assert (request.spec.kind, servers.replicas, workers.replicas) == (Kind.PARAMETER_SERVER, 2, 4)
    assert (servers.command, workers.command) == (("python", "tf.py"),) * 2
    assert "Chief: worker 0 is the chief" in said(request)


def test_a_node_gets_as_many_gpus_as_its_pods_request(load):
    request = load(ELASTIC.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 4"))
    assert not [note for note in request.notes if note.severity is Severity.REFUSAL]
    (nodes,) = [part for part in request.spec.sets if part.bounds is not None]
    assert (nodes.gpus, nodes.pod.binding) == (4, Binding.DEVICE_PLUGIN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{ELASTIC}---\n{PLAIN}", "is a whole run, and the file has Pod as well"),
        (ELASTIC.replace("torchrun", "{{X}}"), "nothing is known for X"),
        (ELASTIC.replace("replicas: 2", "replicas: many"), "replicas is 'many'"),
        ("apiVersion: kubeflow.org/v1\nkind: TFJob\nspec: {tfReplicaSpecs: {Worker: {}}}\n", "has no PS"),
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {}\n", "has no pod with containers"),
        (TRAIN.replace("    command: [torchrun, t.py]\n", ""), "names no command"),
    ],
)
def test_a_job_that_cannot_be_read_says_why(load, text, words):
    with pytest.raises(SpecError, match=words):
        load(text)


# --- charts: Dysproz/distributed-tensorflow-helm and helm/charts -------------------------------------------------
def test_the_chart_with_limits_passes_its_steps_and_folders(load):
    image = "image: {{repository: lab/tf, tag: 1.7.0}}"
    side = f"{{{{number: 2, {image}, port: {{port}}, limit: {{{{memory: 125Mi, cpu: 200m}}}}}}}}"
    values = (
        f"worker: {side.format(port=9000)}\nps: {side.format(port=8000)}\n"
        "hyperparams: {batchsize: 20, learningrate: 0.001, trainsteps: 200, hiddenunits: 64, "
        "datadir: /data, logdir: /logs}\n"
    )
    request = load(values)
    for part in request.spec.sets:
        assert " ".join(part.command) == (
            "python train_distributed.py --learning_rate 0.001 --batch_size 20 --train_steps 200 --data_dir /data "
            "--log_dir /logs --hidden_units 64"
        )
        assert part.resources == Resources(0.2, 125 * 2**20)
        (patch,) = part.pod.templates
        assert json.loads(patch)["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "200m"}
    assert "is not used" not in said(request)


# --- kubernetes/website#30499 -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("{cpu: 1, memory: 512m}", "learner: resources.memory: '512m' is less than one byte: did you mean 512Mi?"),
        ("{cpu: 2Gi}", "learner: resources.cpu: '2Gi' is .* did you mean 2?"),
    ],
)
def test_an_amount_of_another_unit_is_refused(load, resources, words):
    text = f"kind: learner-workers\nname: milli\nimage: i\nlearner: {{resources: {resources}}}\n"
    with pytest.raises(SpecError, match=words):
        load(text)


def test_an_amount_of_another_unit_in_a_pod_is_named(load):
    text = PLAIN.replace("image: i", "image: i, resources: {limits: {memory: 512m}}")
    assert "c: limits.memory: '512m' is less than one byte: did you mean 512Mi?" in said(load(text))


# --- files that envsubst or Helm fills in, such as the FSDP examples of aws-samples -------------------
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: $PODS
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: c
        image: ${REGISTRY}fsdp:latest
        command: [sh, -c, 'echo $HOME ${PODS}']
        env: [{name: PROVIDER, value: $FI_PROVIDER}]
        resources: {limits: {nvidia.com/gpu: $GPUS}}
"""


def test_variables_of_a_shell_where_no_shell_runs_need_a_value(load):
    with pytest.raises(SpecError) as refused:
        load(JOB)
    assert "nothing is known for GPUS, PODS, REGISTRY" in str(refused.value)
    assert "--set GPUS=VALUE --set PODS=VALUE --set REGISTRY=VALUE" in refused.value.hint
    request = load(JOB, "GPUS=2", "PODS=3", "REGISTRY=lab.example/")
    (part,) = request.spec.sets
    assert (part.replicas, part.gpus, part.command[-1]) == (3, 2, "echo $HOME 3")
    assert part.pod.image == "lab.example/fsdp:latest"
    assert "the value of PROVIDER is the text $FI_PROVIDER, which nothing fills in" in said(request)
    filled = load(JOB, "GPUS=2", "PODS=3", "REGISTRY=lab.example/", "FI_PROVIDER=efa")
    assert "nothing fills in" not in said(filled)
    with pytest.raises(SpecError, match="--set OTHER"):
        load(JOB, "GPUS=2", "PODS=3", "REGISTRY=r/", "OTHER=1")


@pytest.mark.parametrize(
    "text", [PLAIN.replace("name: p", "name: {{ .Release.Name }}-p"), "{{$a := .b}}\n\nsteps:\n  kind: Job\n"]
)
def test_a_template_is_called_one(load, text):
    with pytest.raises(SpecError, match="not YAML") as refused:
        load(text)
    assert "helm template" in refused.value.hint


def test_a_kind_of_others_is_refused_before_values_are_asked_for(load):
    with pytest.raises(SpecError, match="is a Workflow, which cannot be a part of a run"):
        load("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec: {template: 'run ${MPI_HOST}'}\n")


def test_a_secret_in_the_variables_of_a_container_is_named_by_its_variable(load):
    with pytest.raises(SpecError, match=r"containers\.c\.env\.HF_TOKEN\.value looks like"):
        load(PLAIN.replace("image: i", "image: i, env: [{name: HF_TOKEN, value: PLACEHOLDER_1}]"))


@pytest.mark.parametrize("amount", ["two", "1.5", "-1", "500m"])
def test_devices_are_counted_in_whole_numbers(load, amount):
    text = PLAIN.replace("image: i", f"image: i, resources: {{limits: {{nvidia.com/gpu: '{amount}'}}}}")
    with pytest.raises(SpecError, match=f"c: nvidia.com/gpu is '{amount}'"):
        load(text)


@pytest.mark.parametrize("image", ["<account>.dkr.ecr/x:1", "Lab/App", "a b", "i:", "i@sha256:12"])
def test_a_name_that_no_image_can_have_is_refused(load, image):
    with pytest.raises(SpecError, match=r"image .* is not"):
        load(PLAIN.replace("image: i", f"image: '{image}'"))
    with pytest.raises(SpecError, match=r"image .* is not"):
        load(f"kind: job\nname: own\nimage: '{image}'\njob: {{command: [a]}}\n")
