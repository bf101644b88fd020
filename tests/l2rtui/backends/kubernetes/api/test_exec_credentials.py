"""Credential plugins: their input and output, and tokens for EKS that need no plugin."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

from l2rtui.backends.kubernetes.api.credentials import ExecSource, plugin_source
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, ExecPlugin, User
from l2rtui.backends.kubernetes.api.login import ApiLogin
from l2rtui.errors import BackendError


# --- plugins ---------------------------------------------------------------------------------------------------
def plugin(tmp_path, code, **more):
    path = tmp_path / "plugin.py"
    path.write_text(code)
    return ExecPlugin(sys.executable, (str(path),), **more)


def token(text, **more):
    return f"import json; print(json.dumps({{'status': {dict(token=text, **more)!r}}}))"


ACCESS = Access("c", "k", "https://k", User("u"), ca=b"CA")


@pytest.mark.process
async def test_a_plugin_gets_its_arguments_its_variables_and_no_terminal(tmp_path):
    code = (
        "import json, os, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert sys.stdin.read() == '' and os.getsid(0) == os.getpid()\n"
        "assert info['spec']['interactive'] is False and info['spec']['cluster']['server'] == 'https://k'\n"
        "print(json.dumps({'status': {'token': os.environ['WHO']}}))"
    )
    plugin_args = plugin(tmp_path, code, env=(("WHO", "me"),), provide_cluster_info=True)
    assert (await ExecSource(ACCESS, plugin_args).fetch()).authorization == "Bearer me"


@pytest.mark.process
async def test_a_plugin_may_give_a_certificate_and_says_until_when(tmp_path):
    supplied_value = {
        "clientCertificateData": "C",
        "clientKeyData": "K",
        "expirationTimestamp": "2030-01-01T00:00:00Z",
    }
    code = f"import json; print(json.dumps({{'status': {supplied_value!r}}}))"
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
@pytest.mark.process
async def test_a_plugin_that_fails_is_quoted_and_its_output_is_not(tmp_path, code, sentence):
    with pytest.raises(ApiError) as caught:
        await ExecSource(ACCESS, plugin(tmp_path, code, install_hint="get it")).fetch()
    assert sentence in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.is_unauthorized
    assert len(str(caught.value)) < 600


@pytest.mark.process
async def test_a_plugin_that_hangs_is_ended_with_what_it_started(tmp_path):
    code = (
        "import subprocess, sys, time, pathlib\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(ApiError, match="did not finish within 5 s"):
        await ExecSource(ACCESS, plugin(tmp_path, code), limit_seconds=5.0).fetch()
    assert time.monotonic() - began < 40, "the plugin sleeps for a minute"
    child = int((tmp_path / "pid").read_text())
    async with asyncio.timeout(30):
        while _lives(child):
            await asyncio.sleep(0.05)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.process
async def test_a_plugin_that_is_not_installed_brings_its_hint(tmp_path):
    plugin_args = ExecPlugin(str(tmp_path / "missing" / "aws"), install_hint="Install it from x.")
    with pytest.raises(ApiError, match=r"aws is not installed\. Install it from x\."):
        await ExecSource(ACCESS, plugin_args).fetch()


# --- tokens for EKS --------------------------------------------------------------------------------------------
EKS = ("--region", "eu-west-1", "eks", "get-token", "--cluster-name", "lab", "--output", "json")


@pytest.mark.parametrize(
    ("plugin_args", "expected"),
    [
        (ExecPlugin("aws", EKS), ("lab", "eu-west-1", "", "")),
        (ExecPlugin("/usr/bin/aws", EKS, (("AWS_PROFILE", "p"),)), ("lab", "eu-west-1", "p", "")),
        (ExecPlugin("aws", (*EKS, "--role-arn", "r", "--profile=q")), ("lab", "eu-west-1", "q", "r")),
        (ExecPlugin("aws-iam-authenticator", ("token", "-i", "lab", "-r", "r")), ("lab", "", "", "r")),
    ],
)
async def test_tokens_for_eks_are_signed_here(plugin_args, expected):
    signed = []

    def sign(*arguments):
        signed.append(arguments)
        return "k8s-aws-v1.x", 99.0

    login = await plugin_source(ACCESS, plugin_args, sign).fetch()
    assert (signed, login) == ([expected], ApiLogin("Bearer k8s-aws-v1.x", expires=99.0))


@pytest.mark.parametrize(
    "plugin_args",
    [
        ExecPlugin("aws", (*EKS, "--debug-odd", "x")),
        ExecPlugin("aws", EKS, (("AWS_ACCESS_KEY_ID", "k"),)),
        ExecPlugin("aws", ("sso", "login")),
        ExecPlugin("gke-gcloud-auth-plugin"),
    ],
)
def test_what_we_do_not_know_is_left_to_the_plugin(plugin_args):
    assert isinstance(plugin_source(ACCESS, plugin_args, lambda *_: ("x", 0.0)), ExecSource)


@pytest.mark.parametrize("error", [ImportError("no botocore"), BackendError("no credentials")])
@pytest.mark.process
async def test_where_nothing_can_be_signed_the_plugin_is_run(tmp_path, error):
    program = tmp_path / "aws"
    program.write_text(f"#!{sys.executable}\n{token('from the program')}")
    program.chmod(0o755)

    def sign(*_):
        raise error

    login = await plugin_source(ACCESS, ExecPlugin(str(program), EKS), sign).fetch()
    assert login.authorization == "Bearer from the program"
