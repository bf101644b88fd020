"""Faults in the official library's configuration at 37.0.1, for which we have our own code: each test runs on both.

With the library's code each test must fail (strict): a release that passes one is reported here, and our
replacement can be removed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from l2rtui.backends.kubernetes.api import credentials, kubeconfig
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.kubeconfig import load_access
from tests.l2rtui.backends.kubernetes.api.test_oidc import HOUR, Provider, token
from tests.l2rtui.backends.kubernetes.api_server import Server, refusal, serving


class Ours:
    """Our reader of kubeconfig files, and a request with its result."""

    seconds = 60.0

    def __init__(self, path: str) -> None:
        self._path = path

    async def load(self) -> str:
        return load_access(kubeconfig=self._path).server

    async def request(self, times: int = 1) -> None:
        api = Api(load_access(kubeconfig=self._path))
        try:
            for _ in range(times):
                await api.get_json("/version")
        finally:
            await api.close()


class Library:
    """The official library's reader."""

    seconds = 2.0  # one of its faults is to wait forever

    def __init__(self, path: str) -> None:
        self._path = path
        self._configuration = Configuration()

    async def load(self) -> str:
        await load_kube_config(self._path, client_configuration=self._configuration)
        return self._configuration.host

    async def request(self, times: int = 1) -> None:
        await self.load()
        async with ApiClient(self._configuration) as client:
            for _ in range(times):
                asked = await client.param_serialize("GET", "/version", auth_settings=["BearerToken"])
                answer = await client.call_api(*asked)
                await answer.read()
                assert answer.status == 200


@pytest.fixture(params=[Ours, pytest.param(Library, marks=pytest.mark.xfail(strict=True, reason="fault upstream"))])
def reader(request):
    return request.param


class Recorder:
    """API server that records the headers of all requests, and refuses the logins named by a test."""

    def __init__(self) -> None:
        self.headers: list = []
        self.refused = ""
        self.on_refusal: Callable[[], object] = lambda: None
        self.server = Server(on_request=self._answer)

    async def _answer(self, request):
        self.headers.append(request.headers.copy())
        if self.refused and request.headers.get("Authorization") == self.refused:
            self.on_refusal()
            return refusal(401, "Unauthorized")
        return web.json_response({"major": "1", "minor": "31"})


@pytest.fixture
async def api_server():
    recorder = Recorder()
    async with serving(recorder.server):
        yield recorder


def write(path: Path, server: str, user: dict | None, **context: str) -> str:
    path.write_text(json.dumps({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", **({"user": "u"} if user is not None else {})}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [] if user is None else [{"name": "u", "user": user}],
        **context,
    }))  # fmt: skip
    return str(path)


def plugin(tmp_path: Path, code: str, command: str = "") -> dict:
    """A user whose plugin runs this shell code."""
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\n{code}\n")
    script.chmod(0o755)
    return {"exec": {"command": command or str(script), "apiVersion": "client.authentication.k8s.io/v1"}}


@asynccontextmanager
async def within(seconds: float, monkeypatch):
    """A time limit, after which no plugin is left running: the library does not end a plugin that it waits for."""
    create, processes = asyncio.create_subprocess_exec, []

    async def record(*command, **settings):
        processes.append(await create(*command, **settings))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", record)
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        for process in processes:
            process._transport.close()  # kills it, and closes the unread pipe
            await process.wait()


CREDENTIAL = json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"},
})  # fmt: skip
GIVE_TOKEN = f"echo '{CREDENTIAL}'"


# --- credential plugins -----------------------------------------------------------------------------------------
@pytest.mark.process
async def test_nothing_is_sent_without_a_login_when_the_plugin_fails(reader, tmp_path, api_server):
    path = write(tmp_path / "k", api_server.server.base, plugin(tmp_path, "echo log in first >&2; exit 1"))
    with pytest.raises(Exception, match="log in first"):
        await reader(path).request()
    assert api_server.headers == []


@pytest.mark.process
async def test_a_talkative_plugin_does_not_block(reader, tmp_path, api_server, monkeypatch):
    talk = "i=0; while [ $i -lt 300 ]; do printf %01000d 0 >&2; i=$((i+1)); done"
    path = write(tmp_path / "k", api_server.server.base, plugin(tmp_path, f"{talk}; {GIVE_TOKEN}"))
    async with within(reader.seconds, monkeypatch):
        await reader(path).request()
    assert [headers["Authorization"] for headers in api_server.headers] == ["Bearer t"]


@pytest.mark.process
async def test_a_plugin_does_not_eat_the_keys_of_the_app(reader, tmp_path, api_server):
    path = write(tmp_path / "k", api_server.server.base, plugin(tmp_path, f"read line; {GIVE_TOKEN}"))
    keys, typist = os.pipe()
    os.write(typist, b"q\n")
    os.close(typist)
    stdin = os.dup(0)
    os.dup2(keys, 0)
    try:
        await reader(path).request()
        assert os.read(0, 10) == b"q\n"
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(keys)


