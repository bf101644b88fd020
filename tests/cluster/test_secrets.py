"""Secrets of a cluster: stored in Kubernetes' form, used by pods, and never shown."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest

from tests.cluster.conftest import IMAGE, eventually, kubectl, kubectl_json
from tests.cluster.inprocess import in_process
from tests.cluster.registries import PASSWORD, USER, private_registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

VALUE = "Zq7-very-hidden-9"
SPEC = f"""\
kind: job
name: t
image: {IMAGE}
job:
  command: [sh, -c, 'test "$WANDB_API_KEY" = Zq7-"very"-hidden-9 && echo it is there; exec sleep 600']
  slots: 1
  pod:
    secrets: [wandb]
    pull_secrets: [lab]
placement: {{on: phortx0/0-7}}
"""


@pytest.fixture
def own_cli(cli, tmp_path, capsys):
    with in_process(cli, tmp_path, capsys) as here:
        yield here


def test_a_pod_gets_what_its_spec_names(own_cli, namespace, tmp_path):
    docker = tmp_path / "docker"
    docker.mkdir()
    entry = {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    (docker / "config.json").write_text(json.dumps({"auths": {"registry.example": entry}}))
    texts = [
        own_cli.run("secret", "create", "wandb", "--from-env", "WANDB_API_KEY", WANDB_API_KEY=VALUE),
        own_cli.run("secret", "create", "lab", "--registry", "registry.example", DOCKER_CONFIG=str(docker)),
    ]
    shown = own_cli.json("secret", "ls")
    assert [(one["secret"], one["kind"], one["keys"]) for one in shown] == [
        ("lab", "registry", [".dockerconfigjson"]),
        ("wandb", "variables", ["WANDB_API_KEY"]),
    ]
    there = {one["metadata"]["name"]: one for one in kubectl_json("-n", namespace, "get", "secrets")["items"]}
    assert base64.b64decode(there["wandb"]["data"]["WANDB_API_KEY"]).decode() == VALUE
    assert there["lab"]["type"] == "kubernetes.io/dockerconfigjson"
    auths = json.loads(base64.b64decode(there["lab"]["data"][".dockerconfigjson"]))["auths"]
    assert auths["registry.example"] | entry == auths["registry.example"]
    assert there["wandb"]["metadata"]["labels"]["l2rtui.io/secret"] == "variables"

    taken = own_cli.call("secret", "create", "wandb", "--from-env", "WANDB_API_KEY", WANDB_API_KEY="other")
    assert taken.returncode == 3
    assert "--replace" in taken.stderr
    texts.append(
        own_cli.run("secret", "create", "wandb", "--replace", "--from-env", "WANDB_API_KEY", WANDB_API_KEY=VALUE)
    )

    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    texts.append(own_cli.run("plan", "-f", str(spec), "-o", "yaml"))
    texts.append(own_cli.run("launch", "-f", str(spec), "--yes", "--wait"))
    eventually("its line", lambda: "it is there" in own_cli.run("logs", "t"))
    texts += [own_cli.run("describe", "t", "-o", "json"), json.dumps(shown)]
    texts += [path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    texts.append(kubectl("-n", namespace, "get", "pods,configmaps,jobs", "-o", "yaml"))
    assert not any(VALUE in text or PASSWORD in text for text in texts)
    assert own_cli.json("destroy", "t", "--yes")["left"] == 0
    assert own_cli.json("leaks") == []
    assert len(own_cli.json("secret", "ls")) == 2, "a run that goes takes no secret with it"

    kubectl("-n", namespace, "create", "secret", "generic", "theirs", "--from-literal=a=b")
    assert own_cli.call("secret", "delete", "theirs", "--yes").returncode == 3
    own_cli.run("secret", "delete", "wandb", "--yes")
    gone = own_cli.call("secret", "delete", "wandb", "--yes")
    assert (gone.returncode, "There is no secret wandb" in gone.stderr) == (1, True)


def test_the_login_of_a_private_registry_lets_a_pod_pull(own_cli, namespace, tmp_path):
    folder = tmp_path / "registry"
    folder.mkdir()
    with private_registry(folder) as host:
        image = f"{host}/lab/pause:1"
        done = subprocess.run(
            own_cli.argv("image", "login", host, "--username", USER, "--password-stdin"),
            env=own_cli.env,
            input=PASSWORD,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        subprocess.run(["docker", "tag", "k8s.gcr.io/pause:3.2", image], check=True)
        own_cli.run("image", "push", image)
        subprocess.run(["docker", "rmi", image], check=True, capture_output=True)
        own_cli.run("secret", "create", "lab", "--registry", host)
        spec = tmp_path / "spec.yaml"
        job = "job: {command: [/pause], slots: 1, pod: {pull_secrets: [lab]}}"
        spec.write_text(f"kind: job\nname: t\nimage: x\n{job}\nplacement: {{on: phortx0/0-7}}\n")
        own_cli.run("launch", "-f", str(spec), "--image", image, "--yes", "--wait")
        (pod,) = kubectl_json("-n", namespace, "get", "pods")["items"]
        assert f"{image}@sha256:" in pod["spec"]["containers"][0]["image"]
        assert own_cli.json("destroy", "t", "--yes")["left"] == 0
    subprocess.run(["docker", "rmi", "-f", image], capture_output=True, check=False)


def test_every_addon_is_taken_by_the_server(own_cli):
    shown = own_cli.json("cluster", "addons", "--dry-run", L2RTUI_NAMESPACES="")
    assert {one["addon"] for one in shown} == {"efs-csi", "metrics-server", "nvidia-device-plugin"}
    assert all(one["version"].startswith("v") and one["outcome"] == "would be applied" for one in shown)
    assert "efs-csi-node" not in kubectl("-n", "kube-system", "get", "daemonsets", "-o", "name")
