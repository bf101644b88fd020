"""Login shared by all requests to one server, renewed before it expires or after the server has refused it.

Ten watches share one login. The first one that finds it expired or refused renews it; the others wait for the same
result. A plugin therefore never runs ten times, and a plugin that fails or returns the refused token is not run
again immediately. The library calls this through its refresh hook (``http``); it does not renew after 401 itself.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path

from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.api.kubeconfig import Access, User
from l2rtui.backends.kubernetes.api.login import ApiLogin, EksSigner, LoginSource, login_error

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
        from l2rtui.backends.kubernetes.api.exec_credentials import plugin_source

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
