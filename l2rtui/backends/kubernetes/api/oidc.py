"""OpenID Connect tokens, as the kubeconfig's ``auth-provider: oidc`` holds them.

The id token in the kubeconfig is used until it expires; then the refresh token is exchanged for another (OpenID
Connect Core, section 12). A provider that rotates refresh tokens has invalidated the old one by then, so the new
one is written to the kubeconfig: otherwise kubectl would be locked out.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import msgspec

from l2rtui.backends.kubernetes.api.kubeconfig import Oidc
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from runtime.base.atomic_files import write_atomic

_SECONDS = 30.0
_SPARE_SECONDS = 15.0


class OidcSource:
    """Source of id tokens, refreshed when they expire."""

    def __init__(self, oidc: Oidc, clock: Callable[[], float] = time.time) -> None:
        self._oidc = oidc
        self._clock = clock
        self._last_token = ""

    async def fetch(self) -> ApiLogin:
        """Return the stored token if it is valid and was not returned before; else a refreshed one.

        A second call for the same token means that the server has refused it.
        """
        token = self._oidc.id_token
        expires = token_expiry(token)
        # An expiry that we cannot read is no reason to refresh: the server will refuse the token if it has expired.
        is_good = bool(token) and (expires is None or expires > self._clock() + _SPARE_SECONDS)
        if not is_good or token == self._last_token:
            token = await self._refreshed()
            expires = token_expiry(token)
        self._last_token = token
        return ApiLogin(f"Bearer {token}", expires=expires)

    async def _refreshed(self) -> str:
        oidc = self._oidc
        if not oidc.refresh_token:
            raise login_error(
                "The login has run out, and there is no refresh token.", "Log in to the cluster again."
            )
        tls = ssl.create_default_context(cadata=oidc.ca.decode()) if oidc.ca else True
        # A public client has no secret and sends its id in the form only (RFC 6749, 3.2.1).
        headers = _authorization(oidc.client_id, oidc.client_secret) if oidc.client_secret else {}
        form = {"grant_type": "refresh_token", "refresh_token": oidc.refresh_token, "client_id": oidc.client_id}
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session:
                well_known = f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration"
                async with session.get(well_known, ssl=tls) as response:
                    endpoint = _field(await response.read(), "token_endpoint")
                async with session.post(endpoint, data=form, headers=headers, ssl=tls) as response:
                    answer, status = await response.read(), response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise login_error(f"The identity provider {oidc.issuer} does not answer.", "Try again.") from error
        token = _field(answer, "id_token") if status < 300 else ""
        if not token:
            raise login_error(
                f"The identity provider {oidc.issuer} gives no new token.", "Log in to the cluster again."
            )
        renewed = replace(oidc, id_token=token, refresh_token=_field(answer, "refresh_token") or oidc.refresh_token)
        # Before the token is used: were the process killed in between, the only valid refresh token would be lost.
        if renewed.refresh_token != oidc.refresh_token:
            _write_back(oidc, renewed)
        self._oidc = renewed
        return token


def token_expiry(token: str) -> float | None:
    """Return the ``exp`` claim of a JSON Web Token, seconds since the epoch; None without one.

    The signature is not verified: only the server's judgement of the token counts.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        # JWTs drop base64's padding (RFC 7515, section 2).
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp") if isinstance(claims, dict) else None
        return float(expires) if isinstance(expires, int | float) else None
    return None


def _authorization(client_id: str, secret: str) -> dict[str, str]:
    """Make the Basic header of a client (RFC 6749, 2.3.1): both parts form-encoded, as either may hold a colon."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _field(answer: bytes, key: str) -> str:
    try:
        parsed: Any = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return ""
    value = parsed.get(key) if isinstance(parsed, dict) else None
    return value if isinstance(value, str) else ""


def _write_back(old: Oidc, new: Oidc) -> None:
    """Replace the tokens in the kubeconfig's text; comments and order stay."""
    path = Path(old.source)
    try:
        text = path.read_text()
        changed = text.replace(old.refresh_token, new.refresh_token)
        if old.id_token:
            changed = changed.replace(old.id_token, new.id_token)
        mode = path.stat().st_mode & 0o777
        write_atomic(path.resolve(), changed.encode(), is_shared=True, mode=mode)
    except OSError as error:
        raise login_error(
            f"The new refresh token cannot be written to {path}: {error.strerror}.", "Make the file writable."
        ) from error
