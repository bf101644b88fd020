"""Logins of registries as stored by Docker, in its file and in its helpers; builds through buildx."""

from __future__ import annotations

import base64
import json
import os

import pytest

from l2rtui.cloud.images import credentials, engine
from l2rtui.cloud.images.credentials import Login
from l2rtui.cloud.images.engine import BuildFailedError, BuildStage, StreamTracker
from l2rtui.errors import BackendError, ConfigError

HELPER = """\
#!/bin/sh
case $1 in
  store) cat > {folder}/stored ;;
  get) read host; test "$host" = known.example || { echo "credentials not found in native keychain"; exit 1; }
       echo '{"ServerURL":"known.example","Username":"u","Secret":"hidden-word"}' ;;
esac
"""
BUILDX = """\
#!/bin/sh
test "$2" = version && exit 0
echo "$@" > {folder}/argv
echo '#5 [1/2] FROM docker.io/library/debian'
echo '#5 DONE 0.1s'
echo '#6 0.312 some output'
exit {code}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "docker" / "config.json"


def program(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_login_is_kept_beside_what_is_there_and_found_again(config):
    config.parent.mkdir()
    config.write_text(json.dumps({"auths": {"old.example": {"auth": "eDp5"}}, "detachKeys": "ctrl-x"}))
    where = credentials.store_login("new.example:5000", Login("u", "hidden-word"))
    assert where == str(config)
    assert config.stat().st_mode & 0o777 == 0o600
    assert json.loads(config.read_text())["detachKeys"] == "ctrl-x"
    assert credentials.find_login("new.example:5000") == Login("u", "hidden-word")
    assert credentials.find_login("old.example") == Login("x", "y")
    assert credentials.find_login("other.example") is None
    assert "hidden-word" not in repr(credentials.find_login("new.example:5000"))
    document = credentials.auth_document("docker.io", Login("u", "p"))
    entry = document["auths"]["https://index.docker.io/v1/"]
    assert base64.b64decode(entry["auth"]) == b"u:p"


@pytest.mark.process
def test_a_helper_keeps_and_gives_logins(config, tmp_path):
    program(tmp_path, "docker-credential-lab", HELPER.replace("{folder}", str(tmp_path)))
    config.parent.mkdir()
    config.write_text(json.dumps({"credsStore": "lab"}))
    assert credentials.find_login("known.example") == Login("u", "hidden-word")
    assert credentials.find_login("strange.example") is None
    assert credentials.store_login("known.example", Login("u", "hidden-word")) == "docker-credential-lab"
    assert json.loads((tmp_path / "stored").read_text())["Secret"] == "hidden-word"
    assert "hidden-word" not in config.read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no settings"),
        ('{"credsStore": "../evil"}', "is not a program name"),
        ('{"auths": {"h.example": {"auth": "!"}}}', "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_said_to_be(config, text, sentence):
    config.parent.mkdir()
    config.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        credentials.find_login("h.example")


@pytest.mark.process
def test_a_helper_that_is_missing_or_fails_is_named_without_what_it_wrote(config, tmp_path):
    config.parent.mkdir()
    config.write_text(json.dumps({"credHelpers": {"h.example": "none-such"}}))
    with pytest.raises(BackendError, match="docker-credential-none-such, which is not installed"):
        credentials.find_login("h.example")
    program(tmp_path, "docker-credential-bad", "#!/bin/sh\ncat; exit 3\n")
    config.write_text(json.dumps({"credsStore": "bad"}))
    with pytest.raises(BackendError, match="failed with exit code 3") as caught:
        credentials.store_login("h.example", Login("u", "hidden-word"))
    assert "hidden-word" not in str(caught.value)


@pytest.mark.process
async def test_buildx_gives_its_lines_and_its_end_when_it_fails(tmp_path):
    def docker(code):
        return program(tmp_path, "docker", BUILDX.replace("{folder}", str(tmp_path)).replace("{code}", str(code)))

    assert await engine.has_buildx(docker(0))
    assert not await engine.has_buildx(str(tmp_path / "nothing"))
    stage = BuildStage("/src", "docker/Dockerfile.base", "base:1", {"BASE": "x"}, {"l": "v"}, "host")
    steps = [step async for step in engine.build(stage, program=docker(0))]
    assert [(step.text[:2], step.is_step) for step in steps] == [("#5", True), ("#5", True), ("#6", False)]
    argv = (tmp_path / "argv").read_text()
    assert (
        "--load -t base:1 -f /src/docker/Dockerfile.base --network host --build-arg BASE=x --label l=v /src" in argv
    )
    with pytest.raises(BuildFailedError, match="some output"):
        _ = [step async for step in engine.build(stage, program=docker(1))]


def test_a_layer_of_gigabytes_gives_a_line_now_and_then_where_lines_stay():
    tracker, total = StreamTracker("push"), 3 << 30
    details = ({"current": number << 24, "total": total} for number in range(193))
    told = [tracker.add_message({"id": "a", "status": "Pushing", "progressDetail": detail}) for detail in details]
    assert [step.text for step in told if step.is_step][:2] == [
        "push: 0 of 1 layers, 256Mi of 3Gi",
        "push: 0 of 1 layers, 512Mi of 3Gi",
    ]
    assert sum(step.is_step for step in told) == 12


def test_an_engine_s_stream_is_followed_to_its_failure():
    tracker = StreamTracker("push")
    assert tracker.add_message({"status": "The push refers to repository [x]"}) is None
    for current in (10, 60):
        detail = {"current": current, "total": 100}
        progress = tracker.add_message({"id": "a", "status": "Pushing", "progressDetail": detail})
        assert not progress.is_step
    assert progress.text == "push: 0 of 1 layers, 60 of 100"
    assert tracker.add_message({"id": "b", "status": "Layer already exists"}).is_step
    assert tracker.add_message({"id": "a", "status": "Retrying in 5 seconds"}).is_step
    assert tracker.add_message({"id": "a", "status": "Pushed"}).text == "push: a pushed"
    tracker.add_message({"aux": {"Digest": "sha256:1", "Tag": "1"}})
    assert (tracker.layers, len(tracker.present), tracker.aux["Digest"]) == (2, 1, "sha256:1")
    with pytest.raises(BuildFailedError, match=r"denied: x\.y"):
        tracker.add_message({"error": "x", "errorDetail": {"message": "denied: x.y"}})
