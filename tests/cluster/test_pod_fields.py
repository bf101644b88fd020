"""Fields that a spec adds to pods, and new folders of a node, on a real kubelet."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cluster.conftest import IMAGE, Cli, eventually, kubectl_json

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SPEC = """\
kind: job
name: fields
image: {image}
pod:
  node_selector: {{kubernetes.io/hostname: phortx0}}
  mounts: [{{path: /logs, host_path: {folder}}}]
  template:
    metadata: {{labels: {{team: rl}}}}
    spec:
      initContainers: [{{name: hello, image: {image}, command: [touch, /logs/hello], volumeMounts: [
        {{name: mount-0, mountPath: /logs}}]}}]
job:
  replicas: 2
  restart: Never
  command: [sh, -c, "touch /logs/$(hostname) && id -u"]
"""


def test_a_new_folder_of_the_node_is_written_to_by_a_plain_user(cli: Cli, namespace: str, tmp_path: Path) -> None:
    folder = Path("/tmp") / f"l2r-{uuid.uuid4().hex}"
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.format(image=IMAGE, folder=folder))
    planned = cli.call("plan", "-f", str(spec))
    plan = planned.stdout + planned.stderr
    assert f"where {folder} is new or empty on a node" in plan
    cli.run("launch", "-f", str(spec), "--yes")

    def pods() -> list[dict]:
        items = kubectl_json("-n", namespace, "get", "pods", "-l", "team=rl")["items"]
        return [pod for pod in items if pod["status"].get("phase") == "Succeeded"]

    done = eventually("both pods have succeeded", lambda: len(pods()) == 2 and pods())
    assert {path.name for path in folder.iterdir()} == {"hello", *(pod["metadata"]["name"] for pod in done)}
    assert {path.stat().st_uid for path in (folder, *folder.iterdir())} == {1000}
    restarts = [status["restartCount"] for pod in done for status in pod["status"].get("initContainerStatuses", ())]
    assert restarts == [0] * 4


def test_a_field_that_a_run_owns_is_refused_before_anything_is_made(
    cli: Cli, namespace: str, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    text = SPEC.format(image=IMAGE, folder="/tmp").replace("spec:\n", "spec:\n      restartPolicy: Always\n", 1)
    spec.write_text(text)
    refused = cli.call("launch", "-f", str(spec), "--yes")
    assert refused.returncode != 0
    assert "pod.template cannot set spec.restartPolicy" in refused.stderr + refused.stdout
    assert not kubectl_json("-n", namespace, "get", "jobs")["items"]
