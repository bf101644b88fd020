"""Login shared by all requests to one server, renewed before it expires or after the server has refused it.

Ten watches share one login. The first one that finds it expired or refused renews it; the others wait for the same
result. A plugin therefore never runs ten times, and a plugin that fails or returns the refused token is not run
again immediately. The library calls this through its refresh hook (``http``); it does not renew after 401 itself.

Credential plugins are programs named in the kubeconfig that print an ExecCredential
(client.authentication.k8s.io). They run while a full-screen app owns the terminal, so they get no stdin, their own
session, and thirty seconds.

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
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import msgspec

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, ExecPlugin, User
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


_EARLY_SECONDS = 10.0
"""A login is renewed this long before it expires, so that it does not expire during a request."""
_FILE_SECONDS = 60.0
"""Interval at which files with tokens and certificates are read again: kubelets and agents rotate the token."""
_CALM_SECONDS = 10.0
"""Pause before a source that failed, or whose login was refused, is used again."""


class Credentials:
    """Cache of the current login.

    Args:
        clock: Seconds since the epoch, for expiry. monotonic: Seconds of a monotonic clock, for pauses.
    """

    def __init__(
        self,
        source: LoginSource,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._monotonic = monotonic
        self._login: ApiLogin | None = None
        self._error: ApiError | None = None
        self._fetched_at = float("-inf")
        self._lock = asyncio.Lock()

    async def login(self) -> ApiLogin:
        """Return the current login; fetch it first if there is none or if it is about to expire."""
        if self._login is not None and not self._is_old(self._login):
            return self._login
        async with self._lock:
            # Checked again: another request may have fetched it while we waited for the lock.
            if self._login is not None and not self._is_old(self._login):
                return self._login
            return await self._fetch()

    async def renew(self, refused: ApiLogin) -> ApiLogin:
        """Return another login than the one that the server has just refused, or the same if there is no other."""
        async with self._lock:
            # Requests in flight with the old token are refused late: their renewal has already happened.
            if self._login is not None and not self._login.is_same_as(refused):
                return self._login
            if self._is_calm() and self._login is not None:
                return self._login
            return await self._fetch()

    async def _fetch(self) -> ApiLogin:
        # The ten watches retry independently: without this pause each of them would start the plugin again.
        if self._error is not None and self._is_calm():
            raise self._error
        self._error = None
        try:
            self._login = await self._source.fetch()
        except ApiError as error:
            self._error = error
            raise
        finally:
            self._fetched_at = self._monotonic()
        return self._login

    def _is_calm(self) -> bool:
        return self._monotonic() - self._fetched_at < _CALM_SECONDS

    def _is_old(self, login: ApiLogin) -> bool:
        return login.expires is not None and self._clock() >= login.expires - _EARLY_SECONDS


class FixedSource:
    """Login from the kubeconfig itself, or from the files that it names: certificate, token, password."""

    def __init__(self, user: User, clock: Callable[[], float] = time.time) -> None:
        self._user = user
        self._clock = clock

    async def fetch(self) -> ApiLogin:
        """Read the login; files are read again each time."""
        user = self._user
        is_from_file = bool(user.token_file or user.certificate_file or user.key_file)
        return ApiLogin(
            self._authorization(),
            user.certificate or _read(user.certificate_file, user),
            user.key or _read(user.key_file, user),
            # _EARLY_SECONDS are added, as Credentials subtracts them again.
            self._clock() + _FILE_SECONDS + _EARLY_SECONDS if is_from_file else None,
        )

    def _authorization(self) -> str:
        user = self._user
        token = user.token
        if user.token_file:
            try:
                token = _read(user.token_file, user).decode().strip() or token
            except ApiError:
                # As in client-go: a token file takes precedence over an inline token, which is the fallback.
                if not token:
                    raise
        if token:
            return f"Bearer {token}"
        if user.username:
            pair = f"{user.username}:{user.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""


def make_credentials(access: Access, eks_token: EksSigner | None = None) -> Credentials:
    """Create the credentials of a context.

    Args:
        eks_token: Signs a token for EKS in this process, ``(cluster, region, profile, role) → (token, expires)``;
            None runs the plugin that the kubeconfig names.
    """
    user = access.user
    if user.exec is not None:
        return Credentials(plugin_source(access, user.exec, eks_token))
    if user.oidc is not None:
        from l2rtui.backends.kubernetes.api.oidc import OidcSource

        return Credentials(OidcSource(user.oidc))
    return Credentials(FixedSource(user))


def _read(path: str, user: User) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise login_error(f"{path}, which {user.name} logs in with, cannot be read: {error.strerror}.") from error
