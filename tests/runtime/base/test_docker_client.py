"""Endpoints found in the same way as by the docker program; requests, streams, upgrades and errors of the
client.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import threading

import pytest

from runtime.base.docker_client import (
    DEFAULT_SOCKET,
    DockerClient,
    DockerEndpoint,
    EngineError,
    decode_messages,
    find_endpoint,
    take_frames,
)
from runtime.base.installation import install_hint
from tests.fakes.docker_engine import FakeDockerEngine, frame


def write_context(folder, name, endpoint, certificates=()):
    number = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts" / "meta" / number
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": {"docker": endpoint}}))
    for file in certificates:
        path = folder / "contexts" / "tls" / number / "docker" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@pytest.fixture
def environ(tmp_path):
    return {"DOCKER_CONFIG": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")}


@pytest.fixture(params=["unix", "tcp"])
def fake(request, tmp_path):
    made = FakeDockerEngine(str(tmp_path / "docker.sock") if request.param == "unix" else "")
    yield made
    made.close()


@pytest.fixture
def client(fake):
    made = DockerClient(DockerEndpoint(fake.url))
    yield made
    made.close()


# --- the endpoint ----------------------------------------------------------------------------------------------
def test_the_usual_socket_and_a_rootless_one(environ, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.base.docker_client.DEFAULT_SOCKET", str(tmp_path / "none.sock"))
    assert find_endpoint(environ).socket_path == str(tmp_path / "none.sock")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "docker.sock").touch()
    assert find_endpoint(environ).socket_path == str(tmp_path / "run" / "docker.sock")
    assert DEFAULT_SOCKET == "/var/run/docker.sock"


def test_docker_host_comes_before_every_context(environ, tmp_path):
    write_context(tmp_path, "lab", {"Host": "tcp://lab:2375"})
    environ |= {"DOCKER_HOST": "unix:///x.sock", "DOCKER_CONTEXT": "lab"}
    endpoint = find_endpoint(environ)
    assert (endpoint.socket_path, endpoint.source, endpoint.tls_dir) == ("/x.sock", "DOCKER_HOST", "")
    environ |= {"DOCKER_TLS_VERIFY": "1"}
    assert find_endpoint(environ).tls_dir == str(tmp_path)
    environ |= {"DOCKER_CERT_PATH": "/certs", "DOCKER_TLS_VERIFY": ""}
    endpoint = find_endpoint(environ)
    assert (endpoint.tls_dir, endpoint.verifies_tls) == ("/certs", False)


def test_docker_context_comes_before_the_current_one(environ, tmp_path):
    write_context(tmp_path, "one", {"Host": "unix:///one.sock"})
    write_context(tmp_path, "two", {"Host": "tcp://two:2376", "SkipTLSVerify": True}, ["ca.pem"])
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "one"}))
    assert find_endpoint(environ).socket_path == "/one.sock"
    endpoint = find_endpoint(environ | {"DOCKER_CONTEXT": "two"})
    assert (endpoint.url, endpoint.source) == ("tcp://two:2376", "the Docker context two")
    assert not endpoint.verifies_tls
    assert endpoint.tls_dir.endswith("/docker")
    assert find_endpoint(environ | {"DOCKER_CONTEXT": "default"}).source == ""


def test_a_context_without_a_config_file_is_found(environ, tmp_path):
    write_context(tmp_path, "lab", {"Host": "unix:///lab.sock"})
    assert find_endpoint(environ | {"DOCKER_CONTEXT": "lab"}).socket_path == "/lab.sock"


def test_a_context_that_is_missing_or_broken_is_named(environ, tmp_path):
    with pytest.raises(EngineError, match="There is no Docker context lab in"):
        find_endpoint(environ | {"DOCKER_CONTEXT": "lab"})
    write_context(tmp_path, "lab", {})
    with pytest.raises(EngineError, match="The Docker context lab cannot be read"):
        find_endpoint(environ | {"DOCKER_CONTEXT": "lab"})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"currentContext": ""}', "\0"])
def test_settings_without_a_context_mean_the_default(environ, tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert find_endpoint(environ).source == ""


# --- the client ------------------------------------------------------------------------------------------------
def test_a_request_and_its_refusal(client, fake):
    assert client.request_json("GET", "/info")["NCPU"] == 4
    with pytest.raises(EngineError, match="refused GET /containers/x/json: No such container: x") as caught:
        client.request("GET", "/containers/x/json")
    assert caught.value.status == 404
    fake.fail("GET", "/info", 500, "")
    with pytest.raises(EngineError) as caught:
        client.request("GET", "/info")
    assert caught.value.status == 500


def test_a_stream_is_ended_from_another_thread_while_it_waits(client, fake):
    stream = client.stream("/events")
    ended = threading.Event()

    def read():
        assert list(stream) == []
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    while not stream._is_started:
        ended.wait(0.01)
    stream.close()
    assert ended.wait(60)


def test_a_stream_that_nobody_reads_is_closed(client):
    stream = client.stream("/events")
    stream.close()
    assert stream._response.raw.closed


def test_a_stream_that_breaks_off_is_an_error(client, fake):
    fake.cut.set()
    with pytest.raises(EngineError, match="cannot be reached"):
        list(client.stream("/events"))


def test_an_upgrade_gives_what_came_with_the_head(client, fake):
    fake.create("c", {"Image": "img:1", "HostConfig": {"NetworkMode": "n"}})
    created = client.request_json(
        "POST", "/containers/c/exec", body={"Cmd": ["x"], "AttachStdin": True, "Tty": False}
    )
    connection, early = client.upgrade(f"/exec/{created['Id']}/start", {"Detach": False})
    with connection:
        connection.setblocking(True)
        connection.sendall(b"in")
        connection.shutdown(1)
        received = bytearray(early)
        while block := connection.recv(100):
            received += block
    assert take_frames(received) == [(1, b"out"), (1, b"read in")]


def test_no_engine_and_no_permission_are_sentences(tmp_path, monkeypatch):
    client = DockerClient(DockerEndpoint(f"unix://{tmp_path}/none.sock"))
    with pytest.raises(EngineError, match=r"none\.sock cannot be reached: No such file or directory\."):
        client.request("GET", "/info")
    with pytest.raises(EngineError, match="cannot be reached: Connection refused"):
        DockerClient(DockerEndpoint("tcp://127.0.0.1:1")).request("GET", "/info")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(EngineError, match="You may not use the Docker Engine at"):
        client.request("GET", "/info")


def test_an_engine_over_ssh_says_what_it_needs():
    with pytest.raises(EngineError, match="over ssh, which needs paramiko") as caught:
        DockerClient(DockerEndpoint("ssh://me@nowhere")).request("GET", "/info")
    assert "ssh -L" in caught.value.hint


def test_the_library_that_is_missing_is_named(client, monkeypatch):
    original = builtins.__import__

    def missing(name, *rest):
        if name.startswith("docker"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(EngineError, match="is not installed") as caught:
        client.request("GET", "/info")
    monkeypatch.undo()
    assert caught.value.hint == install_hint("docker")


def test_frames_that_are_not_complete_stay():
    buffer = bytearray(frame(1, b"one") + frame(2, b"") + frame(1, b"two")[:-1])
    assert take_frames(buffer) == [(1, b"one"), (2, b"")]
    assert take_frames(buffer) == []
    buffer += b"o"
    assert take_frames(buffer) == [(1, b"two")]
    assert buffer == b""


def test_messages_are_lines_wherever_the_blocks_end():
    assert list(decode_messages([b'{"a":', b' 1}\r\n{"b": 2}', b"\r\n\r\n", b'{"c": 3}'])) == [
        {"a": 1}, {"b": 2}, {"c": 3},
    ]  # fmt: skip
