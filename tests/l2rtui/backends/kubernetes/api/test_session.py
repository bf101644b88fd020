"""Both transports: their requests, forbidden behaviour, and the modules that may import the library."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.credentials import Credentials, make_credentials
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.http import Connection
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.errors import ConfigError
from tests.import_contracts import names_in
from tests.l2rtui.backends.kubernetes.api_server import Server, serving

AS_ANNA = (("Impersonate-User", "anna"), ("Impersonate-Group", "readers"), ("Impersonate-Group", "guests"))


class Logins:
    """Source of successive logins, with the number of fetches."""

    def __init__(self, *authorizations):
        self._left = [ApiLogin(authorization) for authorization in authorizations]
        self.count = 0

    async def fetch(self):
        self.count += 1
        return self._left.pop(0)


@pytest.fixture(params=["lean", "session"])
async def connected(request):
    """Make a connection that reads by one of the transports."""
    made = []

    async def connect(access, credentials=None):
        made.append(api := Connection(access, credentials))
        if request.param == "session":
            await api._library()
        return api

    yield connect
    for api in made:
        await api.close()


async def test_the_certificates_of_the_kubeconfig_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    access = Access("c", "k", "https://127.0.0.1:1", User("u", b"not a certificate", b"not a key"))
    config = make_credentials(access)
    assert isinstance(config, Credentials)
    api = Api(access, config)
    with pytest.raises(ApiError, match="client certificate and key of u cannot be used"):
        await api.get_json("/version")
    assert list(tmp_path.iterdir()) == []
    await api.close()


@pytest.mark.parametrize("ca", [b"no PEM", b"\xff\xfe"])
async def test_an_authority_that_cannot_be_read_is_a_sentence(connected, ca):
    api = await connected(Access("c", "k", "https://127.0.0.1:1", User(), ca=ca))
    with pytest.raises(ConfigError, match="authority of the context c is no PEM"):
        await api.request("GET", "/version")


async def test_requests_carry_login_impersonation_and_names_as_they_are(connected, monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login stranger password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # loopback is never proxied
    requests = []

    async def answer(request):
        body = await request.text()
        requests.append((request.method, request.raw_path, request.headers.copy(), body))
        return web.json_response({})

    async with serving(Server(on_request=answer)) as server:
        access = Access("c", "k", server.base, User("u", impersonate=AS_ANNA))
        api = await connected(access, Credentials(Logins("")))
        await api.request("GET", "/api/v1/pods/a%2Fb", query={"labelSelector": "x in (a,b)", "continue": "a+b/c="})
        await api.request(
            "PATCH", "/p", body={"ä": [1, None, {"b": 0.5}]}, content_type="application/apply-patch+yaml"
        )
        await api.close()
    (_, path, headers, _), (method, _, patch, body) = requests
    assert path.partition("?")[0] == "/api/v1/pods/a%2Fb"
    assert path.partition("?")[2] == "labelSelector=x%20in%20%28a%2Cb%29&continue=a%2Bb/c%3D"
    assert headers.getall("Impersonate-Group") == ["readers", "guests"]
    assert headers["User-Agent"].startswith("l2rtui/")
    assert "Authorization" not in headers  # not the one of ~/.netrc either
    assert (method, patch["Content-Type"]) == ("PATCH", "application/apply-patch+yaml")
    assert json.loads(body) == {"ä": [1, None, {"b": 0.5}]}


async def test_a_refused_login_is_renewed_once_for_requests_and_for_websockets(connected, monkeypatch):
    monkeypatch.setattr("l2rtui.backends.kubernetes.api.credentials._CALM_SECONDS", 0.0)
    seen = []

    async def answer(request):
        seen.append(request.headers.get("Authorization"))
        return web.json_response({}, status=200 if seen[-1] == "Bearer new" else 401)

    async with serving(Server(on_request=answer)) as server:
        logins = Logins("Bearer old", "Bearer new")
        api = await connected(Access("c", "k", server.base, User()), Credentials(logins))
        await api.request("GET", "/version")
        await api.request("GET", "/version")
        assert (seen, logins.count) == (["Bearer old", "Bearer new", "Bearer new"], 2)
        await api.close()
        seen.clear()
        api = Connection(Access("c", "k", server.base, User()), Credentials(Logins("Bearer old", "Bearer new")))
        with pytest.raises(ApiError):  # this server offers none, but it has accepted the login
            await api.websocket("/exec", protocols=("v5.channel.k8s.io",))
        assert seen[:2] == ["Bearer old", "Bearer new"]
        await api.close()


async def test_redirects_are_not_followed(connected):
    stranger_saw = []

    async def steal(request):
        stranger_saw.append(request.path)
        return web.json_response({})

    async with serving(Server(on_request=steal)) as stranger:

        async def redirect(_):
            raise web.HTTPFound(f"{stranger.base}/login")

        async with serving(Server(on_request=redirect)) as server:
            api = await connected(Access("c", "k", server.base, User("u", token="t", impersonate=AS_ANNA)))
            for method, body in (("GET", None), ("POST", {})):
                with pytest.raises(ApiError, match=r"redirected to 127\.0\.0\.1") as caught:
                    await api.request(method, "/api/v1/pods", body=body)
                assert caught.value.status == 302
            with pytest.raises(ApiError, match="redirected"):
                await api.websocket("/exec", protocols=("v5.channel.k8s.io",))
            await api.close()
    assert stranger_saw == []


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from kubernetes.aio.client import ApiClient, Configuration", {"ApiClient", "Configuration"}),
        ("from kubernetes.aio.client import CoreV1Api  # typed", {"CoreV1Api"}),
    ],
)
def test_the_contract_reads_names(line, names):
    assert names_in(line) == {f"kubernetes.aio.client.{name}" for name in names}


@pytest.mark.parametrize(
    "line", ["import kubernetes.aio.client as k8s", "from kubernetes.aio.client import (", "import kubernetes"]
)
def test_the_contract_refuses_what_opens_everything(line):
    assert names_in(line) == {line}
