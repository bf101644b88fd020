"""OpenID Connect tokens, as the kubeconfig's ``auth-provider: oidc`` holds them.

The library's implementation is not used (kubernetes/aio/config/openid.py at 37.0.1). Without
``idp-certificate-authority`` it verifies no certificate, and so may send refresh token and client secret to anyone;
with one it raises a TypeError (kubernetes-client/python#2034, open since 2023). It also loses a rotated refresh
token.

The id token in the kubeconfig is used until it expires; then the refresh token is exchanged for another (OpenID
Connect Core, section 12). A provider that rotates refresh tokens then invalidates the old one, so the new one is
written to the kubeconfig: otherwise kubectl would be locked out.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote_plus

from l2rtui.backends.kubernetes.api.kubeconfig import Oidc
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from l2rtui.backends.kubernetes.api.oidc_storage import store_tokens, stored_tokens
from l2rtui.backends.kubernetes.api.proxies import environment_proxy, http_proxy
from runtime.base import bounded_json

_SECONDS = 30.0
_SPARE_SECONDS = 15.0


class OidcSource:
    """Source of id tokens, refreshed when they expire."""

    def __init__(self, oidc: Oidc, clock: Callable[[], float] = time.time) -> None:
        self._oidc = oidc
        self._stored = oidc  # as last read from the file
        self._clock = clock
        self._last_token = ""
        self._is_unsaved = False

    async def fetch(self) -> ApiLogin:
        """Return the stored token if it is valid and was not returned before; otherwise refresh it.

        A second call for the same token means that the server has refused it.
        """
        if self._is_unsaved:  # the file was locked or read-only: unsaved, kubectl would be locked out
            await self._save()
        if not self._is_usable(self._oidc.id_token):
            # kubectl, or another l2rtui, may have refreshed it: with rotation our own refresh token is then
            # invalid.
            self._take_stored()
        if not self._is_usable(self._oidc.id_token):
            await self._refresh()
        self._last_token = self._oidc.id_token
        return ApiLogin(f"Bearer {self._last_token}", expires=token_expiry(self._last_token))

    def _take_stored(self) -> None:
        stored = stored_tokens(self._stored)
        if stored != self._stored:  # otherwise the tokens refreshed here are newer than the file
            self._oidc = self._stored = stored

    def _is_usable(self, token: str) -> bool:
        # A refresh is not needed for an unreadable expiry: the server will refuse the token if it has expired.
        expires = token_expiry(token)
        is_good = bool(token) and (expires is None or expires > self._clock() + _SPARE_SECONDS)
        return is_good and token != self._last_token

    async def _refresh(self) -> None:
        oidc = self._oidc
        if not oidc.refresh_token:
            raise login_error(
                "The login has expired, and there is no refresh token.", "Log in to the cluster again."
            )
        status, answer = await self._exchange()
        token = _field(answer, "id_token") if status < 300 else ""
        if not token:
            raise login_error(
                f"The identity provider {oidc.issuer} gives no new token.", "Log in to the cluster again."
            )
        refresh_token = _field(answer, "refresh_token") or oidc.refresh_token
        self._oidc = replace(oidc, id_token=token, refresh_token=refresh_token)
        # Before the token is used: if the process were killed in between, the only valid refresh token would be
        # lost.
        if refresh_token != oidc.refresh_token:
            self._is_unsaved = True
            await self._save()

    async def _save(self) -> None:
        await store_tokens(self._oidc)
        self._stored = self._oidc
        self._is_unsaved = False

    async def _exchange(self) -> tuple[int, bytes]:
        """Send the refresh token; return status and body of the response."""
        import aiohttp  # only here and in _send(): most commands find a token that is still valid

        oidc = self._oidc
        try:
            tls = ssl.create_default_context(cadata=oidc.ca.decode() if oidc.ca else None)
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise login_error(
                f"The certificate authority of the identity provider {oidc.issuer} is no PEM."
            ) from error
        # A public client has no secret and sends its id only in the form (RFC 6749, 3.2.1).
        headers = _authorization(oidc.client_id, oidc.client_secret) if oidc.client_secret else {}
        form = {"grant_type": "refresh_token", "refresh_token": oidc.refresh_token, "client_id": oidc.client_id}
        try:
            well_known = f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration"
            _, configuration = await _send("GET", well_known, tls)
            return await _send("POST", _field(configuration, "token_endpoint"), tls, form, headers)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise login_error(f"The identity provider {oidc.issuer} does not answer.", "Try again.") from error


async def _send(
    method: str,
    url: str,
    tls: ssl.SSLContext,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Send a request through the environment's proxies, as client-go does: ``proxy-url`` is only for the
    cluster.
    """
    import aiohttp

    from l2rtui.backends.kubernetes.api.connectors import make_connector

    proxy = environment_proxy(url)
    connector = make_connector(proxy, tls=tls)
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        # Following redirects of the form would send the refresh token to another server.
        session.request(
            method, url, data=form, headers=headers, proxy=http_proxy(proxy), allow_redirects=form is None
        ) as response,
    ):
        return response.status, await response.read()


def token_expiry(token: str) -> float | None:
    """Return the ``exp`` claim of a JSON Web Token, seconds since the epoch; None without one.

    The signature is not verified: only the server decides whether the token is valid.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    with contextlib.suppress(ValueError):
        # JWTs drop base64's padding (RFC 7515, section 2).
        claims = bounded_json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp") if isinstance(claims, dict) else None
        return float(expires) if isinstance(expires, int | float) else None
    return None


def _authorization(client_id: str, secret: str) -> dict[str, str]:
    """Create the Basic header of a client (RFC 6749, 2.3.1): both parts form-encoded, as either may contain a
    colon.
    """
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _field(answer: bytes, key: str) -> str:
    try:
        parsed: Any = bounded_json.decode(answer)
    except ValueError:
        return ""
    value = parsed.get(key) if isinstance(parsed, dict) else None
    return value if isinstance(value, str) else ""
