"""Elastic jobs, parameter servers and workshops on a cluster: real containers of our image, verified at the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import eventually, kubectl
from tests.cluster.kinds import NODE, SECONDS, claim, hurt, left, pods

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

HERE = {"pod": {"node_selector": {"kubernetes.io/hostname": NODE}}}
CHART = """\
# Default values for distributed-tensorflow.
worker:
  number: 2
  podManagementPolicy: Parallel
  image:
    repository: dysproz/distributed-tf
    tag: 1.7.0
    pullPolicy: IfNotPresent
  port: 9000
  resources: {requests: {cpu: 200m}}
ps:
  number: 2
  podManagementPolicy: Parallel
  image:
    repository: dysproz/distributed-tf
    tag: 1.7.0
    pullPolicy: IfNotPresent
  port: 8000
  resources: {requests: {cpu: 200m}}
# optimize for training
hyperparams:
  batchsize: 20
  learningrate: 0.001
  trainsteps: 0
volumes:
- name: logs
  hostPath: {path: FOLDER}
volumeMounts:
- name: logs
  mountPath: /tmp/mnist-log
"""


def metrics(cli, run):
    done = cli.call("metrics", run, "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def completed(cli, run):
    return [one for one in cli.json("runs") if one["run"] == run and one["complete"]]


def phases(namespace, run):
    return {
        name: (pod["status"]["phase"], sum(one["restartCount"] for one in pod["status"]["containerStatuses"]))
        for name, pod in pods(namespace, run).items()
    }


@pytest.fixture
def volume(namespace, tmp_path_factory):
    with claim(namespace, "l2r-data", tmp_path_factory.mktemp("volume")) as folder:
        yield folder


def test_an_elastic_job_goes_on_whatever_becomes_of_its_nodes(cli, namespace, image, volume, tmp_path):
    spec = {
        "kind": "elastic",
        "name": "digits",
        "image": image,
        "nodes": {
            "replicas": 2,
            "min": 2,  # otherwise the remaining one might finish before its pod has a successor
            "max": 2,
            "command": ["l2r-runtime", "classify", "train", "--data", "digits", "--epochs", "12"],
            "resources": {"cpu": 0.4},
        },
        "pod": {**HERE["pod"], "shm": "64Mi", "mounts": [{"path": "/l2r", "claim": "l2r-data"}]},
        "placement": {"on": f"{NODE}/6-7"},
    }
    spec["nodes"]["command"] += ["--step-seconds", "0.1"]
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    cli.run("launch", "-f", str(path), "--yes")

    refused = cli.call("scale", "digits/nodes", "3")
    assert (refused.returncode, "launched for 2 replicas" in refused.stderr) == (3, True)
    seen = hurt(cli, "digits", volume, (2,))
    assert [look.nodes for _, look in seen] == [2, 2]
    assert seen[1][1].loss < 2.3, "a loss of someone who knows nothing"
    eventually("its end", lambda: completed(cli, "digits"), SECONDS)
    eventually(
        "the rendezvous' end", lambda: {one for one, _ in phases(namespace, "digits").values()} == {"Succeeded"}
    )
    rows = metrics(cli, "digits")["nodes"]
    assert {row["state"] for row in rows} == {"finished"}
    receipt = cli.json("destroy", "digits", "--yes")
    assert (receipt["left"], left(namespace)) == (0, [])
    assert list(volume.glob("checkpoints/*.json")), "snapshots outlive the run"


def test_without_a_volume_the_first_nodes_pod_is_lost_and_no_progress_with_it(cli, namespace, image, tmp_path):
    spec = {
        "kind": "elastic",
        "name": "alone",
        "image": image,
        "nodes": {
            "replicas": 2,
            "max": 2,
            "command": ["l2r-runtime", "classify", "train", "--data", "digits", "--epochs", "2000"],
            "resources": {"cpu": 0.4},
        },
        "pod": {**HERE["pod"], "shm": "64Mi"},
        "placement": {"on": f"{NODE}/6-7"},
    }
    spec["nodes"]["command"] += ["--step-seconds", "0.1"]
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    cli.run("launch", "-f", str(path), "--yes")

    def far(step):
        rows = metrics(cli, "alone").get("nodes", [])
        is_there = len(rows) == 2 and {row["world_size"] for row in rows} == {2}
        return rows if is_there and all((row["step"] or 0) > step for row in rows) else None

    rows = eventually("training of both", lambda: far(100), SECONDS)
    reached = min(row["step"] for row in rows)
    first = next(row["pod"] for row in rows if row["rank"] == 0)
    before = set(pods(namespace, "alone", "worker"))
    kubectl("-n", namespace, "delete", "pod", first, "--force", "--grace-period=0")

    def substitute():
        (new,) = (set(pods(namespace, "alone", "worker")) - before) or (None,)
        text = kubectl("-n", namespace, "logs", new, check=False) if new else ""
        records = [json.loads(line) for line in text.splitlines() if line.startswith('{"l2r":"elastic"')]
        return next(((record, text) for record in records if "resumed_step" in record), None)

    record, text = eventually("training of the substitute", substitute, SECONDS)
    (survivor,) = before - {first}
    assert record["resumed_step"] >= reached - 20, "a snapshot is written every 20 steps"
    assert record["resumed_from"] == survivor
    assert f"of node {survivor}" in text
    assert (cli.json("destroy", "alone", "--yes")["left"], left(namespace)) == (0, [])


def test_the_old_charts_values_train_and_end(cli, namespace, image, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for part in (folder, *folder.parents[:2]):
        part.chmod(0o777)
    values = folder / "values.yml"
    values.write_text(CHART.replace("FOLDER", str(folder)))
    said = cli.call(
        *("launch", "-f", str(values), "--name", "mnist", "--yes", "--set", f"image={image}"),
        *(
            "--set",
            "hyperparams.trainsteps=200",
            "--set",
            f"pod={yaml.safe_dump(HERE['pod'], default_flow_style=True)}",
        ),
    )
    assert said.returncode == 0, said.stderr

    eventually("its end", lambda: completed(cli, "mnist"), SECONDS)
    eventually("the servers' end", lambda: {one for one, _ in phases(namespace, "mnist").values()} == {"Succeeded"})
    found = phases(namespace, "mnist")
    assert sorted(name.rpartition("-")[0] for name in found) == [
        "mnist-ps-0", "mnist-ps-1", "mnist-worker-0", "mnist-worker-1",
    ]  # fmt: skip
    assert {restarts for _, restarts in found.values()} == {0}
    standing = metrics(cli, "mnist")
    workers = [one for one in standing["peers"] if one["role"] == "worker"]
    assert [one["global_step"] for one in workers] == [200, 200]
    assert sum(one["local_step"] for one in workers) >= 200  # a worker may join when the steps are done
    assert standing["evaluation"]["accuracy"] > 0.8
    receipt = cli.json("destroy", "mnist", "--yes")
    assert (receipt["left"], left(namespace)) == (0, [])
    assert {path.name for path in folder.glob("*.log")} >= {"ps-0.log", "worker-1.log"}, "logs outlive the pods"


def test_a_workshop_is_killed_in_the_middle_and_goes_on(cli, namespace, image, volume):
    words = [
        *("--set", f"image={image}", "--set", "pod.mounts=[{path: /l2r, claim: l2r-data}]"),
        *("--set", f"pod.node_selector={yaml.safe_dump(HERE['pod']['node_selector'], default_flow_style=True)}"),
        *("--set", "steps.train.nodes.replicas=1", "--on", f"{NODE}/6"),
        # A pod that requests no CPU gets almost none on a busy machine.
        *("--set", "steps.data.resources.cpu=0.3", "--set", "steps.train.nodes.resources.cpu=0.5"),
        *("--set", "steps.evaluate.resources.cpu=0.3"),
        *(
            "--set",
            "steps.train.nodes.command=[l2r-runtime, classify, train, --epochs, '10', --step-seconds, '0.05']",
        ),
    ]
    cli.run("launch", "-f", str(Path("manifests/workshop.yaml")), *words, "--yes")
    eventually("a snapshot", lambda: list(volume.glob("checkpoints/*.json")), SECONDS)
    cli.run("destroy", "workshop", "--yes")
    assert left(namespace) == []
    assert not (volume / "steps" / "train.done").exists()

    cli.run("relaunch", "workshop", "--on", f"{NODE}/6", "--yes")
    done = eventually("the accuracy", lambda: metrics(cli, "workshop").get("evaluation"), SECONDS)
    assert done["accuracy"] > 0.9
    assert len(done["classes"]) == 10
    states = {one["step"]: one["state"] for one in metrics(cli, "workshop")["steps"]}
    assert states["data"] == "skipped"
    assert "resum" in kubectl("-n", namespace, "logs", "-l", "l2rtui.io/set=train", "--tail=-1").lower()
    assert cli.json("destroy", "workshop", "--yes")["left"] == 0
    assert left(namespace) == []
