"""Commands for scripts on a real cluster: select, follow, wait, one container of two; checked with kubectl."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cluster.conftest import DEADLINE_SECONDS, IMAGE, kubectl, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPEC = f"""\
kind: job
name: r
image: {IMAGE}
job: {{command: [sh, -c, "echo from $L2R_POD; exec sleep 600"], replicas: 2, slots: 1}}
"""
TWO_CONTAINERS = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: pair, labels: {{team: vision}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: phortx0}}
  terminationGracePeriodSeconds: 0
  containers:
    - {{name: first, image: {IMAGE}, command: [sh, -c, "echo of the first; exec sleep 600"]}}
    - {{name: second, image: {IMAGE}, command: [sh, -c, "echo of the second; exec sleep 600"]}}
"""


@pytest.fixture
def run(cli, namespace, tmp_path):
    """A run of two pods on the real node, followed from before its launch; it is named like the namespace."""
    path = tmp_path / "r.yaml"
    path.write_text(SPEC)
    watch = cli.start("pods", f"{namespace}*", "-o", "json", "-w")
    cli.run("launch", "-f", str(path), "--name", namespace, "--on", "phortx0/0", "--yes")
    yield watch
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=DEADLINE_SECONDS)


@pytest.mark.smoke
def test_a_run_is_chosen_followed_and_waited_for(cli, namespace, run):
    (reached,) = cli.json("wait", namespace, "--for=running", "--timeout", "2m")
    assert reached["reached"] is True
    ready: dict[str, dict[str, object]] = {}
    while len(ready) < 2:
        pod = json.loads(run.stdout.readline())
        if pod["ready"]:
            ready[pod["pod"]] = pod
    pods = {pod["metadata"]["name"]: pod for pod in kubectl_json("-n", namespace, "get", "pods")["items"]}
    assert {name: pod["ip"] for name, pod in ready.items()} == {
        name: pod["status"]["podIP"] for name, pod in pods.items()
    }
    assert all(pod["labels"].items() >= pods[name]["metadata"]["labels"].items() for name, pod in ready.items())
    chosen = cli.run(
        "pods", "-l", f"l2rtui.io/run={namespace},l2rtui.io/set in (job)", "--node", "phortx0", "-o", "name"
    )
    assert set(chosen.split()) == set(pods)
    others = cli.run("get", "pods", "-l", f"l2rtui.io/run!={namespace}", "-o", "name").split()
    assert not {*others} & {*pods}
    (node,) = cli.json("nodes", "phortx0")
    (internal,) = [
        address["address"]
        for address in kubectl_json("get", "node", "phortx0")["status"]["addresses"]
        if address["type"] == "InternalIP"
    ]
    assert node["ip"] == internal
    (done,) = cli.json("wait", namespace, "--for=done", "--timeout", "0", code=124)
    assert done["outcome"] == "waiting"
    gone = cli.start("wait", namespace, "--for=gone", "--timeout", "2m", "-o", "name")
    cli.run("destroy", namespace, "--grace", "0", "--yes")
    assert gone.communicate(timeout=DEADLINE_SECONDS)[0] == f"{namespace}\n"
    assert gone.returncode == 0
    assert kubectl("-n", namespace, "get", "pods", "-o", "name").split() == []
    left = set(ready)
    while left:
        pod = json.loads(run.stdout.readline())
        left -= {pod["pod"]} if pod["event"] == "gone" else set()


def test_of_a_pod_with_two_containers_one_is_read(cli, namespace):
    kubectl("-n", namespace, "apply", "-f", "-", stdin=TWO_CONTAINERS)
    kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/pair", f"--timeout={DEADLINE_SECONDS:g}s")
    assert cli.run("logs", "pair", "-c", "second") == "of the second\n"
    assert cli.run("logs", "pod/pair", "-c", "first") == kubectl("-n", namespace, "logs", "pair", "-c", "first")
    both = cli.run("logs", "pair").splitlines()
    assert sorted(both) == ["pair/first | of the first", "pair/second | of the second"]
    done = cli.call("logs", "pair", "-c", "third")
    assert done.returncode == 1
    assert "The pod pair has no container third: it has first, second." in done.stderr
    assert cli.run("pods", "-l", "team=vision", "-o", "name") == "pair\n"
