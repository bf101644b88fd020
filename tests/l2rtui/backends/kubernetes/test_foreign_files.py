"""Other projects' files: the settings their containers get on a cluster, from reports and examples."""

from __future__ import annotations

import json

import pytest

from l2rtui.domain.kinds import Binding
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node, Resource
from l2rtui.domain.placement import obstacle, place
from l2rtui.domain.preflight import Severity
from l2rtui.domain.workload import Kind, Queue, QueueSystem, with_seeds
from l2rtui.services.spec import spec_file
from tests.l2rtui.backends.kubernetes.test_render import NUMBERS, objects, planned

POD = "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{fields}, containers: [{container}]}}\n"
PINNED = "{name: c, image: i, command: [a], env: [{name: NVIDIA_VISIBLE_DEVICES, value: '0'}]}"


@pytest.fixture
def load(tmp_path):
    def _load(text, name="job.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return spec_file.load(str(path))

    return _load


def said(request):
    return "\n".join(f"{note.subject}: {note.sentence}" for note in request.notes)


def pods(request, pins="phortx1/3", seeds=()):
    """Return the specs of the pods of each controller."""
    made = objects(planned(with_seeds(request.spec, seeds), NUMBERS, pins))
    return [item["spec"]["template"]["spec"] for item in made if item["kind"] in ("Job", "ReplicaSet")]


def env(container):
    return {item["name"]: item.get("value") for item in container["env"]}


# --- kubernetes/kubernetes#120160, #43846: a pod of a named node with our node selector ---------------------------
AFFINITY = (
    "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: "
    "[{{{part}: [{{key: {key}, operator: In, values: [node-b]}}{more}]}}]}}}}}}"
)
BY_HOSTNAME = AFFINITY.format(part="matchExpressions", key="kubernetes.io/hostname", more="")
BY_NAME = AFFINITY.format(part="matchFields", key="metadata.name", more="")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ("nodeName: node-b", "in place of its nodeName node-b each pod gets the node of its slot"),
        ("nodeSelector: {kubernetes.io/hostname: node-b}", "node selector (kubernetes.io/hostname: node-b)"),
        (BY_HOSTNAME, "node affinity kubernetes.io/hostname In node-b"),
        (BY_NAME, "node affinity metadata.name In node-b"),
    ],
)
def test_a_pod_of_a_slot_is_bound_to_that_node_alone(load, fields, sentence):
    request = load(POD.format(fields=fields, container=PINNED))
    (pod,) = pods(request)
    assert sentence in said(request)
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "phortx1"}
    assert "nodeName" not in pod
    assert "affinity" not in pod


def test_other_rules_of_a_node_affinity_stay_and_choose_slots(load):
    zone = ", {key: zone, operator: In, values: [z]}"
    rules = AFFINITY.format(part="matchExpressions", key="kubernetes.io/hostname", more=zone)
    request = load(POD.format(fields=rules, container=PINNED))
    (part,) = request.spec.sets
    assert [str(rule) for rule in part.pod.scheduling.alternatives[0]] == ["zone=z"]


def test_a_port_of_the_node_is_taken_once(load):
    from l2rtui.backends.kubernetes.actions.capacity_checks import check_host_ports

    text = (
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: r}\n"
        "spec: {replicas: 3, template: {spec: {containers: "
        "[{name: c, image: i, ports: [{containerPort: 80, hostPort: 8080}], "
        "env: [{name: NVIDIA_VISIBLE_DEVICES, value: '0'}]}]}}}\n"
    )
    request = load(text)
    assert "each pod takes ports of its node (c: 8080/TCP)" in said(request)
    crowded, apart = (planned(request.spec, NUMBERS, pins) for pins in ("phortx1/0-2", "phortx1/0,phortx2/0"))
    assert any(item.severity is Severity.REFUSAL for item in check_host_ports(crowded, objects(crowded)))
    assert (
        "3 pods are to take port 8080/TCP of phortx1"
        in next(iter(check_host_ports(crowded, objects(crowded)))).sentence
    )
    assert apart


