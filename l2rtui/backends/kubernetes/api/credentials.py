"""Who we are to the server, right now: one login shared by all that talk to it, renewed before it runs out.

Ten watches share one login. Whoever finds it run out or refused renews it, the others wait for the same answer: a
plugin never runs ten times, and one that fails, or brings the refused token again, is not run again at once.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.kubeconfig import Access, User

_EARLY_SECONDS = 10.0
"""A login is renewed this long before it runs out: a request that is under way must not meet its end."""
_FILE_SECONDS = 60.0
"""Files with tokens and certificates are read anew this often: kubelets and agents replace them in place."""
_CALM_SECONDS = 10.0
"""A source that just failed, or just brought what was then refused, is not asked again for this long."""

EksSigner = Callable[[str, str, str, str], tuple[str, float]]
"""``(cluster, region, profile, role) → (token, expiry in seconds since the epoch)``; ImportError: no botocore."""


@dataclass(frozen=True, slots=True)
class Login:
    """What goes with a request.

    Attributes:
        authorization: Value of the header; empty for none.
        certificate, key: PEM of the client certificate; empty for none.
        expires: Seconds since the epoch; None means never.
    """

    authorization: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    expires: float | None = None

    def is_same_as(self, other: Login) -> bool:
        """Whether the server could not tell them apart."""
        return (self.authorization, self.certificate, self.key) == (
            other.authorization,
            other.certificate,
            other.key,
        )


class Source(Protocol):
    """Where a login comes from: a kubeconfig, a plugin, an identity provider."""

    async def fetch(self) -> Login:
        """Get a fresh one.

        Raises:
            ApiError: there is none; the sentence says why.
        """
        ...


def no_login(message: str, hint: str = "") -> ApiError:
    """The error for a login that cannot be had: nothing was sent to the server."""
    return ApiError(message, hint, status=401, reason="NoCredential", detail=message)


class Credentials:
    """The present login.

    Args:
        clock: Seconds since the epoch, for expiry. monotonic: seconds of a clock that nobody sets, for pauses.
    """

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._monotonic = monotonic
        self._login: Login | None = None
        self._error: ApiError | None = None
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def login(self) -> Login:
        """The login to use now, fetched when there is none or it is about to run out."""
        if self._login is not None and not self._is_old(self._login):
            return self._login
        async with self._lock:
            if self._login is not None and not self._is_old(self._login):
                return self._login
            return await self._fetch()

    async def renew(self, refused: Login) -> Login:
        """Another login than the one that the server has just refused; the same one when there is no other."""
        async with self._lock:
            if self._login is not None and not self._login.is_same_as(refused):
                return self._login
            if self._is_calm() and self._login is not None:
                return self._login
            return await self._fetch()

    async def _fetch(self) -> Login:
        if self._error is not None and self._is_calm():
            raise self._error
        self._error = None
        try:
            self._login = await self._source.fetch()
        except ApiError as error:
            self._error = error
            raise
        finally:
            self._asked_at = self._monotonic()
        return self._login

    def _is_calm(self) -> bool:
        return self._monotonic() - self._asked_at < _CALM_SECONDS

    def _is_old(self, login: Login) -> bool:
        return login.expires is not None and self._clock() >= login.expires - _EARLY_SECONDS


class FixedSource:
    """What the kubeconfig itself holds, or the files that it names: certificate, token, password."""

    def __init__(self, user: User, clock: Callable[[], float] = time.time) -> None:
        self._user = user
        self._clock = clock

    async def fetch(self) -> Login:
        """Read it; files are read anew each time."""
        user = self._user
        is_from_file = bool(user.token_file or user.certificate_file or user.key_file)
        return Login(
            self._authorization(),
            user.certificate or _read(user.certificate_file, user),
            user.key or _read(user.key_file, user),
            self._clock() + _FILE_SECONDS + _EARLY_SECONDS if is_from_file else None,
        )

    def _authorization(self) -> str:
        user = self._user
        token = user.token
        if user.token_file:
            try:
                token = _read(user.token_file, user).decode().strip() or token
            except ApiError:
                if not token:
                    raise
        if token:
            return f"Bearer {token}"
        if user.username:
            pair = f"{user.username}:{user.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""


def make_credentials(access: Access, eks_token: EksSigner | None = None) -> Credentials:
    """The credentials of a context.

    Args:
        eks_token: Signs a token for EKS in this process, ``(cluster, region, profile, role) → (token, expires)``;
            None runs the plugin that the kubeconfig names.
    """
    user = access.user
    if user.exec is not None:
        from l2rtui.backends.kubernetes.plugins import plugin_source

        return Credentials(plugin_source(access, user.exec, eks_token))
    if user.oidc is not None:
        from l2rtui.backends.kubernetes.oidc import OidcSource

        return Credentials(OidcSource(user.oidc))
    return Credentials(FixedSource(user))


def _read(path: str, user: User) -> bytes:
    if not path:
        return b""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise no_login(f"{path}, which {user.name} logs in with, cannot be read: {error.strerror}.") from error
