"""Whole GPUs by count on a real scheduler: several GPUs in a pod, and several workers in a pod with one GPU."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.cluster.conftest import IMAGE, eventually, kubectl_json
from tests.cluster.kinds import NODE, left, pods

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GPU = "nvidia.com/gpu"
HERE = {"node_selector": {"kubernetes.io/hostname": NODE}, "binding": "device-plugin"}
FOUR_GPUS = {
    "kind": "job",
    "name": "wide",
    "image": IMAGE,
    "job": {
        "name": "w",
        "replicas": 2,
        "gpus": 4,
        "restart": "Always",
        "command": ["sh", "-c", "echo up; exec sleep 600"],
        "grace_seconds": 1,
    },
    "pod": HERE,
}
FOUR_WORKERS = {
    "kind": "learner-workers",
    "name": "shared",
    "train": {"environment": "CartPole-v1", "algorithm": "ppo", "device": "cpu", "total_env_steps": 100_000_000},
    "learner": {"slots": 0, "resources": {"cpu": 0.2}, "grace_seconds": 2},
    "workers": [{"replicas": 4, "workers_per_pod": 4, "resources": {"cpu": 0.1}, "grace_seconds": 5, "pod": HERE}],
    "pod": {"node_selector": HERE["node_selector"], "shm": "64Mi"},
}


@pytest.fixture
def launched(cli, tmp_path):
    """Launch a document and return its plan as text."""

    def launch(document):
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(document))
        plan = cli.call("plan", "-f", str(path))
        assert plan.returncode == 0, plan.stderr
        cli.run("launch", "-f", str(path), "--yes")
        return plan.stderr

    return launch


def rows(cli, run, role=None):
    """Rows of a run in the order of their indices."""
    items = [row for row in cli.json("pods") if row["run"] == run and role in (None, row["role"])]
    return sorted(items, key=lambda row: row["index"])


def heard_workers(cli):
    """Return the number of workers in the learner's last record; None before its first."""
    done = cli.call("metrics", "shared", "-o", "json")
    return json.loads(done.stdout)["workers"] if done.returncode == 0 else None


def in_use(cli):
    """Units of the device that pods request on the real node."""
    (node,) = (node for node in cli.json("nodes") if node["node"] == NODE)
    (resource,) = (item for item in node["resources"] if item["resource"] == GPU)
    return resource["allocatable"] - resource["free"]


def test_two_pods_of_four_gpus_fill_a_node(cli, namespace, launched):
    launched(FOUR_GPUS)
    eventually("both pods run", lambda: [row["ready"] for row in rows(cli, "wide")] == [True, True])
    asked = [pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in pods(namespace, "wide").values()]
    assert (asked, in_use(cli)) == (["4", "4"], 8)
    before = {row["uid"] for row in rows(cli, "wide")}
    cli.run("kill", "wide/w/0", "--yes")

    def is_replaced():
        now = [row for row in rows(cli, "wide") if row["ready"]]
        return len(now) == 2 and len(before - {row["uid"] for row in now}) == 1

    eventually("the killed pod has a successor", is_replaced)
    receipt = cli.json("destroy", "wide", "--yes")
    assert (receipt["left"], left(namespace), in_use(cli)) == (0, [], 0)


def test_eight_runs_of_one_gpu_fill_a_node_and_the_ninth_is_refused_with_the_counts(cli, namespace, tmp_path):
    job = {"name": "w", "gpus": 1, "command": ["sleep", "600"], "grace_seconds": 1}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({"kind": "job", "name": "one", "image": IMAGE, "job": job, "pod": HERE}))
    cli.run("launch", "-f", str(path), "--seeds", "0-7", "--yes")
    eventually("all run", lambda: [row["ready"] for row in cli.json("pods")] == [True] * 8)
    assert in_use(cli) == 8
    ninth = cli.call("launch", "-f", str(path), "--name", "ninth", "--yes")
    assert ninth.returncode == 3
    assert f" {GPU} (free for the whole plan: 0 of 8 on {NODE})" in ninth.stderr
    receipts = cli.json("destroy", "experiment/one", "--yes", "--all-matching")
    assert [receipt["left"] for receipt in receipts] == [0] * 8
    assert (left(namespace), in_use(cli)) == ([], 0)


def test_four_workers_share_the_one_gpu_of_their_pod(cli, namespace, image, launched):
    plan = launched({**FOUR_WORKERS, "image": image})
    assert "shared/w: 4 workers share its pod." in plan

    def all_step():
        workers = rows(cli, "shared", "worker")
        return len(workers) == 4 and all(row["ready"] for row in workers) and workers

    before = eventually("four workers run", all_step)
    (pod,) = pods(namespace, "shared", "worker").values()
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {GPU: "1"},
        "requests": {"cpu": "400m", GPU: "1"},
    }
    assert [row["pod"] for row in before] == [f"{pod['metadata']['name']}.{number}" for number in range(4)]
    assert [row["index"] for row in before] == [0, 1, 2, 3]
    assert in_use(cli) == 1
    eventually("the learner has four workers", lambda: heard_workers(cli) == 4)

    def own_records(number):
        log = cli.run("logs", f"shared/w/{number}")
        return [line for line in log.splitlines() if '"l2r":"worker"' in line]

    eventually("each worker has a log of its own", lambda: all(map(own_records, range(4))))
    assert not any(line.startswith("[") for line in cli.run("logs", "shared/w/2").splitlines())

    cli.run("kill", "shared/w/2", "--yes")
    now = eventually("it is started again", lambda: [row["restarts"] for row in all_step() or ()] == [0, 0, 1, 0])
    assert now
    assert [row["uid"] for row in rows(cli, "shared", "worker")] == [row["uid"] for row in before]
    assert list(pods(namespace, "shared", "worker")) == [pod["metadata"]["name"]]
    assert "restart 1" in cli.run("logs", "shared/w/2")
    assert "restart 1" not in cli.run("logs", "shared/w/1")
    status = kubectl_json("-n", namespace, "get", "pod", pod["metadata"]["name"])["status"]
    assert status["containerStatuses"][0]["restartCount"] == 0, "the other three went on"
    eventually("the learner has four workers again", lambda: heard_workers(cli) == 4)

    refused = cli.call("scale", "shared/w", "6")
    assert (refused.returncode, "multiple of 4" in refused.stderr) == (3, True), refused.stderr
    cli.run("scale", "shared/w", "8")
    eventually(
        "eight workers in two pods", lambda: len([r for r in rows(cli, "shared", "worker") if r["ready"]]) == 8
    )
    assert (len(pods(namespace, "shared", "worker")), in_use(cli)) == (2, 2)
    cli.run("scale", "shared/w", "4")
    eventually("four again", lambda: [row["index"] for row in rows(cli, "shared", "worker")] == [0, 1, 2, 3])

    receipt = cli.json("destroy", "shared", "--yes")
    assert (receipt["left"], left(namespace), in_use(cli)) == (0, [], 0)
