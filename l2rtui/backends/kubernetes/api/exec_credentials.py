"""Credential plugins: programs named in the kubeconfig that print who we are.

They run beside a full-screen app, so they get no terminal: nothing to read from, their own session, thirty seconds.
Both of their outputs are read at once, or one that writes much to the other would wait for ever.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
from datetime import datetime
from pathlib import PurePath
from typing import Any

import msgspec

from l2rtui.backends.kubernetes.credentials import EksSigner, Login, Source, no_login
from l2rtui.backends.kubernetes.kubeconfig import Access, ExecPlugin
from l2rtui.errors import L2RError

PLUGIN_SECONDS = 30.0
_LONGEST_LINE = 300


class ExecSource:
    """Runs a plugin.

    Args:
        limit_seconds: How long it may take.
    """

    def __init__(self, access: Access, plugin: ExecPlugin, limit_seconds: float = PLUGIN_SECONDS) -> None:
        self._access = access
        self._plugin = plugin
        self._limit_seconds = limit_seconds

    async def fetch(self) -> Login:
        """Run it and read what it prints."""
        name = PurePath(self._plugin.command).name
        code, output, talk = await self._run(name)
        if code != 0:
            raise no_login(f"The credential plugin {name} failed (exit {code}): {_last_line(talk)}", self._hint())
        try:
            printed = msgspec.json.decode(output, type=_ExecCredential)
        except msgspec.DecodeError:
            # Its output is a secret when it is right, so it is never quoted.
            raise no_login(f"The credential plugin {name} printed no credential.", self._hint()) from None
        status = printed.status
        if status.token:
            return Login(f"Bearer {status.token}", expires=_epoch(status.expiration_timestamp))
        if status.client_certificate_data and status.client_key_data:
            return Login(
                "",
                status.client_certificate_data.encode(),
                status.client_key_data.encode(),
                _epoch(status.expiration_timestamp),
            )
        raise no_login(f"The credential plugin {name} printed neither a token nor a certificate.", self._hint())

    async def _run(self, name: str) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                self._plugin.command,
                *self._plugin.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ(),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise no_login(f"The credential plugin {name} is not installed.", self._hint()) from error
        except OSError as error:
            raise no_login(
                f"The credential plugin {name} cannot be run: {error.strerror}.", self._hint()
            ) from error
        try:
            async with asyncio.timeout(self._limit_seconds):
                output, talk = await process.communicate()
        except TimeoutError as error:
            raise no_login(
                f"The credential plugin {name} did not finish within {self._limit_seconds:.0f} s.",
                f"Run `{name}` once in a shell: it may want to log you in.",
            ) from error
        finally:
            # Whatever it started goes with it: a helper that keeps its pipes open would keep us waiting.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
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
    """Signs a token for EKS in this process, without the aws program and its second of CPU; else runs that."""

    def __init__(self, signer: EksSigner, wanted: tuple[str, str, str, str], plugin: Source) -> None:
        self._signer = signer
        self._wanted = wanted
        self._plugin = plugin

    async def fetch(self) -> Login:
        """Sign; whatever keeps us from it, the plugin says what is wrong in its own words."""
        try:
            token, expires = await asyncio.to_thread(self._signer, *self._wanted)
        except (L2RError, ImportError):
            return await self._plugin.fetch()
        return Login(f"Bearer {token}", expires=expires)


def plugin_source(access: Access, plugin: ExecPlugin, signer: EksSigner | None) -> Source:
    """The source for a plugin: its program, or our own signature where we know what it would do."""
    runs = ExecSource(access, plugin)
    wanted = _eks_wish(plugin) if signer is not None else None
    return EksSource(signer, wanted, runs) if signer is not None and wanted is not None else runs


def _eks_wish(plugin: ExecPlugin) -> tuple[str, str, str, str] | None:
    """(cluster, region, profile, role) where the plugin is one of the three for EKS with words that we know."""
    name, env = PurePath(plugin.command).name, dict(plugin.env)
    words = list(plugin.args)
    options = {"--cluster-name": "cluster", "--region": "region", "--role-arn": "role", "--profile": "profile"}
    if name == "aws-iam-authenticator" and words[:1] == ["token"]:
        words, options = words[1:], {"-i": "cluster", "--cluster-id": "cluster", "-r": "role", "--role": "role"}
    elif name == "l2rtui" and words[:2] == ["cluster", "token"]:
        words, options = words[2:], {"--name": "cluster", "--region": "region", "--profile": "profile"}
    elif name == "aws" and "eks" in words and "get-token" in words:
        words.remove("eks")
        words.remove("get-token")
        options["--output"] = "output"
    else:
        return None
    found: dict[str, str] = {}
    while words:
        option, has_value, value = words.pop(0).partition("=")
        if option not in options or not (has_value or words):
            return None
        found[options[option]] = value if has_value else words.pop(0)
    found["profile"] = found.get("profile") or env.pop("AWS_PROFILE", "")
    found["region"] = found.get("region") or env.pop("AWS_REGION", "") or env.pop("AWS_DEFAULT_REGION", "")
    if any(key.startswith("AWS_") and key != "AWS_STS_REGIONAL_ENDPOINTS" for key in env):
        return None  # keys of its own: let the program deal with them
    return (
        (found["cluster"], found["region"], found["profile"], found.get("role", "")) if "cluster" in found else None
    )


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
