"""Who we are and where: kubeconfig files, credentials, plugins; and what a request does with them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.credentials import Credentials, FixedSource, Login, make_credentials
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kubeconfig import Access, ExecPlugin, User, context_names, load_access
from l2rtui.backends.kubernetes.plugins import ExecSource, plugin_source
from l2rtui.backends.kubernetes.transport import proxy_for
from l2rtui.errors import BackendError, ConfigError
from tests.unit.kubernetes.api_server import Server, refusal, serving

B64 = base64.b64encode(b"PEM").decode()


def write(path, *, current="", contexts=(), clusters=(), users=()):
    config = {
        "current-context": current or None,
        "contexts": [{"name": name, "context": body} for name, body in contexts],
        "clusters": [{"name": name, "cluster": body} for name, body in clusters],
        "users": [{"name": name, "user": body} for name, body in users],
    }
    path.write_text(json.dumps(config))  # JSON is YAML
    return str(path)


def simple(path, **user):
    return write(
        path,
        current="c",
        contexts=[("c", {"cluster": "k", "user": "u", "namespace": "ml"})],
        clusters=[("k", {"server": "https://k:6443/", "certificate-authority-data": B64})],
        users=[("u", user)],
    )


# --- kubeconfig ------------------------------------------------------------------------------------------------
def test_a_kubeconfig_tells_server_user_and_namespace(tmp_path):
    access = load_access(kubeconfig=simple(tmp_path / "k", token="t"))
    assert (access.context, access.server, access.namespace) == ("c", "https://k:6443", "ml")
    assert (access.ca, access.user.token) == (b"PEM", "t")
    assert "t" not in repr(access.user).replace("token", "")[len("User(name='u'") :] or "token='t'" not in repr(
        access.user
    )


def test_of_several_files_the_first_word_counts_and_paths_start_at_their_file(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ca.pem").write_bytes(b"CA")
    one = write(tmp_path / "a" / "k", current="first", contexts=[("first", {"cluster": "k", "user": "u"})],
                users=[("u", {"token": "one"})])  # fmt: skip
    two = write(tmp_path / "b" / "k", current="second", contexts=[("second", {"cluster": "k", "user": "u"})],
                clusters=[("k", {"server": "https://k", "certificate-authority": "ca.pem"})],
                users=[("u", {"token": "two"})])  # fmt: skip
    environ = {"KUBECONFIG": os.pathsep.join([one, str(tmp_path / "missing"), two])}
    access = load_access(environ=environ)
    assert (access.context, access.user.token, access.ca) == ("first", "one", b"CA")
    assert load_access("second", environ=environ).context == "second"
    assert context_names(environ=environ) == (("first", "second"), "first")


def test_without_a_kubeconfig_the_pods_own_account_serves(tmp_path, monkeypatch):
    for name, text in (("token", "secret\n"), ("ca.crt", "CA"), ("namespace", "ml\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("l2rtui.backends.kubernetes.kubeconfig.SERVICE_ACCOUNT", tmp_path)
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = load_access(environ=environ)
    assert (access.context, access.server, access.namespace) == ("in-cluster", "https://[fd00::1]:443", "ml")
    assert access.user.token_file == str(tmp_path / "token")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [}", "line 1 is not YAML"),
        ("just text", "is not a mapping"),
        ("contexts: {a: b}", "contexts is not a list"),
        ("contexts: [{}]", "has no name"),
        ("contexts: []", "has no current context"),
        ("current-context: x", "has no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: y}}]}", "has no cluster 'y'"),
        ("token: secret-token: broken", "is not YAML"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named_without_its_secrets(tmp_path, text, sentence):
    path = tmp_path / "k"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_access(kubeconfig=str(path))
    assert sentence in str(caught.value)
    assert "secret-token" not in str(caught.value)


def test_a_kubeconfig_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="There is no kubeconfig"):
        load_access(kubeconfig=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No kubeconfig was found"):
        load_access(environ={"HOME": str(tmp_path)})


def test_proxies_come_from_the_kubeconfig_or_the_environment(monkeypatch):
    access = Access("c", "k", "https://k:6443", User(), proxy_url="http://p:3128")
    assert proxy_for(access) == "http://p:3128"
    monkeypatch.setenv("https_proxy", "http://e:1")
    monkeypatch.setenv("no_proxy", "other")
    assert proxy_for(replace(access, proxy_url="")) == "http://e:1"
    monkeypatch.setenv("no_proxy", "k")
    assert proxy_for(replace(access, proxy_url="")) is None
    with pytest.raises(ConfigError, match="not supported"):
        proxy_for(replace(access, proxy_url="socks5://me:secret@p"))


# --- what the kubeconfig holds ---------------------------------------------------------------------------------
async def test_tokens_and_passwords_become_headers():
    assert (await FixedSource(User(token="t")).fetch()).authorization == "Bearer t"
    basic = (await FixedSource(User(username="u", password="p")).fetch()).authorization
    assert basic == "Basic " + base64.b64encode(b"u:p").decode()
    assert (await FixedSource(User()).fetch()).authorization == ""


async def test_a_token_file_is_read_again_after_a_minute(tmp_path):
    path, now = tmp_path / "token", [1000.0]
    path.write_text("one\n")
    clock = lambda: now[0]  # noqa: E731  (a clock that is set)
    credentials = Credentials(FixedSource(User(token_file=str(path)), clock), clock)
    assert (await credentials.login()).authorization == "Bearer one"
    path.write_text("two")
    assert (await credentials.login()).authorization == "Bearer one"
    now[0] += 61
    assert (await credentials.login()).authorization == "Bearer two"


async def test_a_missing_file_is_named():
    with pytest.raises(ApiError, match="cannot be read: No such file"):
        await FixedSource(User("u", certificate_file="/nowhere")).fetch()


# --- plugins ---------------------------------------------------------------------------------------------------
def plugin(tmp_path, code, **more):
    path = tmp_path / "plugin.py"
    path.write_text(code)
    return ExecPlugin(sys.executable, (str(path),), **more)


def token(text, **more):
    return f"import json; print(json.dumps({{'status': {dict(token=text, **more)!r}}}))"


ACCESS = Access("c", "k", "https://k", User("u"), ca=b"CA")


async def test_a_plugin_gets_its_arguments_its_variables_and_no_terminal(tmp_path):
    code = (
        "import json, os, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert sys.stdin.read() == '' and os.getsid(0) == os.getpid()\n"
        "assert info['spec']['interactive'] is False and info['spec']['cluster']['server'] == 'https://k'\n"
        "print(json.dumps({'status': {'token': os.environ['WHO']}}))"
    )
    asked = plugin(tmp_path, code, env=(("WHO", "me"),), provide_cluster_info=True)
    assert (await ExecSource(ACCESS, asked).fetch()).authorization == "Bearer me"


async def test_a_plugin_may_give_a_certificate_and_says_until_when(tmp_path):
    given = {"clientCertificateData": "C", "clientKeyData": "K", "expirationTimestamp": "2030-01-01T00:00:00Z"}
    code = f"import json; print(json.dumps({{'status': {given!r}}}))"
    login = await ExecSource(ACCESS, plugin(tmp_path, code)).fetch()
    assert (login.certificate, login.key, login.expires) == (b"C", b"K", 1893456000.0)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import sys; sys.exit('first\\nlog in at https://x')", "failed (exit 1): log in at https://x."),
        ("print('no json, secret')", "printed no credential"),
        ("print('{\"status\": {}}')", "neither a token nor a certificate"),
        ("import sys; sys.stderr.write('x' * (1 << 20)); sys.exit(2)", "failed (exit 2)"),
    ],
)
async def test_a_plugin_that_fails_is_quoted_and_its_output_is_not(tmp_path, code, sentence):
    with pytest.raises(ApiError) as caught:
        await ExecSource(ACCESS, plugin(tmp_path, code, install_hint="get it")).fetch()
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.is_unauthorized
    assert len(str(caught.value)) < 600


async def test_a_plugin_that_hangs_is_ended_with_what_it_started(tmp_path):
    code = (
        "import subprocess, sys, time, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(ApiError, match="did not finish within 1 s"):
        await ExecSource(ACCESS, plugin(tmp_path, code), limit_seconds=1.0).fetch()
    assert time.monotonic() - began < 10
    child = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(5):
        while _lives(child):
            await asyncio.sleep(0.05)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_a_plugin_that_is_not_installed_brings_its_hint():
    asked = ExecPlugin("/nowhere/aws", install_hint="Install it from x.")
    with pytest.raises(ApiError, match=r"aws is not installed\. Install it from x\."):
        await ExecSource(ACCESS, asked).fetch()


# --- tokens for EKS --------------------------------------------------------------------------------------------
EKS = ("--region", "eu-west-1", "eks", "get-token", "--cluster-name", "lab", "--output", "json")


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (ExecPlugin("aws", EKS), ("lab", "eu-west-1", "", "")),
        (ExecPlugin("/usr/bin/aws", EKS, (("AWS_PROFILE", "p"),)), ("lab", "eu-west-1", "p", "")),
        (ExecPlugin("aws", (*EKS, "--role-arn", "r", "--profile=q")), ("lab", "eu-west-1", "q", "r")),
        (ExecPlugin("aws-iam-authenticator", ("token", "-i", "lab", "-r", "r")), ("lab", "", "", "r")),
    ],
)
async def test_tokens_for_eks_are_signed_here(asked, wanted):
    signed = []

    def sign(*words):
        signed.append(words)
        return "k8s-aws-v1.x", 99.0

    login = await plugin_source(ACCESS, asked, sign).fetch()
    assert (signed, login) == ([wanted], Login("Bearer k8s-aws-v1.x", expires=99.0))


@pytest.mark.parametrize(
    "asked",
    [
        ExecPlugin("aws", (*EKS, "--debug-odd", "x")),
        ExecPlugin("aws", EKS, (("AWS_ACCESS_KEY_ID", "k"),)),
        ExecPlugin("aws", ("sso", "login")),
        ExecPlugin("gke-gcloud-auth-plugin"),
    ],
)
def test_what_we_do_not_know_is_left_to_the_plugin(asked):
    assert isinstance(plugin_source(ACCESS, asked, lambda *_: ("x", 0.0)), ExecSource)


@pytest.mark.parametrize("error", [ImportError("no botocore"), BackendError("no credentials")])
async def test_where_nothing_can_be_signed_the_plugin_is_run(tmp_path, error):
    program = tmp_path / "aws"
    program.write_text(f"#!{sys.executable}\n{token('from the program')}")
    program.chmod(0o755)

    def sign(*_):
        raise error

    login = await plugin_source(ACCESS, ExecPlugin(str(program), EKS), sign).fetch()
    assert login.authorization == "Bearer from the program"


# --- one login for all -----------------------------------------------------------------------------------------
class Counting:
    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    async def fetch(self):
        self.asked += 1
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ApiError):
            raise answer
        return answer


async def test_ten_who_ask_at_once_get_one_login():
    source = Counting(Login("a"))
    credentials = Credentials(source)
    assert {(await one).authorization for one in [asyncio.create_task(credentials.login()) for _ in range(10)]} == {
        "a"
    }
    assert source.asked == 1


async def test_a_refused_login_is_renewed_once_for_all_and_not_in_a_loop():
    now = [0.0]
    source = Counting(Login("old"), Login("new"), Login("newer"))
    credentials = Credentials(source, monotonic=lambda: now[0])
    old = await credentials.login()
    now[0] += 11
    renewed = await asyncio.gather(*(credentials.renew(old) for _ in range(10)))
    assert ({one.authorization for one in renewed}, source.asked) == ({"new"}, 2)
    assert (await credentials.renew(renewed[0])).authorization == "new"
    now[0] += 11
    assert (await credentials.renew(renewed[0])).authorization == "newer"


async def test_a_source_that_has_just_failed_is_not_asked_again_at_once():
    now = [0.0]
    source = Counting(ApiError("no"), Login("a"))
    credentials = Credentials(source, monotonic=lambda: now[0])
    for _ in range(3):
        with pytest.raises(ApiError, match="no"):
            await credentials.login()
    assert source.asked == 1
    now[0] += 11
    assert (await credentials.login()).authorization == "a"


async def test_a_login_that_runs_out_is_renewed_before():
    now = [1000.0]
    source = Counting(Login("a", expires=1100.0), Login("b", expires=1200.0))
    credentials = Credentials(source, clock=lambda: now[0])
    assert (await credentials.login()).authorization == "a"
    now[0] = 1091.0
    assert (await credentials.login()).authorization == "b"


async def test_a_request_that_is_refused_renews_the_login_and_is_repeated_once():
    server = Server(on_list=[refusal(401, "Unauthorized")])
    async with serving(server):
        api = Api(
            Access("c", "k", server.base, User("u")), Credentials(Counting(Login("Bearer 1"), Login("Bearer 2")))
        )
        api._credentials._monotonic = iter(range(0, 10**6, 20)).__next__
        await api.list("ConfigMap", None)
        assert server.tokens == ["Bearer 1", "Bearer 2"]
        server.on_list = [refusal(401, "Unauthorized")] * 5
        with pytest.raises(ApiError) as caught:
            await api.list("ConfigMap", None)
        assert caught.value.is_unauthorized
        assert len(server.tokens) <= 4
        await api.close()


async def test_too_many_requests_are_waited_out_within_the_time():
    server = Server(on_list=[refusal(429, "TooManyRequests", Retry_After="0.2")] * 2)
    async with serving(server):
        api = server.api()
        began = time.monotonic()
        assert await api.list("ConfigMap", None) == []
        assert time.monotonic() - began >= 0.4
        server.on_list = [refusal(429, "TooManyRequests", Retry_After="9")]
        with pytest.raises(ApiError) as caught:
            await api.request("GET", "/api/v1/configmaps", timeout_seconds=1.0)
        assert (caught.value.is_busy, caught.value.retry_after_seconds) == (True, 9.0)
        await api.close()


async def test_no_answer_and_odd_answers_are_sentences():
    server = Server(on_list=[web.Response(text="<html>")])
    async with serving(server):
        api = server.api()
        with pytest.raises(ApiError, match="is not JSON"):
            await api.list("ConfigMap", None)
    with pytest.raises(ApiError, match="No answer from http://127") as caught:
        await api.get_json("/version")
    assert caught.value.is_refused
    assert caught.value.is_unreachable
    await api.close()


async def test_the_certificates_of_the_kubeconfig_leave_no_file_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = make_credentials(ACCESS)
    assert isinstance(config, Credentials)
    login = Login("", b"not a certificate", b"not a key")
    api = Api(Access("c", "k", "https://127.0.0.1:1", User("u")), Credentials(Counting(login)))
    with pytest.raises(ApiError, match="client certificate and key of u cannot be used"):
        await api.get_json("/version")
    assert list(tmp_path.iterdir()) == []
    await api.close()
