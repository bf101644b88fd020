"""Images from source to a pod: built, pushed through a link that breaks, pulled by digest; and registry access."""

from __future__ import annotations

import json
import os
import subprocess
import uuid

import pytest

from tests.cluster.conftest import eventually, kubectl, kubectl_json
from tests.cluster.inprocess import in_process
from tests.cluster.registries import PASSWORD, USER, BreakingLink, free_port, private_registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

REGISTRY = os.environ.get("L2R_TEST_REGISTRY", "127.0.0.1:5000")
PAUSE = "k8s.gcr.io/pause:3.2"
"""A program that waits, without a system around it: the image stays small."""
BASE = f"ARG BASE={PAUSE}\nFROM ${{BASE}}\nCOPY docker/first /first\n"
NODE = "ARG BASE_IMAGE=l2rtui-base\nFROM ${BASE_IMAGE}\nCOPY runtime/second /second\nUSER 10001:10001\n"
SPEC = """\
kind: job
name: picture
job: {command: [/pause], slots: 1, restart: Never}
placement: {on: phortx0/0-7}
"""


def git(folder, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def source(tmp_path):
    """A source tree in git with two Dockerfiles; its layers are new each time, and 3 MB in total."""
    folder = tmp_path / "source"
    for name in ("docker", "runtime", "requirements"):
        (folder / name).mkdir(parents=True)
    (folder / "docker" / "Dockerfile.base").write_text(BASE)
    (folder / "docker" / "Dockerfile.node").write_text(NODE)
    (folder / "docker" / "first").write_bytes(os.urandom(10_000))
    (folder / "runtime" / "second").write_bytes(os.urandom(3_000_000))
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    yield folder
    base = f"l2rtui-base:{git(folder, 'rev-parse', '--short=12', 'HEAD')}"
    subprocess.run(["docker", "rmi", "-f", base, f"{base}-dirty"], capture_output=True, check=False)


@pytest.fixture
def own_cli(cli, tmp_path, capsys):
    with in_process(cli, tmp_path, capsys) as here:
        yield here


@pytest.fixture
def name():
    """A separate repository for the test; the Engine's copies are removed."""
    repository = f"t-{uuid.uuid4().hex[:8]}/node"
    yield repository
    listed = subprocess.run(
        ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True, check=True
    )
    ours = [line for line in listed.stdout.split() if repository in line and "<none>" not in line]
    if ours:
        subprocess.run(["docker", "rmi", "-f", *ours], capture_output=True, check=True)


def build(cli, source, image, *arguments):
    return cli.json("image", "build", image, "--source", str(source), *arguments)


def test_a_pod_pulls_by_digest_what_was_built_and_pushed(own_cli, namespace, source, name, tmp_path):
    revision = git(source, "rev-parse", "--short=12", "HEAD")
    image = f"{REGISTRY}/{name}"
    done = own_cli.call("image", "build", image, "--source", str(source), "--push", "-o", "json")
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert (built["image"], built["revision"], built["dirty"]) == (f"{image}:{revision}", revision, False)
    assert "Step 1/" in done.stderr
    assert "1/2 docker/Dockerfile.base" in done.stderr
    assert "2/2 docker/Dockerfile.node" in done.stderr
    digest = built["digest"]
    assert digest.startswith("sha256:")
    assert [row["digest"] for row in own_cli.json("image", "ls", image)] == [digest]
    assert digest in {row["digest"] for row in own_cli.json("image", "ls")}
    journal = (tmp_path / "state" / "l2rtui" / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["verb"] for line in journal] == ["image build", "image push"]
    assert json.loads(journal[1])["digest"] == digest

    # The Engine of the node is this one: without its copy it has to pull.
    subprocess.run(["docker", "rmi", "-f", f"{image}:{revision}"], check=True, capture_output=True)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    named = f"{image}:{revision}"
    plan = own_cli.json("plan", "-f", str(spec), "--image", named)
    assert {"subject": "image", "sentence": f"it is {named}@{digest}"}.items() <= next(
        row for row in plan["findings"] if row["subject"] == "image"
    ).items()
    launched = own_cli.call("launch", "-f", str(spec), "--image", named, "--yes", "--wait")
    assert launched.returncode == 0, launched.stderr
    assert f"{named}@{digest}" in launched.stderr
    (pod,) = kubectl_json("-n", namespace, "get", "pods")["items"]
    assert pod["spec"]["containers"][0]["image"] == f"{named}@{digest}"
    assert pod["status"]["containerStatuses"][0]["imageID"].endswith(digest)
    events = kubectl("-n", namespace, "get", "events", "-o", "jsonpath={.items[*].reason}")
    assert "Pulled" in events
    assert own_cli.json("destroy", "picture", "--yes")["left"] == 0

    # Without a pin the name stays unchanged; an unknown name is refused before anything is created.
    plain = own_cli.json("plan", "-f", str(spec), "--image", named, "--no-pin")
    assert f"{named} is taken as it is named" in {row["sentence"] for row in plan["findings"] + plain["findings"]}
    missing = own_cli.call("launch", "-f", str(spec), "--image", f"{image}:nowhere", "--yes")
    assert missing.returncode == 1
    assert "has no image" in missing.stderr
    assert "--no-pin" in missing.stderr


def test_a_changed_work_tree_is_said_in_the_tag_and_in_words(own_cli, source, name):
    (source / "README").write_text("this goes into no image")
    assert build(own_cli, source, name)["dirty"] is False
    (source / "runtime" / "second").write_text("changed")
    done = own_cli.call("image", "build", name, "--source", str(source), "-o", "json")
    built = json.loads(done.stdout)
    assert built["dirty"] is True
    assert built["image"].endswith("-dirty")
    assert "The work tree differs from revision" in done.stderr


def test_a_build_that_fails_shows_the_end_of_its_output(own_cli, source, name):
    (source / "docker" / "Dockerfile.node").write_text(
        "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY docker/none /none\n"
    )
    done = own_cli.call("image", "build", name, "--source", str(source))
    assert done.returncode == 1
    assert "docker/Dockerfile.node was not built" in done.stderr
    assert "docker/none" in done.stderr


def test_another_base_is_taken_when_it_is_named(own_cli, source, name):
    tag = f"{name}-base:1"
    build(own_cli, source, tag)
    (source / "docker" / "Dockerfile.base").write_text(
        "ARG BASE=nowhere.example/none\nFROM ${BASE}\nCOPY docker/first /x\n"
    )
    assert build(own_cli, source, name, "--base", tag)["id"]


def test_a_push_that_is_cut_goes_on_where_it_was(own_cli, source, name):
    with BreakingLink(REGISTRY) as link:
        image = f"{link.host}/{name}"
        build(own_cli, source, image, "--tag", "1")
        link.cut_after, link.cuts_left = 1_500_000, 1
        done = own_cli.call("image", "push", f"{image}:1", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert link.cuts == 1
        digest = json.loads(done.stdout)["digest"]
        before = link.sent
        again = own_cli.call("image", "push", f"{image}:1", "-o", "json")
        assert json.loads(again.stdout)["digest"] == digest
        assert "3 layers, 3 were there already" in again.stderr
        assert link.sent - before < 100_000, "what had arrived was sent again"
    assert [row["digest"] for row in own_cli.json("image", "ls", f"{REGISTRY}/{name}")] == [digest]


def test_a_registry_that_is_away_for_a_moment_is_waited_for(own_cli, source, name):
    port = free_port()
    image = f"127.0.0.1:{port}/{name}:1"
    build(own_cli, source, image)
    pushing = own_cli.start("image", "push", image, "-o", "json")
    first = pushing.stderr.readline()
    assert "again in 1 s" in first
    with BreakingLink(REGISTRY, port):
        out, errors = pushing.communicate(timeout=120)
    assert pushing.returncode == 0, errors
    assert json.loads(out)["digest"].startswith("sha256:")


def test_a_wrong_password_gives_a_sentence_and_a_right_one_is_kept_as_docker_keeps_it(
    own_cli, source, name, tmp_path
):
    folder = tmp_path / "registry"
    folder.mkdir()
    config = tmp_path / "docker-config" / "config.json"
    with private_registry(folder) as host:
        image = f"{host}/{name}:1"
        build(own_cli, source, image)

        def login(password):
            return subprocess.run(
                own_cli.argv("image", "login", host, "--username", USER, "--password-stdin"),
                env=own_cli.env,
                input=f"{password}\n",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        refused = own_cli.call("image", "push", image)
        assert refused.returncode == 1
        assert f"{host} does not let us push {image}" in refused.stderr
        assert f"l2rtui image login {host}" in refused.stderr
        wrong = login("wrong-word")
        assert wrong.returncode == 1
        assert f"{host} refuses {USER}: the user or the password is wrong" in wrong.stderr
        assert "wrong-word" not in wrong.stderr + wrong.stdout
        assert not config.exists()
        unknown = own_cli.call("image", "ls", f"{host}/{name}")
        assert "requires a login, and none is configured" in unknown.stderr

        right = login(PASSWORD)
        assert right.returncode == 0, right.stderr
        assert config.stat().st_mode & 0o777 == 0o600
        assert PASSWORD not in config.read_text()
        assert own_cli.json("image", "push", image)["digest"].startswith("sha256:")
        assert len(own_cli.json("image", "ls", f"{host}/{name}")) == 1
        subprocess.run(["docker", "rmi", image], check=True, capture_output=True)
        docker = subprocess.run(
            ["docker", "pull", image], env=own_cli.env, capture_output=True, text=True, check=False
        )
        assert docker.returncode == 0, docker.stderr  # Docker's own client is logged in too
    eventually("the registry to be gone", lambda: own_cli.call("image", "ls", f"{host}/{name}").returncode == 1)
    written = [path.read_text(errors="replace") for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not any(PASSWORD in text for text in written)