def test_init_containers_get_the_gpu_of_the_slot(load):
    fields = "initContainers: [{name: warm, image: i, env: [{name: NVIDIA_VISIBLE_DEVICES, value: '0'}]}]"
    (pod,) = pods(load(POD.format(fields=fields, container=PINNED)))
    for container in (*pod["initContainers"], *pod["containers"]):
        assert env(container)["NVIDIA_VISIBLE_DEVICES"] == "3"
        assert [item["name"] for item in container["env"]].count("NVIDIA_VISIBLE_DEVICES") == 1


# --- Jobs: oracle-quickstart/oci-hpc-oke, kubernetes-sigs/jobset, ThalesGroup/ConceptBERT ------------------------
INDEXED = """\
apiVersion: batch/v1
kind: Job
metadata: {name: indexed, namespace: team-a}
spec:
  backoffLimit: 3
  activeDeadlineSeconds: 3600
  ttlSecondsAfterFinished: 600
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: train, image: "pt:1", command: [sh, -c, "torchrun --node_rank=$JOB_COMPLETION_INDEX train.py"]}
"""


def test_fields_of_a_job_are_kept_or_named(load):
    request = load(INDEXED)
    jobs = [item for item in objects(planned(request.spec, NUMBERS)) if item["kind"] == "Job"]
    assert [(job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) for job in jobs] == [(3, 3600)] * 2
    templates = [job["spec"]["template"]["spec"] for job in jobs]
    assert [env(pod["containers"][0])["JOB_COMPLETION_INDEX"] for pod in templates] == ["0", "1"]
    assert [pod["hostname"] for pod in templates] == ["indexed-0", "indexed-1"]
    for words in ("namespace: team-a", "ttlSecondsAfterFinished: 600", "completionMode: Indexed, completions: 2"):
        assert words in said(request)


def test_a_job_set_becomes_sets_with_its_host_names(load):
    text = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: pt}
spec:
  failurePolicy: {maxRestarts: 4}
  replicatedJobs:
  - name: leader
    template: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i, command: [lead]}]}}}}
  - name: workers
    replicas: 2
    template:
      spec:
        parallelism: 2
        completions: 2
        template:
          spec:
            restartPolicy: Never
            containers: [{name: c, image: i, command: [t], env: [{name: MASTER_ADDR, value: pt-leader-0-0.pt}]}]
