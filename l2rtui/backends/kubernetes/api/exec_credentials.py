"""Credential plugins: programs named in the kubeconfig that print an ExecCredential (client.authentication.k8s.io).

They run while a full-screen app owns the terminal, so they get no stdin, their own session, and thirty seconds.

The library's implementation is not used (``kubernetes/aio/config/exec_provider.py`` at 37.0.1). It passes our stdin
to the plugin and declares it interactive if stdout is a terminal, which steals the app's keys. It reads stdout to
its end before stderr, which deadlocks with a talkative plugin. It has no timeout, and after a plugin fails it
continues without a login.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import signal
from datetime import datetime
from pathlib import PurePath
from typing import Any

import msgspec

from l2rtui.backends.kubernetes.api.kubeconfig import Access, ExecPlugin
from l2rtui.backends.kubernetes.api.login import ApiLogin, EksSigner, LoginSource, login_error
from l2rtui.errors import L2RError
from runtime.base import bounded_json
from runtime.base.processes import signal_process_group

_log = logging.getLogger(__name__)

PLUGIN_SECONDS = 30.0
_LONGEST_LINE = 300


class ExecSource:
    """Login source that runs a plugin, for at most ``limit_seconds``."""

    def __init__(self, access: Access, plugin: ExecPlugin, limit_seconds: float = PLUGIN_SECONDS) -> None:
        self._access = access
        self._plugin = plugin
        self._limit_seconds = limit_seconds

    async def fetch(self) -> ApiLogin:
        """Run the plugin and decode its output."""
        name = PurePath(self._plugin.command).name
        code, output, talk = await self._run(name)
        if code != 0:
            raise login_error(
                f"The credential plugin {name} failed (exit {code}): {_last_line(talk)}", self._hint()
            )
        try:
            printed = bounded_json.decode(output, _ExecCredential)
        except ValueError:
            # The output may contain a token, so it is never quoted; `from None` keeps it out of the traceback too.
            raise login_error(f"The credential plugin {name} printed no credential.", self._hint()) from None
        status = printed.status
        if status.token:
            return ApiLogin(f"Bearer {status.token}", expires=_epoch(status.expiration_timestamp))
        if status.client_certificate_data and status.client_key_data:
            return ApiLogin(
                "",
                status.client_certificate_data.encode(),
                status.client_key_data.encode(),
                _epoch(status.expiration_timestamp),
            )
        raise login_error(f"The credential plugin {name} printed neither a token nor a certificate.", self._hint())

    async def _run(self, name: str) -> tuple[int, bytes, bytes]:
        _log.info("credential plugin %s: begins", name)  # without its arguments: some contain a secret
        try:
            process = await asyncio.create_subprocess_exec(
                self._plugin.command,
                *self._plugin.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ(),
                start_new_session=True,  # no controlling terminal: it cannot prompt over the app's screen
            )
        except FileNotFoundError as error:
            raise login_error(f"The credential plugin {name} is not installed.", self._hint()) from error
        except OSError as error:
            raise login_error(
                f"The credential plugin {name} cannot be run: {error.strerror}.", self._hint()
            ) from error
        try:
            async with asyncio.timeout(self._limit_seconds):
                # Read both pipes concurrently: a plugin that fills the other pipe's buffer would block forever.
                output, talk = await process.communicate()
        except TimeoutError as error:
            raise login_error(
                f"The credential plugin {name} did not finish within {self._limit_seconds:.0f} s.",
                f"Run `{name}` once in a shell: it may want to log you in.",
            ) from error
        finally:
            # The whole process group: a helper that inherited the pipes would keep communicate() waiting.
            signal_process_group(process.pid, signal.SIGKILL)
            await process.wait()
        _log.info("credential plugin %s: exit code %s", name, process.returncode)
        return process.returncode or 0, output, talk

    def _environ(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self._plugin.provide_cluster_info:
            cluster = {
                "server": self._access.server,
                "tls-server-name": self._access.tls_server_name,
                "insecure-skip-tls-verify": self._access.is_insecure,
                "certificate-authority-data": base64.b64encode(self._access.ca).decode(),
                "proxy-url": self._access.proxy_url,
            }
            spec["cluster"] = {key: value for key, value in cluster.items() if value}
        info = {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}
        return {**os.environ, **dict(self._plugin.env), "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    def _hint(self) -> str:
        return " ".join(self._plugin.install_hint.split()) or f"The user {self._access.user.name} needs it."


class EksSource:
    """EKS tokens signed in this process, which saves a second of CPU for the aws program; otherwise the plugin.

    Args:
        cluster: (cluster, region, profile, role), arguments of the signer.
        plugin: Used when signing fails.
    """

    def __init__(self, signer: EksSigner, cluster: tuple[str, str, str, str], plugin: LoginSource) -> None:
        self._signer = signer
        self._cluster = cluster
        self._plugin = plugin

    async def fetch(self) -> ApiLogin:
        """Sign a token; if that fails, run the plugin, whose error message users know."""
        try:
            token, expires = await asyncio.to_thread(self._signer, *self._cluster)
        except (L2RError, ImportError):
            return await self._plugin.fetch()
        return ApiLogin(f"Bearer {token}", expires=expires)


def plugin_source(access: Access, plugin: ExecPlugin, signer: EksSigner | None) -> LoginSource:
    """Create the source for a plugin: the program, or our own signature if all its arguments are understood."""
    program = ExecSource(access, plugin)
    cluster = _eks_arguments(plugin) if signer is not None else None
    return EksSource(signer, cluster, program) if signer is not None and cluster is not None else program


def _eks_arguments(plugin: ExecPlugin) -> tuple[str, str, str, str] | None:
    """Return (cluster, region, profile, role) of one of the three EKS plugins; None if any argument is unknown.

    An unknown argument could change the identity, so the program itself must run then.
    """
    name, env = PurePath(plugin.command).name, dict(plugin.env)
    arguments = list(plugin.args)
    options = {"--cluster-name": "cluster", "--region": "region", "--role-arn": "role", "--profile": "profile"}
    if name == "aws-iam-authenticator" and arguments[:1] == ["token"]:
        del arguments[0]
        options = {"-i": "cluster", "--cluster-id": "cluster", "-r": "role", "--role": "role"}
    elif name == "l2rtui" and arguments[:2] == ["cluster", "token"]:
        arguments, options = arguments[2:], {"--name": "cluster", "--region": "region", "--profile": "profile"}
    elif name == "aws" and "eks" in arguments and "get-token" in arguments:
        arguments.remove("eks")
        arguments.remove("get-token")
        options["--output"] = "output"
    else:
        return None
    values: dict[str, str] = {}
    while arguments:
        option, has_value, value = arguments.pop(0).partition("=")
        if option not in options or not (has_value or arguments):
            return None
        values[options[option]] = value if has_value else arguments.pop(0)
    values["profile"] = values.get("profile") or env.pop("AWS_PROFILE", "")
    values["region"] = values.get("region") or env.pop("AWS_REGION", "") or env.pop("AWS_DEFAULT_REGION", "")
    if any(key.startswith("AWS_") and key != "AWS_STS_REGIONAL_ENDPOINTS" for key in env):
        return None  # access keys of its own: only the program knows how it would use them
    cluster = values.get("cluster")
    return None if cluster is None else (cluster, values["region"], values["profile"], values.get("role", ""))


class _ExecStatus(msgspec.Struct, rename="camel", frozen=True):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _ExecStatus


def _epoch(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment is not None else None


def _last_line(talk: bytes) -> str:
    lines = [line.strip() for line in talk.decode("utf-8", "replace").splitlines() if line.strip()]
    return (lines[-1][:_LONGEST_LINE] if lines else "it said nothing").rstrip(".") + "."