@pytest.mark.process
async def test_the_path_of_a_plugin_starts_at_its_kubeconfig(reader, tmp_path, api_server, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write(tmp_path / "k", api_server.server.base, plugin(tmp_path, GIVE_TOKEN, "./plugin"))
    await reader(path).request()
    assert [headers.get("Authorization") for headers in api_server.headers] == ["Bearer t"]


# --- the kubeconfig ---------------------------------------------------------------------------------------------
async def test_the_first_file_with_a_current_context_chooses(reader, tmp_path):
    first = write(tmp_path / "first", "http://first", {"token": "t"})
    body = {
        "clusters": [{"name": "two", "cluster": {"server": "http://second"}}],
        "contexts": [{"name": "two", "context": {"cluster": "two", "user": "u"}}],
        "current-context": "two",
    }
    (tmp_path / "second").write_text(json.dumps(body))
    assert await reader(f"{first}{os.pathsep}{tmp_path / 'second'}").load() == "http://first"


async def test_an_empty_first_file_is_no_obstacle(reader, tmp_path):
    (tmp_path / "empty").write_text("")
    good = write(tmp_path / "good", "http://good", {"token": "t"})
    assert await reader(f"{tmp_path / 'empty'}{os.pathsep}{good}").load() == "http://good"


async def test_a_context_needs_no_user(reader, tmp_path):
    path = write(tmp_path / "k", "https://proxy", None)
    assert await reader(path).load() == "https://proxy"


async def test_who_is_to_act_as_another_user_does(reader, tmp_path, api_server):
    user = {"token": "t", "as": "anna", "as-groups": ["readers", "guests"]}
    await reader(write(tmp_path / "k", api_server.server.base, user)).request()
    (headers,) = api_server.headers
    assert headers.getall("Impersonate-User", []) == ["anna"]
    assert headers.getall("Impersonate-Group", []) == ["readers", "guests"]


async def test_a_token_file_is_read_again(reader, tmp_path, api_server, monkeypatch):
    monkeypatch.setattr(credentials, "_CALM_SECONDS", 0.0)
    (tmp_path / "token").write_text("old")
    api_server.refused = "Bearer old"
    api_server.on_refusal = partial((tmp_path / "token").write_text, "new")
    await reader(write(tmp_path / "k", api_server.server.base, {"tokenFile": "token"})).request()
    assert [headers["Authorization"] for headers in api_server.headers] == ["Bearer old", "Bearer new"]


async def test_keys_are_in_no_file(reader, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    await reader(
        write(tmp_path / "k", "https://k", {"client-key-data": "a2V5", "client-certificate-data": "Y2VydA=="})
    ).load()
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_the_token_of_a_pod_may_end_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_text("CA")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    access = load_access(environ=environ)
    assert (await credentials.make_credentials(access).login()).authorization == "Bearer t"
    configuration = Configuration()
    loader = InClusterConfigLoader(str(tmp_path / "token"), str(tmp_path / "ca.crt"), environ=environ)
    loader.load_and_set(configuration)
    # Once this has no line end, load_incluster_config can be used.
    assert configuration.api_key["BearerToken"] == "bearer t\n"


# --- OpenID Connect ---------------------------------------------------------------------------------------------
def oidc(issuer: str, **more: str) -> dict:
    config = {
        "idp-issuer-url": issuer,
        "client-id": "kubectl",
        "client-secret": "s3cret",
        "refresh-token": "old",
        **more,
    }
    return {"auth-provider": {"name": "oidc", "config": {"id-token": token(time.time() - HOUR), **config}}}


@pytest.mark.filterwarnings("ignore")  # from aiohttp, for the library's own calls
async def test_a_refresh_token_is_not_sent_to_a_stranger(reader, tmp_path):
    async with Provider(tmp_path) as stranger:  # its certificate is self-signed
        stranger.answer = (200, {"id_token": token(time.time() + HOUR), "refresh_token": "new"})
        path = write(tmp_path / "k", "http://127.0.0.1:1", oidc(f"{stranger.root}/realm"))
        with pytest.raises(Exception, match=r"."):
            await reader(path).request()
        assert stranger.asked == []


@pytest.mark.filterwarnings("ignore")
async def test_the_authority_of_a_provider_can_be_named(reader, tmp_path, api_server):
    async with Provider(tmp_path) as provider:
        provider.answer = (200, {"id_token": token(time.time() + HOUR), "refresh_token": "new"})
        authority = base64.b64encode(provider.ca.read_bytes()).decode()
        user = oidc(f"{provider.root}/realm", **{"idp-certificate-authority-data": authority})
        await reader(write(tmp_path / "k", api_server.server.base, user)).request()
        assert len(provider.asked) == 1


@pytest.mark.filterwarnings("ignore")
async def test_a_refresh_token_that_was_replaced_is_saved(reader, tmp_path, api_server):
    async with Provider(tmp_path, is_tls=False) as provider:
        provider.answer = (200, {"id_token": token(time.time() + HOUR), "refresh_token": "new"})
        path = write(tmp_path / "k", api_server.server.base, oidc(f"{provider.root}/realm"))
        await reader(path).request()
        assert len(provider.asked) == 1
        config = json.loads(Path(path).read_text())["users"][0]["user"]["auth-provider"]["config"]
        assert config["refresh-token"] == "new"