"""
    request = load(text)
    assert request.spec.kind is Kind.JOB
    assert [(part.name, part.replicas, part.stable) for part in request.spec.sets] == [
        ("leader", 1, True),
        ("workers", 4, True),
    ]
    assert "spec.failurePolicy.maxRestarts: 4" in said(request)
    seeded = objects(planned(with_seeds(request.spec, (1,)), NUMBERS))
    service = next(item for item in seeded if item["kind"] == "Service")
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == ("pt-s1-pt", "None")
    assert set(service["spec"]["selector"]) == {"l2rtui.io/run-id"}
    templates = [item["spec"]["template"] for item in seeded if item["kind"] == "Job"]
    hosts = [item["spec"]["hostname"] for item in templates]
    assert hosts == ["pt-leader-0-0", "pt-workers-0-0", "pt-workers-0-1", "pt-workers-1-0", "pt-workers-1-1"]
    assert {item["spec"]["subdomain"] for item in templates} == {"pt-s1-pt"}
    assert env(templates[-1]["spec"]["containers"][0])["MASTER_ADDR"] == "pt-leader-0-0.pt-s1-pt"
    assert env(templates[-1]["spec"]["containers"][0])["JOB_COMPLETION_INDEX"] == "1"
    assert templates[-1]["metadata"]["annotations"]["jobset.sigs.k8s.io/job-index"] == "1"


QUEUED = "{name: q, labels: {kueue.x-k8s.io/queue-name: team, kueue.x-k8s.io/pod-group-name: theirs}}"
PLAIN = "{restartPolicy: Never, containers: [{name: c, image: i, command: [a]}]}"
JOB_SET = (
    f"apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {QUEUED}\n"
    f"spec: {{replicatedJobs: [{{name: a, template: {{spec: {{template: {{spec: {PLAIN}}}}}}}}}]}}\n"
)


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        (f"apiVersion: v1\nkind: Pod\nmetadata: {QUEUED}\nspec: {PLAIN}\n", Queue(QueueSystem.KUEUE, "team")),
        (JOB_SET, Queue(QueueSystem.JOBSET, "team")),
    ],
)
def test_the_queue_of_kueue_is_that_of_the_run(load, text, queue):
    request = load(text)
    assert request.spec.queue == queue
    assert f"becomes `queue: {{by: {queue.by}, name: team}}`" in said(request)
    made = json.dumps(objects(planned(request.spec, NUMBERS)))
    assert "team" in made
    assert "theirs" not in made


def test_a_run_waits_in_one_queue(load):
    pods = [
        f"apiVersion: v1\nkind: Pod\nmetadata: {QUEUED.replace('team', team)}\nspec: {PLAIN}\n" for team in "ab"
    ]
    request = load("---\n".join(pods))
    assert request.spec.queue == Queue(QueueSystem.KUEUE, "a")
    assert "its queue b is left out: all pods of a run wait in a" in said(request)


# --- addresses: pytorch/elastic examples/kubernetes/native ------------------------------------------------------
ETCD = """\
apiVersion: v1
kind: Service
metadata: {name: rdzv}
spec: {ports: [{port: 2379}], selector: {app: rdzv}}
---
apiVersion: v1
kind: Pod
metadata: {name: rdzv, labels: {app: rdzv}}
spec: {containers: [{name: c, image: "etcd:1", command: [etcd, --advertise-client-urls, "http://0.0.0.0:2379"]}]}
"""
WORKERS = """\
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: workers}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: w}}}}
  template:
    metadata: {{labels: {{app: w}}}}
    spec: {{containers: [{{name: c, image: "te:1", {fields}}}]}}
