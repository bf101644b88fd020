"""Commands of docs/, typed in their order on a cluster: tutorial 2, and pages for users of other systems.

What is replaced is the reader's own: a registry, a volume, the answer to a question, a name.
Stand-in nodes run no program. What a learner and a kubelet would report is set there by annotation and by status.
"""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from tests.cluster.conftest import Cli, eventually, kubectl, kubectl_json
from tests.cluster.kinds import claim, left
from tests.documents import DOCS, ROOT, Reader
from tests.l2rtui.cli.conftest import Terminal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
REGISTRY = os.environ.get("L2R_TEST_REGISTRY", "127.0.0.1:5000")
STAND_INS = "placement: {on: 'phortx1/0-7,phortx2/0-7'}\n"
RECORD = {"l2r": "learner", "workers": 2, "mean_return": 240.0, "eval_return": 250.0, "env_steps_per_second": 900.0}
RECORD |= {"updates_per_second": 9.0, "policy_lag": [0, 1, 2], "device": "cpu"}


def report_learning(namespace: str) -> None:
    """Let the learners on stand-in nodes print the records of a run that learns."""
    line = json.dumps({**RECORD, "time": time.time()}, separators=(",", ":"))[:-1]
    line += ',"env_steps":{n}000,"updates":{n}0,"policy_version":{n}}'
    kubectl("-n", namespace, "annotate", "pods", "-l", "l2rtui.io/role=learner", f"l2r.fake/log-line={line}")


def crash(namespace: str, run: str, index: int) -> None:
    """Report as a kubelet does that the only container of a worker was ended for its memory and waits."""
    selector = f"l2rtui.io/run={run},l2rtui.io/set=w"
    pods = kubectl_json("-n", namespace, "get", "pods", "-l", selector)["items"]
    pod = sorted(pods, key=lambda pod: pod["metadata"]["name"])[index]
    created = pod["metadata"]["creationTimestamp"]
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": created, "finishedAt": created}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}
    for status in pod["status"]["containerStatuses"]:
        status |= {"ready": False, "restartCount": 4, "state": {"waiting": waiting}}
        status["lastState"] = {"terminated": {**ended, "containerID": "containerd://0"}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
    kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod))


def log_in(cli: Cli, words: list[str]) -> None:
    """Type a login with its answers."""
    terminal = Terminal(cli.argv(*words), cli.env)
    try:
        terminal.read_until("ser")
        terminal.type("lab\n")
        terminal.read_until("assword")
        terminal.type("any\n")
        assert terminal.finish() == 0, terminal.text
    finally:
        terminal.close()


def test_every_command_of_the_second_tutorial(cli, namespace, tmp_path):
    cli.env["DOCKER_CONFIG"] = str(tmp_path / "docker-config")
    page = DOCS / "tutorials/lab.md"
    reader = Reader(cli.argv, cli.env, page, tmp_path, {"registry.example": REGISTRY})
    assert "Kubernetes" in reader.types("check")
    assert "phortx1" in reader.types("nodes")
    assert "phortx1/0.0" in reader.types("slots")
    reader.types("owners")
    reader.types("cluster prepare")
    log_in(cli, reader.words("image login"))
    # Containers of this machine reach the index of packages only over its own network.
    assert "sha256:" in reader.types("image build", "--network", "host")
    plan = reader.types("plan")
    assert plan.count("phortx1/") >= 32
    assert plan.count("phortx2/") >= 16
    reader.types("launch", "--timeout", "300")
    assert reader.types("runs").count("Running") == 12
    report_learning(namespace)
    assert reader.types("metrics").count("250") >= 12
    reader.follows("logs", "mean_return")
    crash(namespace, "racing-sac-s1", 1)
    eventually("the failing pod", lambda: "CrashLoop" in cli.run("pods", "--state", "failing"))
    assert "racing-sac-s1" in reader.types("pods --state failing")
    assert "it took more memory than its limit and was killed" in reader.types("describe")
    assert "step" in reader.types("logs")
    assert "racing-sac-s1" in reader.types("events")
    assert reader.types("wait").count(": reached,") == 12
    reader.types("report")
    assert "racing-sac-s11" in (tmp_path / "racing-sac.html").read_text()
    assert reader.types("destroy", "--all-matching").count("nothing left of racing-sac-s") == 12
    assert "No leaks." in reader.types("leaks")
    assert reader.commands == []
    assert left(namespace) == []


