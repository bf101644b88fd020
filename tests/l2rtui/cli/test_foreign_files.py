"""Files of other tools on the command line: every change is printed, and files can be piped and split."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = pytest.mark.process

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: by-nodename, namespace: team-a, labels: {a: b}}
spec:
  nodeName: node-b
  containers:
  - {name: c, image: "cuda:12", command: [python, train.py], env: [{name: NVIDIA_VISIBLE_DEVICES, value: "0"}]}
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {a: b}, clusterIP: 10.0.0.1}\n"


def test_a_plan_prints_every_change_of_a_file(cli, tmp_path):
    first, second = tmp_path / "pod.yaml", tmp_path / "service.yaml"
    first.write_text(POD)
    second.write_text(SERVICE)
    done: subprocess.CompletedProcess[str] = cli.demo("plan", "-f", str(first), "-f", str(second))
    assert done.returncode == 0
    for words in (
        "in place of its nodeName node-b each pod gets the node of its slot",
        "metadata.namespace: team-a does not count",
        "it selects the set w of its own run",
        "left out, since two runs would collide on it: spec.clusterIP: 10.0.0.1",
    ):
        assert words in done.stderr
