"""The verb from end to end against moto's server, over HTTP as with Amazon."""

from __future__ import annotations

import json
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from l2rtui.cli import main as entry
from l2rtui.services import addons
from tests.documents import DOCS, ROOT, commands_of
from tests.l2rtui.cloud.aws.conftest import REGION, Account, settings
from tests.l2rtui.cloud.aws.test_prices import offer

# The warnings come from moto.
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
    """Call a verb in this process; return its exit code, output and messages."""
    for name, value in settings(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon_server)
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", "http://127.0.0.1:1")  # moto has no price list
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def called(*arguments):
        code = entry.main(["cluster", *arguments, "--backend", "local"])
        return code, *capsys.readouterr()

    yield called
    for number, handler in handlers.items():
        signal.signal(number, handler)


class PriceList(BaseHTTPRequestHandler):
    """Amazon's price list over HTTP, with an offer for any requested machine."""

    def do_POST(self):
        assert self.headers["X-Amz-Target"] == "AWSPriceListService.GetProducts"
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        attributes = {item["Field"]: item["Value"] for item in request["Filters"]}
        content = json.dumps({"FormatVersion": "aws_v1", "PriceList": [offer("1.0060", attributes=attributes)]})
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())


@pytest.mark.slow
def test_the_plan_shows_prices_of_today_and_everything_that_would_be_used(call, tmp_path, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), PriceList)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(addons, "read_addons", lambda: [("driver", pod("127.0.0.1:1/driver:v1"))])
    path = tmp_path / "cluster.yaml"
    identity = "{namespace: ml, serviceAccountName: trainer, roleARN: 'arn:aws:iam::1:role/x'}"
    path.write_text(f"{FILE}iam: {{podIdentityAssociations: [{identity}]}}\n")
    try:
        code, out, output = call("create", "-f", str(path), "--dry-run")
        assert code == 0, output
        assert "eks-pod-identity-agent, roles for ml/trainer" in out
        assert (
            "2 x g5.xlarge of gpu: $2.012 an hour (Amazon's price list of us-west-2, of 2026-11-20, read now)"
            in output
        )
        assert "driver: 127.0.0.1:1/driver:v1 by its tag, for its digest is not known: The registry" in output
        code, out, _ = call("create", "-f", str(path), "--dry-run", "-o", "json")
        plan = json.loads(out)
        assert (code, plan["cost"]["read"], plan["cost"]["failure"]) == (0, ["2026-11-20"], "")
        assert [(image["addon"], image["digest"]) for image in plan["addon_images"]] == [("driver", "")]
    finally:
        server.shutdown()
        server.server_close()


def pod(image):
    """An object of an add-on with one container."""
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "x", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "x", "image": image}]}}},
    }


@pytest.mark.slow
def test_a_cluster_s_life(call, amazon_server, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    file = ("-f", str(path))
    account = Account({}, amazon_server)

    code, out, _ = call("create", *file, "--dry-run", "--no-addons", "-o", "json")
    plan = json.loads(out)
    assert (code, len(plan["steps"]), plan["cost"]["unknown"]) == (0, 6, [])
    assert plan["cost"]["dollars_an_hour"] == pytest.approx(0.15 + 2 * 1.006 + 2 * 80 * 0.08 / 730, abs=0.001)
    # No server answers at the price list's address: the figures come from the table, and say so.
    machines = next(line for line in plan["cost"]["lines"] if "g5.xlarge" in line["what"])
    assert machines["source"] == "price of 2026-09-24 in us-east-1; could not be read now"
    assert (plan["cost"]["read"], "pricing" in plan["cost"]["failure"]) == ([], True)
    assert account.inventory() == {}
    code, _, output = call("create", *file)
    assert (code, "which needs a terminal" in output) == (2, True)

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


@pytest.mark.slow
def test_every_command_of_the_pages_for_users_of_other_systems(call, amazon_server, tmp_path, monkeypatch):
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    monkeypatch.chdir(tmp_path)
    for name in ("learn-to-race-eks", "eks-workshop"):
        commands = [
            command.words[2:]
            for command in commands_of(DOCS / "from" / f"{name}.md")
            if command.words[1] == "cluster"
        ]
        assert commands
        for action, *words in commands:
            # Nothing answers at the address of moto's cluster, so its add-ons cannot be applied.
            answers = ["--no-addons"] if action == "create" else []
            answers += ["--yes"] if action in ("create", "scale", "delete") and "--dry-run" not in words else []
            code, out, output = call(action, *words, *answers)
            assert code == 0, (action, words, out, output)
        assert Account({}, amazon_server).inventory() == {}