"""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("env: [{name: RDZV_ENDPOINT, value: 'rdzv:2379'}]", "'job-rdzv:2379'"),
        ("env: [{name: RDZV_HOST, value: rdzv}]", "'job-rdzv'"),
        ("env: [{name: URL, value: 'http://rdzv/v2'}]", "'http://job-rdzv/v2'"),
        ("env: [{name: A, value: 'rdzv.default.svc.cluster.local:2379'}]", "'job-rdzv:2379'"),
        ("args: [--rdzv_endpoint, 'rdzv:2379']", "'job-rdzv:2379'"),
        ("args: [--host, rdzv]", "'job-rdzv'"),
        ("args: [--master_addr=rdzv]", "'--master_addr=job-rdzv'"),
        ("command: [sh, -c, 'until nc -z rdzv:2379; do sleep 1; done']", "job-rdzv:2379;"),
        ("livenessProbe: {httpGet: {host: rdzv, port: 2379}}", "'host': 'job-rdzv'"),
        ("readinessProbe: {exec: {command: [curl, 'http://rdzv:2379/health']}}", "'http://job-rdzv:2379/health'"),
    ],
)
def test_an_address_follows_its_service(load, fields, expected):
    request = load(ETCD + WORKERS.format(fields=fields))
    workers = pods(request, "")[1]
    assert expected in str(workers["containers"])
    assert "the address of the Service rdzv becomes that of the run's own" in said(request)


@pytest.mark.parametrize(
    "fields",
    [
        "command: [sh, -c, 'echo $RDZV_SERVICE_HOST']",
        "args: [rdzv]",
        "env: [{name: GROUP, value: rdzv}]",
        "command: [sh, -c, 'ping rdzv']",
    ],
)
def test_a_name_that_may_be_any_word_is_left_and_named(load, fields):
    request = load(ETCD + WORKERS.format(fields=fields))
    assert "job-rdzv" not in str([{**item, "env": []} for item in pods(request, "")[1]["containers"]])
    assert "names the Service rdzv, which has another name in each run" in said(request)


@pytest.mark.parametrize(
    "fields", ["command: [python, rdzv.py]", "command: [/opt/rdzv/run]", "args: [--x=my-rdzv:1]"]
)
def test_a_file_or_another_name_is_no_address(load, fields):
    request = load(ETCD + WORKERS.format(fields=fields))
    assert "rdzv, which" not in said(request)
    assert "becomes that of the run's own" not in said(request)


def test_a_run_named_like_its_service_keeps_the_address_that_other_files_know(load):
    request = load(ETCD, "rdzv.yaml")
    made = objects(planned(request.spec, NUMBERS))
    assert [item["metadata"]["name"] for item in made if item["kind"] == "Service"] == ["rdzv"]
    other = load(
        POD.format(
            fields="restartPolicy: Never", container=PINNED.replace("'0'", "'0'}, {name: E, value: 'rdzv:2379'")
        )
    )
    assert "c: env E names rdzv, of which this file has no Service" in said(other)


def test_workers_with_a_service_each_are_peers(load):
    part = (
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: imagenet-worker-{0}, labels: {{worker: '{0}'}}}}\n"
        "spec: {{containers: [{{name: c, image: i}}]}}\n---\n"
        "apiVersion: v1\nkind: Service\nmetadata: {{name: imagenet-worker-{0}}}\n"
        "spec: {{selector: {{worker: '{0}'}}, clusterIP: None}}\n"
    )
    spec = load("---\n".join(part.format(number) for number in (1, 2)), "imagenet.yaml").spec
    assert [part.name for part in spec.sets] == ["worker-1", "worker-2"]
    assert spec.kind is Kind.JOB


# --- devices ----------------------------------------------------------------------------------------------------
def container(resources, variables=""):
    return f"{{name: c, image: i, command: [a], env: [{variables}], resources: {{limits: {{{resources}}}}}}}"


@pytest.mark.parametrize(
    "resource",
    [
        "aliyun.com/gpu-mem",
        "tencent.com/vcuda-core",
        "example.com/npu",
        "enflame.com/vgcu",
        "kunlunxin.com/vxpu",
        "qualcomm.com/qaic",
        "tenstorrent.com/n300",
    ],
)
def test_a_device_that_is_not_counted_keeps_its_request_and_its_variables(load, resource):
    request = load(POD.format(fields="restartPolicy: Never", container=container(f"{resource}: 1")))
    (pod,) = pods(request, "")
    assert pod["containers"][0]["resources"]["limits"] == {resource: 1}
    assert not {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & set(env(pod["containers"][0]))
    assert f"it asks for {resource}, which no slot counts" in said(request)


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/mig-1g.5gb", "amd.com/gpu", "nvidia.com/a100", "volcano.sh/vgpu-number", "aws.amazon.com/neuron"],
)
def test_a_device_of_a_plugin_is_the_device_of_the_pod(load, resource):
    (part,) = load(POD.format(fields="restartPolicy: Never", container=container(f"{resource}: 1"))).spec.sets
    assert (part.pod.device, part.pod.binding, part.slots) == (resource, Binding.DEVICE_PLUGIN, 1)


def test_a_variable_of_cuda_beside_a_request_counts_among_the_pods_own_devices(load):
    text = POD.format(
        fields="restartPolicy: Never",
        container=container("nvidia.com/gpu: 1", "{name: CUDA_VISIBLE_DEVICES, value: '0'}"),
    )
    request = load(text)
    (pod,) = pods(request, "")
    assert request.spec.sets[0].pod.binding is Binding.DEVICE_PLUGIN
    assert env(pod["containers"][0])["CUDA_VISIBLE_DEVICES"] == "0"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}


# --- exported objects -------------------------------------------------------------------------------------------
def test_an_exported_pod_loses_what_the_server_has_set(load):
    text = """\
apiVersion: v1
kind: Pod
metadata:
  name: train-abcde
  generateName: train-
  uid: 1-2
  resourceVersion: "7"
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: train, pod-template-hash: abcde}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", team: rl}
  ownerReferences: [{kind: ReplicaSet, name: train, uid: 1-1, apiVersion: apps/v1}]
