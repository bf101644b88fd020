"""Every verb as a ServiceAccount with the researcher's Role, and the sentence that names a missing right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from l2rtui.backends.kubernetes.api.resources import KINDS
from l2rtui.backends.kubernetes.rights import RoleScope, needed, rows_of
from tests.cluster.conftest import IMAGE, Cli, eventually, kubectl, new_namespace
from tests.cluster.inprocess import in_process
from tests.cluster.roles import service_account, without

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ROLES = (RoleScope.VIEWER, RoleScope.RESEARCHER)
REQUIRED = needed(ROLES)
OPTIONAL = [
    right
    for right in dict.fromkeys(row.right for row in rows_of(*ROLES) if not row.reason)
    if right not in REQUIRED and right.kind != "Lease"
]
"""Rights that verbs can do without; ``check`` has one sentence for all verbs of Leases."""
SPEC = f"""\
kind: learner-workers
name: r
image: {IMAGE}
learner:
  command: [sh, -c, 'echo ready; exec sleep 600']
  slots: 0
  grace_seconds: 1
  pod: {{node_selector: {{kubernetes.io/hostname: phortx0}}}}
workers: [{{name: w, replicas: 2, command: [sleep, '600'], slots: 0, restart: Always, grace_seconds: 1}}]
"""
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: NAME
  hostPath: {path: FOLDER}
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [phortx0]}]
"""
VERBS = {
    "view": ("pods",),
    "logs": ("logs", "r/learner"),
    "describe": ("describe", "r/w/0"),
    "plan": ("plan", "-f", "SPEC", "--name", "other"),
    "exec": ("exec", "r/learner/0", "--", "true"),
    "kill": ("kill", "r/w/0", "--yes"),
    "volume": ("volume", "create", "other", "--size", "1Gi"),
    "secret": ("secret", "create", "vars", "--from-env", "KEY", "--replace"),
    "scale": ("scale", "r/w", "REPLICAS"),
    "destroy": ("destroy", "r", "--yes"),
}
"""A verb of the command line for each use of the table, the cheapest first."""
OTHER_VERBS = {
    "get configmaps": ("describe", "r"),
    "list services": ("describe", "r"),
    "list persistentvolumeclaims": ("volume", "ls"),
    "get persistentvolumeclaims": ("volume", "files", "data", "--image", IMAGE),
    "delete persistentvolumeclaims": ("volume", "delete", "data", "--yes"),
    "create pods": ("volume", "files", "data", "--image", IMAGE),
    "get replicasets": ("scale", "r/w", "3"),
    "delete replicasets": ("destroy", "r", "--yes"),
    "delete secrets": ("secret", "delete", "vars", "--yes"),
}
"""Verbs of rights that the first verb of their use does not need."""


STREAMS = ("attach", "portforward")
"""Rights of streams that the test's pods cannot start: a standard input, a server."""


@pytest.fixture(scope="module")
def account(kubeconfig, tmp_path_factory):
    """The program as the ServiceAccount, in a namespace with a bound volume."""
    home = tmp_path_factory.mktemp("home")
    disk = tmp_path_factory.mktemp("disk")
    disk.chmod(0o777)
    with new_namespace() as name:
        kubectl("apply", "-f", "-", stdin=VOLUME.replace("NAME", name).replace("FOLDER", str(disk)))
        (home / "spec.yaml").write_text(SPEC)
        cli = Cli(home, name, service_account(name, home))
        cli.env["KEY"] = "value"
        yield cli
        kubectl("delete", "pv", name, "--wait=false")


@pytest.fixture
def cli(account, tmp_path, capsys):
    """The same in this process, since these are many short calls."""
    with in_process(account, tmp_path, capsys) as here:
        yield here


def words_of(cli, *words):
    return [str(Path(cli.env["HOME"]) / "spec.yaml") if word == "SPEC" else word for word in words]


def called(cli, *words):
    """Call a verb in this process; ``exec`` in a separate one, since it writes to descriptors."""
    return Cli.call(cli, *words) if words[0] == "exec" else cli.call(*words)


@pytest.fixture
def run(cli):
    """The run ``r``, the volume ``data`` and the secret ``vars``, made again if a test has destroyed them."""
    if "r" not in [item["run"] for item in cli.json("runs")]:
        cli.run(*words_of(cli, "launch", "-f", "SPEC", "--yes", "--wait"))
    if not cli.json("volume", "ls"):
        cli.run("volume", "create", "data", "--size", "1Gi", "--storage-class", cli.namespace)
    if not kubectl("-n", cli.namespace, "get", "secret", "vars", "--ignore-not-found", "-o", "name"):
        cli.run("secret", "create", "vars", "--from-env", "KEY")
    return cli


def test_every_verb_works_as_the_researcher(run, tmp_path):
    cli = run
    for listing in ("nodes", "slots", "pods", "runs", "experiments", "owners", "metrics", "leaks", "events"):
        cli.json(listing)
    cli.run(*words_of(cli, "plan", "-f", "SPEC", "--name", "other", "--diff"))
    cli.run("wait", "r", "--for=running", "--timeout", "60s")
    eventually("its log", lambda: cli.call("logs", "r/learner").stdout)
    assert called(cli, "exec", "r/learner/0", "--", "true").returncode == 0
    cli.run("describe", "r/learner")
    cli.run("describe", "r")
    cli.run("kill", "r/w/0", "--yes")
    assert cli.json("scale", "r/w", "1")["removed"]
    cli.run("scale", "r/w", "2")
    (tmp_path / "file").write_text("content")
    cli.run("volume", "put", str(tmp_path / "file"), "data:file", "--image", IMAGE)
    cli.run("volume", "get", "data:file", str(tmp_path / "again"), "--image", IMAGE)
    assert (tmp_path / "again").read_text() == "content"
    cli.run("secret", "create", "vars", "--from-env", "KEY", "--replace")
    cli.run("check")
    assert cli.json("destroy", "r", "--yes")["left"] == 0
    cli.run("secret", "delete", "vars", "--yes")
    cli.run("volume", "delete", "data", "--yes")
    assert cli.json("leaks") == []


def first_verb(right):
    uses = {use for row in rows_of(*ROLES) if row.right == right and not row.is_optional for use in row.uses}
    return OTHER_VERBS.get(str(right)) or next(VERBS[use] for use in VERBS if use in uses)


def is_named(right, text):
    return re.search(rf"\b{right.verb}\b", text) and re.search(rf"(^|[ /]){re.escape(right.resource)}\b", text)


@pytest.mark.parametrize(
    "right", [right for right in REQUIRED if right.verb != "watch" and right.subresource not in STREAMS], ids=str
)
def test_a_verb_names_the_right_that_it_lacks(run, right):
    replicas = str(3 - run.json("runs")[0]["sets"][-1]["replicas"]) if "scale" in first_verb(right) else ""
    words = (replicas if word == "REPLICAS" else word for word in first_verb(right))
    with without(run.namespace, right):
        done = called(run, *words_of(run, *words))
    if first_verb(right)[0] == "destroy":  # objects that it could not remove would be left for the next test
        run.run("destroy", "r", "--yes")
    assert is_named(right, done.stdout + done.stderr), done


def test_the_check_names_every_right_that_few_verbs_need(cli):
    served = kubectl("api-versions")
    rights = [right for right in REQUIRED if right.verb == "watch"]
    rights += [right for right in OPTIONAL if f"{KINDS[right.kind].group}/" in f"{served}v1/"]
    with without(cli.namespace, *rights):
        text = cli.call("check").stdout
    assert [str(right) for right in rights if not is_named(right, text)] == []
