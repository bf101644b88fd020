"""Kinds other than learner and workers as Kubernetes objects: stable names, attached programs."""

from __future__ import annotations

import json

import pytest

from l2rtui.backends.kubernetes.manifests import render
from l2rtui.backends.kubernetes.manifests.podspec import ServerFacts
from l2rtui.domain.ledger import build_ledger
from l2rtui.domain.node import Gpu, Node
from l2rtui.domain.placement import PlacementPolicy, place
from l2rtui.domain.plan import plan_launch
from l2rtui.services.spec import spec_file

NODES = {"n1": Node("n1", tuple(Gpu("n1", index, slots=2) for index in range(2)))}


@pytest.fixture
def objects(tmp_path):
    def _objects(text):
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        spec = spec_file.load(str(path)).spec
        placement = place([spec], build_ledger(NODES.values(), []), policy=PlacementPolicy.PACK)
        plan = plan_launch([spec], placement, NODES, owner="anna", uids=["u" * 32])
        server = ServerFacts()
        made = [
            item for run in plan.runs for item in render.run_objects(run, namespace="ml", token="t", server=server)
        ]
        planned = [(step.kind, step.name) for step in render.planned_steps(plan)]
        assert planned == [(item["kind"], item["metadata"]["name"]) for item in made], (
            "what is planned is what is made"
        )
        return {(item["kind"], item["metadata"]["name"]): item for item in made}

    return _objects


def pod(manifest):
    return manifest["spec"]["template"]["spec"]


def env(manifest):
    return {
        item["name"]: item.get("value", item.get("valueFrom")) for item in pod(manifest)["containers"][0]["env"]
    }


