"""The main job on a cluster: real containers from our own image, a volume that outlives them, verified at the
end.
"""

from __future__ import annotations

import json

import pytest

from tests.cluster.conftest import NODE_IMAGE, eventually, kubectl, kubectl_json
from tests.e2e.test_own_methods import RUN as OWN_RUN
from tests.e2e.test_own_methods import example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUN = "racing-sac"
KINDS = "pods,services,replicasets,jobs,statefulsets,configmaps,secrets,leases"
SPEC = f"""\
kind: learner-workers
name: {RUN}
image: {NODE_IMAGE}
pod:
  mounts: [{{path: /l2r, claim: l2r-data}}]
learner:
  resources: {{cpu: 0.5}}
workers:
  - {{name: w, replicas: 2, resources: {{cpu: 0.1}}}}
evaluator: {{name: eval, resources: {{cpu: 0.1}}}}
train: {{environment: racing, checkpoint_seconds: 2, warmup_steps: 600, eval_episodes: 2}}
placement: {{on: phortx0/0-1}}
"""


def objects_of(namespace):
    return {
        (item["kind"], item["metadata"]["name"]) for item in kubectl_json("-n", namespace, "get", KINDS)["items"]
    }


def metrics(cli, run=RUN):
    done = cli.call("metrics", run, "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def grown(cli, before):
    now = metrics(cli)
    return now if now and all(now[key] > value for key, value in before.items()) else None


def counters(found):
    return {key: found[key] for key in ("env_steps", "updates", "policy_version")}


def test_it_trains_survives_its_learner_and_leaves_nothing(cli, namespace, image, volume, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    before = objects_of(namespace)

    launched = cli.json("launch", "-f", str(spec), "--yes", "--wait")
    assert (launched["run"], {pod["node"] for pod in launched["pods"]}) == (RUN, {"phortx0"})
    assert [pod["phase"] for pod in launched["pods"]] == ["Running"] * 4
    held = {slot["id"]: slot["set"] for slot in cli.json("slots") if slot["run"] == RUN}
    assert held == {"phortx0/0.0": "learner", "phortx0/0.1": "w", "phortx0/0.2": "w", "phortx0/0.3": "eval"}
    # Workers know the learner only by the name of its Service.
    endpoints = {
        variable["value"]
        for pod in kubectl_json("-n", namespace, "get", "pods", "-l", "l2rtui.io/role=worker")["items"]
        for variable in pod["spec"]["containers"][0]["env"]
        if variable["name"] == "L2R_ENDPOINT"
    }
    assert endpoints == {f"tcp://{RUN}-learner:5555"}

    first = eventually("the first policy", lambda: grown(cli, {"updates": 0, "policy_version": 0}), 180)
    eventually("every counter rising", lambda: grown(cli, counters(first)))
    assert '"l2r":"learner"' in cli.run("logs", f"{RUN}/learner", "--tail", "50")
    eventually("a checkpoint", lambda: list(volume.glob("checkpoints/ckpt-*.json")))

    (learner,) = [pod for pod in cli.json("pods") if pod["set"] == "learner"]
    kubectl("-n", namespace, "delete", "pod", learner["pod"], "--grace-period=1", "--wait=false")
    again = eventually(
        "another learner",
        lambda: [
            pod
            for pod in cli.json("pods")
            if pod["set"] == "learner" and pod["ready"] and pod["uid"] != learner["uid"]
        ],
    )
    assert [pod["slots"] for pod in again] == [["phortx0/0.0"]]
    eventually("its checkpoint", lambda: "resumed ckpt-" in cli.run("logs", f"{RUN}/learner"))
    later = eventually("its numbers", lambda: grown(cli, {"updates": first["updates"]}))
    eventually("training to go on", lambda: grown(cli, counters(later)), 120)

    receipt = cli.json("destroy", RUN, "--yes")
    assert (receipt["run"], receipt["left"], receipt["leftovers"]) == (RUN, 0, [])
    assert receipt["kept"] == "claim l2r-data (/l2r)"
    assert objects_of(namespace) == before
    assert list(volume.glob("checkpoints/ckpt-*.safetensors")), "results outlive the run"
    assert cli.json("leaks") == []


def test_the_method_of_the_page_trains_as_it_stands_there(cli, namespace, image, tmp_path):
    (tmp_path / "reinforce.py").write_text(example("python"))
    spec = tmp_path / "mine.yaml"
    spec.write_text(example("yaml"))
    small = ("learner.resources.cpu=0.5", "train.segment_steps=16", "train.method.batch_steps=128")
    options = [part for each in (f"image={NODE_IMAGE}", *small) for part in ("--set", each)]
    cli.json("launch", "-f", str(spec), *options, "--yes", "--wait")
    eventually("updates by the own method", lambda: metrics(cli, OWN_RUN).get("updates", 0) >= 5, 180)
    assert '"policy_loss":' in cli.run("logs", f"{OWN_RUN}/learner", "--tail", "20").replace(" ", "")
    receipt = cli.json("destroy", OWN_RUN, "--yes")
    assert (receipt["left"], receipt["leftovers"]) == (0, [])
