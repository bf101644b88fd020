"""The verb from end to end against moto's server, over HTTP as against Amazon's."""

from __future__ import annotations

import json
import signal

import pytest
import yaml

from l2rtui.cli import main as entry
from tests.l2rtui.cloud.aws.conftest import REGION, Account, settings

# The warnings are moto's own.
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("default"), pytest.mark.timeout(240)]

FILE = f"""\
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {{name: lab, region: {REGION}, version: "1.33"}}
availabilityZones: [{REGION}a, {REGION}b]
managedNodeGroups:
  - {{name: gpu, instanceType: g5.xlarge, desiredCapacity: 2, minSize: 0, maxSize: 4, privateNetworking: true}}
"""


@pytest.fixture
def call(amazon_server, monkeypatch, tmp_path, capsys):
    """Call a verb in this process; its exit code, what it printed, what it said."""
    for name, value in settings(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon_server)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def called(*arguments):
        code = entry.main(["cluster", *arguments, "--backend", "local"])
        return code, *capsys.readouterr()

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.slow
def test_a_cluster_s_life(call, amazon_server, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    file = ("-f", str(path))
    account = Account({}, amazon_server)

    code, out, _ = call("create", *file, "--dry-run", "-o", "json")
    plan = json.loads(out)
    assert (code, len(plan["steps"]), plan["cost"]["unknown"]) == (0, 6, [])
    assert plan["cost"]["dollars_an_hour"] == pytest.approx(0.15 + 2 * 1.006 + 2 * 80 * 0.08 / 730, abs=0.001)
    assert account.inventory() == {}
    code, _, output = call("create", *file)
    assert (code, "there is no terminal to ask on" in output) == (2, True)

    code, out, output = call("create", *file, "--yes", "--no-addons", "-o", "json")
    assert code == 0, output
    assert json.loads(out)["status"] == "ACTIVE"
    assert "It costs about $2.1" in output
    assert "node group gpu: asked for: 2 x g5.xlarge" in output
    assert len(account.inventory()["stack"]) == 4
    config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert config["users"][0]["user"]["exec"]["args"] == ["cluster", "token", "--name", "lab", "--region", REGION]
    code, out, _ = call("token", "--name", "lab", "--region", REGION)
    assert json.loads(out)["status"]["token"].startswith("k8s-aws-v1.")

    code, out, _ = call("scale", *file, "--nodes", "0", "--yes", "-o", "json")
    assert (code, json.loads(out)["groups"][0]["nodes"]) == (0, 0)
    code, out, _ = call("scale", "gpu", *file, "--yes", "-o", "json")
    assert (code, json.loads(out)["groups"][0]["nodes"]) == (0, 2)

    code, out, output = call("delete", *file, "--yes", "-o", "json")
    assert (code, json.loads(out)["left"]) == (0, 0), output
    assert "nothing left of lab" in output
    assert account.inventory() == {}
    assert yaml.safe_load((tmp_path / "kubeconfig").read_text())["clusters"] == []
    code, out, _ = call("status", *file, "-o", "json")
    assert (code, json.loads(out)["status"], json.loads(out)["groups"]) == (0, "", [])
    code, _, output = call("kubeconfig", *file)
    assert (code, "There is no cluster lab" in output) == (1, True)
    for arguments, sentence in (
        (("create",), "needs -f FILE"),
        (("delete", "--yes"), "needs -f FILE, or --name"),
        (("token",), "needs --name"),
        (("scale", "--name", "lab", "--region", REGION, "--nodes", "-1", "--yes"), "from 0 up"),
    ):
        code, _, output = call(*arguments)
        assert (code, sentence in output) == (2, True), output