def test_each_server_and_worker_is_a_job_with_a_name_of_its_own(objects):
    made = objects("""\
kind: parameter-server
name: r
image: i
servers: {replicas: 2}
workers: {replicas: 2, port: 3000}
train: {learning_rate: 0.1, train_steps: 200, deep: [1]}
""")

    service = made["Service", "r-peers"]["spec"]
    assert (service["clusterIP"], [item["port"] for item in service["ports"]]) == ("None", [2222, 3000])
    jobs = {name: item for (kind, name), item in made.items() if kind == "Job"}
    assert list(jobs) == ["r-ps-0", "r-ps-1", "r-worker-0", "r-worker-1"]
    for name, item in jobs.items():
        assert (item["spec"]["parallelism"], item["spec"]["completions"]) == (1, 1)
        assert (pod(item)["hostname"], pod(item)["subdomain"]) == (name, "r-peers")
        assert service["selector"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
    variables = env(jobs["r-worker-1"])
    assert json.loads(variables["L2R_PEERS"]) == {
        "ps": ["tcp://r-ps-0.r-peers:2222", "tcp://r-ps-1.r-peers:2222"],
        "worker": ["tcp://r-worker-0.r-peers:3000", "tcp://r-worker-1.r-peers:3000"],
    }
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    plain = ("JOB_NAME", "TASK_INDEX", "PS_HOSTS", "POD_NAME", "LEARNING_RATE", "TRAIN_STEPS", "L2R_INDEX")
    assert [variables[name] for name in plain] == [
        "worker", "1", "r-ps-0.r-peers:2222,r-ps-1.r-peers:2222", "r-worker-1", "0.1", "200", "1",
    ]  # fmt: skip
    assert "DEEP" not in variables
    assert variables["L2R_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_elastic_nodes_are_work_queues_and_share_no_index(objects, tmp_path):
    (tmp_path / "t.py").write_text("print()\n")
    made = objects("""\
kind: elastic
name: r
image: i
nodes: {replicas: 3, max: 4, program: t.py}
pod: {shm: 1Gi}
""")

    jobs = {name: item["spec"] for (kind, name), item in made.items() if kind == "Job"}
    assert {name: (item["parallelism"], item.get("completions")) for name, item in jobs.items()} == {
        "r-rdzv-0": (1, 1),
        "r-nodes": (2, None),  # two slots of one GPU, one of the next
        "r-nodes-g1": (1, None),
    }
    assert {pod(made["Job", name])["restartPolicy"] for name in jobs} == {"OnFailure"}
    variables = env(made["Job", "r-nodes"])
    assert "L2R_INDEX" not in variables
    assert "L2R_INDEX" not in env(made["Job", "r-nodes-g1"])
    assert json.loads(variables["L2R_PEERS"]) == {"rdzv": ["tcp://r-rdzv-0.r-peers:29400"]}
    assert made["ConfigMap", "l2r-r"]["data"]["program.nodes"] == "print()\n"
    nodes = pod(made["Job", "r-nodes"])
    assert nodes["containers"][0]["command"][-2:] == ["python", "/l2r-program/t.py"]
    source = {"name": "l2r-r", "items": [{"key": "program.nodes", "path": "t.py"}]}
    assert {"name": "program", "configMap": source} in nodes["volumes"]
    mounts = {item["mountPath"]: item for item in nodes["containers"][0]["volumeMounts"]}
    assert mounts["/l2r-program"]["readOnly"]
    assert "/dev/shm" in mounts
    assert "program" not in [item["name"] for item in pod(made["Job", "r-rdzv-0"])["volumes"]]


def test_a_program_in_s3_is_fetched_before_the_container_starts(objects):
    made = objects("""\
kind: job
name: r
image: i
job: {program: "s3://bucket/t.py", resources: {cpu: 1}}
pod: {secrets: [aws]}
""")

    spec = pod(made["Job", "r-job"])
    (first,) = spec["initContainers"]
    assert first["command"] == ["l2r-runtime", "fetch", "s3://bucket/t.py", "/l2r-program/t.py"]
    assert first["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert first["securityContext"] == spec["containers"][0]["securityContext"]
    assert {"name": "program", "mountPath": "/l2r-program"} in first["volumeMounts"]
    assert {"name": "program", "mountPath": "/l2r-program", "readOnly": True} in spec["containers"][0][
        "volumeMounts"
    ]


def test_steps_are_jobs_each_replica_with_its_index(objects):
    made = objects("""\
kind: job
name: r
image: i
steps:
  - {name: a, command: [a], replicas: 2}
  - {name: b, nodes: {replicas: 1}}
""")

    jobs = [name for kind, name in made if kind == "Job"]
    assert jobs == ["r-a-0", "r-a-1", "r-b-rdzv-0", "r-b"]
    assert [env(made["Job", name]).get("L2R_INDEX") for name in jobs] == ["0", "1", "0", None]
    assert made["Job", "r-a-1"]["spec"]["backoffLimit"] == 0
    assert "hostname" not in pod(made["Job", "r-a-0"])
    assert pod(made["Job", "r-b-rdzv-0"])["subdomain"] == "r-peers"


def test_each_node_of_a_learner_is_a_job_and_the_service_leads_to_the_first(objects):
    made = objects("""\
kind: learner-workers
name: r
image: i
learner: {nodes: 2, gpus: 1}
workers: [{name: w, pod: {binding: cpu}}]
train: {environment: racing}
""")
    jobs = {name: item for (kind, name), item in made.items() if kind == "Job"}
    learners = [jobs["r-learner-0"], jobs["r-learner-1"]]
    for number, item in enumerate(learners):
        variables = env(item)
        assert (variables["L2R_INDEX"], variables["L2R_SET"]) == (str(number), "learner")
        assert json.loads(variables["L2R_PEERS"]) == {
            "learner": ["tcp://r-learner-0.r-peers:29400", "tcp://r-learner-1.r-peers:29400"]
        }
        assert json.loads(variables["L2R_CONFIG"])["devices"] == 2
        assert pod(item)["hostname"] == f"r-learner-{number}"
        assert (item["spec"]["parallelism"], item["spec"]["completions"]) == (1, 1)
    templates = [item["spec"]["template"]["metadata"]["labels"] for item in learners]
    selector = made["Service", "r-learner"]["spec"]["selector"]
    assert [selector.items() <= labels.items() for labels in templates] == [True, False], "rank 0 is the learner"
    (worker,) = (item for (kind, name), item in made.items() if name.startswith("r-w"))
    assert env(worker)["L2R_ENDPOINT"] == "tcp://r-learner:5555"
