"""A researcher with exactly the Role of manifests/rbac.yaml: allowed verbs work, others are named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster.conftest import IMAGE, Cli, eventually, kubectl, kubectl_json
from tests.cluster.roles import grant

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPEC = f"""\
kind: learner-workers
name: mine
image: {IMAGE}
learner: {{command: [sh, -c, 'echo ready; sleep 600'], slots: SLOTS, grace_seconds: 1}}
workers: [{{name: w, replicas: 2, command: [sh, -c, 'sleep 600'], slots: SLOTS, restart: Always, grace_seconds: 1}}]
"""


@pytest.fixture
def researcher(tmp_path, namespace, kubeconfig):
    """The program as a user with a Role in one namespace."""
    grant(namespace, "l2rtui-researcher", ("Role", "RoleBinding"))
    return Cli(tmp_path, namespace, f"{os.environ['L2R_CLUSTER_DIR']}/researcher.kubeconfig")


@pytest.fixture
def with_ledger(researcher, namespace):
    """The same, who may also read nodes and the pods of all namespaces."""
    grant(namespace, "l2rtui-ledger", ("ClusterRole", "ClusterRoleBinding"))
    yield researcher
    kubectl("delete", "clusterrole", f"l-{namespace}")
    kubectl("delete", "clusterrolebinding", f"l-{namespace}-researcher")


def write(cli, slots):
    path = Path(cli.env["HOME"]) / "spec.yaml"
    path.write_text(SPEC.replace("SLOTS", str(slots)))
    return str(path)


def test_a_role_in_one_namespace_is_enough_for_runs_without_gpus(researcher, namespace):
    cli = researcher
    received = cli.call("nodes")
    assert "missing right: list and watch nodes" in received.stderr
    launched = cli.json("launch", "-f", write(cli, 0), "--yes", "--wait")
    assert [pod["phase"] for pod in launched["pods"]] == ["Running"] * 3
    assert {slot["state"] for slot in cli.json("slots")} <= {"unknown", "busy"}, "what nobody may see is never free"
    eventually("its log", lambda: cli.call("logs", "mine/learner").stdout)
    cli.run("kill", "mine/w/0", "--yes")
    assert cli.json("scale", "mine/w", "1")["removed"]
    assert "mine-learner" in cli.run("describe", "mine/learner")
    receipt = cli.json("destroy", "mine", "--yes")
    assert (receipt["left"], receipt["leftovers"]) == (0, [])
    left = kubectl_json("-n", namespace, "get", "pods,jobs,replicasets,services,secrets,configmaps,leases")["items"]
    assert not [item["metadata"]["name"] for item in left if "l2rtui.io/run" in item["metadata"].get("labels", {})]
    assert cli.json("leaks") == []


def test_with_the_ledger_part_slots_are_placed_and_claimed(with_ledger):
    cli = with_ledger
    launched = cli.json("launch", "-f", write(cli, 1), "--on", "phortx2/7", "--yes", "--wait")
    assert sorted(slot for pod in launched["pods"] for slot in pod["slots"]) == [f"phortx2/7.{n}" for n in range(3)]
    assert cli.json("destroy", "mine", "--yes")["left"] == 0


@pytest.mark.parametrize(
    ("rule", "fragment", "verb"),
    [
        ("jobs", ("launch", "-f", "SPEC", "--yes"), "create"),
        ("pods/log", ("logs", "mine/learner"), "get"),
        ("pods/exec", ("exec", "mine/learner/0", "--", "true"), "get"),
    ],
)
def test_what_the_role_does_not_allow_is_refused_with_the_missing_right(
    researcher, namespace, rule, fragment, verb
):
    cli = researcher
    spec = write(cli, 0)
    if fragment[0] != "launch":
        cli.run("launch", "-f", spec, "--yes", "--wait")
    role = kubectl_json("-n", namespace, "get", "role", "l2rtui-researcher")
    for item in role["rules"]:
        item["resources"] = [name for name in item["resources"] if name != rule] or ["nothing"]
    kubectl("apply", "-f", "-", stdin=json.dumps(role))

    def refused():
        done = cli.call(*(spec if word == "SPEC" else word for word in fragment))
        return done if done.returncode in (1, 3) else None

    done = eventually("the refusal", refused)
    assert verb in done.stderr
    assert rule in done.stderr