@pytest.mark.parametrize("page", ["learn-to-race-eks", "eks-workshop"])
def test_images_secrets_and_volumes_of_the_pages_for_amazon(cli, namespace, tmp_path, page):
    cli.env |= {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}
    own = {"registry.example": REGISTRY}
    path = DOCS / f"from/{page}.md"
    verbs = ("image", "secret", "volume")
    reader = Reader(cli.argv, cli.env, path, tmp_path, own, verbs)
    (tmp_path / "disk/checkpoints").mkdir(parents=True)
    (tmp_path / "disk/checkpoints/step-1").write_text("1")
    name = "data" if page == "learn-to-race-eks" else "workshop-files"
    with claim(namespace, name, tmp_path / "disk"):
        while reader.commands:
            verb, action = reader.commands[0].words[1:3]
            if (verb, action) == ("volume", "get"):
                # The claim that the page makes has no disk here: nothing provides volumes on this cluster.
                reader.replaced["workshop:"] = "workshop-files:"
                reader.types("volume get")
            else:
                reader.types(f"{verb} {action}", *(("--network", "host") if verb == "image" else ()))
    assert (tmp_path / "checkpoints/step-1").read_text() == "1"
    if page == "learn-to-race-eks":
        data = kubectl_json("-n", namespace, "get", "secret", "aws")["data"]
        assert set(data) == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    else:
        spec = kubectl_json("-n", namespace, "get", "pvc", "workshop")["spec"]
        assert (spec["accessModes"], spec["resources"]["requests"]["storage"]) == (["ReadWriteMany"], "50Gi")


def test_every_command_of_the_page_for_users_of_kubectl_and_helm(cli, namespace, tmp_path):
    image = f"{REGISTRY}/lab/node:first"
    page = DOCS / "from/other-tools.md"
    own = {
        "registry.example/lab/node:v1": image,
        "-l KEY=VALUE": "-l l2rtui.io/role=learner",
        "describe X": "describe mine",
        "-f POD -c CONTAINER": "-f mine/learner/0 -c main",
        "POD -- bash": "sleeper -- bash",
        "wait RUN": "wait sleeper",
        "destroy RUN": "destroy mine",
        "--name NAME": "--name chart",
        "destroy NAME": "destroy chart",
        "logs NAME": "logs mine-s0/learner",
        "sweep NAME": "sweep cartpole-sweep",
    }
    reader = Reader(cli.argv, cli.env, page, tmp_path, own)
    spec = (ROOT / "manifests/cartpole-ppo.yaml").read_text("utf-8")
    spec = re.sub("^name: .*", "name: mine", spec, flags=re.MULTILINE)
    (tmp_path / "run.yaml").write_text(f"{spec}image: {image}\n{STAND_INS}")
    repository, _, tag = image.rpartition(":")
    server = f"{{number: 1, image: {{repository: '{repository}', tag: {tag}}}}}"
    (tmp_path / "values.yml").write_text(f"worker: {server}\nps: {server}\nhyperparams: {{trainsteps: 200}}\n")
    sleeper = "kind: job\nname: sleeper\njob: {command: [sleep, '60']}\nplacement: {on: phortx0/0-7}\n"
    (tmp_path / "sleeper.yaml").write_text(f"{sleeper}image: {image}\n")
    ours = ("--namespace", namespace)

    for word in ("get pods", "ps", "status", "top"):
        reader.types(word)
    cli.run("launch", "-f", str(tmp_path / "run.yaml"), "--yes", "--wait")
    reader.follows("pods -l", "mine-learner")
    assert "mine-learner" in reader.types("describe")
    reader.follows("logs -f", "step")
    cli.run("destroy", "mine", "--yes")
    reader.types("launch -f run.yaml")
    assert "--- there/Job/mine-eval" in reader.types("plan -f run.yaml --diff", code=3)
    reader.types("destroy")
    cli.run("launch", "-f", str(tmp_path / "sleeper.yaml"), "--yes", "--wait")
    assert "not a TTY" not in reader.types("exec", "-c", "echo $((40 + 2)) is the answer")
    assert "reached" in reader.types("wait")
    reader.types("launch -f values.yml")
    assert "nothing left of chart" in reader.types("destroy")
    reader.types("launch -f run.yaml")
    assert "mine" in reader.types("runs", *ours)
    assert "phortx1" in reader.types("nodes")
    assert "free" in reader.types("slots")
    cli.run("destroy", "mine", "--yes")
    reader.commands.insert(0, reader.commands.pop(2))
    assert reader.types("launch -f run.yaml --seeds 0-11").count("launched mine-s") == 12
    reader.follows("logs", "step")
    reader.replaced["destroy chart"] = "destroy experiment/mine"
    assert reader.types("destroy", "--all-matching").count("nothing left of mine-s") == 12
    sweep = str(ROOT / "manifests/cartpole-sweep.yaml")
    cli.run("launch", "-f", sweep, "--image", image, "--yes", "--on", "phortx1/0-7")
    assert reader.types("sweep").count("running") == 4
    assert reader.commands == []
    cli.run("destroy", "--all-mine", "--yes")
    assert left(namespace) == []