spec:
  nodeName: g-1
  priority: 0
  containers:
  - name: c
    image: i
    volumeMounts: [{name: kube-api-access-x2x4z, mountPath: /var/run/s}, {name: d, mountPath: /d}]
  volumes: [{name: kube-api-access-x2x4z, projected: {sources: []}}, {name: d, emptyDir: {}}]
status: {phase: Running, podIP: 10.0.0.1}
"""
    request = load(text)
    (pod,) = pods(request, "")
    assert not {"nodeName", "priority"} & set(pod)
    assert [volume["name"] for volume in pod["volumes"]] == ["d"]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["d"]
    made = str(objects(planned(request.spec, NUMBERS))[-1])
    assert "pod-template-hash" not in made
    assert "last-applied" not in made
    assert "'team': 'rl'" in made
    assert "left out, since the API server sets them: status, metadata.generateName" in said(request)


# --- pytorch/elastic, examples/kubernetes/native: pods that find each other by their own names -------------------
NAMED_PODS = """\
apiVersion: v1
kind: Pod
metadata: {name: w-1, labels: {job-name: imagenet, worker: "1"}}
spec: {containers: [{name: c, image: i, command: [a], resources: {limits: {nvidia.com/gpu: 1}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: w-1}
spec: {selector: {job-name: imagenet, worker: "1"}, clusterIP: None}
"""


def test_a_pod_has_the_host_name_by_which_its_own_service_names_it(load):
    request = load(NAMED_PODS)
    made = objects(planned(with_seeds(request.spec, ()), NUMBERS, "phortx1/3"))
    (service,) = [item["metadata"]["name"] for item in made if item["kind"] == "Service"]
    assert [pod["hostname"] for pod in pods(request)] == [service]
    assert "the host name of its pod is the new name of the Service" in said(request)
    with_ip = load(NAMED_PODS.replace(", clusterIP: None", ", ports: [{port: 80}]"))
    assert "hostname" not in pods(with_ip)[0]


# --- labels in a node selector: examples of HAMi, gpu-operator, AWS and GKE choose GPUs by them -------------------
def test_other_labels_of_a_node_selector_stay_and_choose_slots(load):
    fields = "nodeSelector: {disk: ssd, kubernetes.io/hostname: node-b, rack: '{{NODE}}'}"
    request = load(POD.format(fields=fields, container=PINNED))
    (part,) = request.spec.sets
    (pod,) = pods(request)
    assert "in place of its node selector (kubernetes.io/hostname: node-b, rack: {{NODE}})" in said(request)
    assert pod["nodeSelector"] == {"disk": "ssd", "kubernetes.io/hostname": "phortx1"}
    assert [str(rule) for rule in part.pod.scheduling.alternatives[0]] == ["disk=ssd"]
    reason = obstacle(part, "n", Node("n", labels=(("disk", "hdd"),)))
    assert reason is not None
    assert "no label disk=ssd" in reason.reason


def test_a_node_of_another_operating_system_is_open_only_to_sets_that_name_it(load):
    windows = Node("n", labels=(("kubernetes.io/os", "windows"),))
    plain, own = (
        load(POD.format(fields=fields, container=PINNED)).spec.sets[0]
        for fields in ("hostPID: true", "nodeSelector: {kubernetes.io/os: windows}")
    )
    reason = obstacle(plain, "n", windows)
    assert reason is not None
    assert "the operating system windows" in reason.reason
    assert obstacle(own, "n", windows) is None


def test_a_device_on_closed_nodes_alone_is_said_to_be_there(load):
    fields = "nodeSelector: {disk: ssd}"
    container = "{name: c, image: i, command: [a], resources: {limits: {nvidia.com/gpu: 1}}}"
    spec = load(POD.format(fields=fields, container=container)).spec
    gpus = (Gpu("n", 0, slots=1),)
    node = Node("n", gpus, labels=(("disk", "hdd"),), resources=(Resource("nvidia.com/gpu", 1, 1),))
    (conflict,) = place([spec], build_ledger([node], ())).conflicts
    assert "no node offers it" not in conflict
    assert "node n has no label disk=ssd" in conflict
