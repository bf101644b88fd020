"""Log-in tokens of an identity provider, as the kubeconfig's ``auth-provider: oidc`` keeps them.

The token in the kubeconfig is used until it runs out; then the refresh token buys another. A provider that hands
out a new refresh token with it has made the old one worthless, so the new one is written to the kubeconfig, or
kubectl would be locked out tomorrow.
"""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import msgspec

from l2rtui.backends.kubernetes.credentials import Login, no_login
from l2rtui.backends.kubernetes.kubeconfig import Oidc

_SECONDS = 30.0
_SPARE_SECONDS = 15.0


class OidcSource:
    """Keeps an id token fresh."""

    def __init__(self, oidc: Oidc, clock: Callable[[], float] = time.time) -> None:
        self._oidc = oidc
        self._clock = clock
        self._given = ""

    async def fetch(self) -> Login:
        """The token at hand while it is good and has not been given out before; else a new one."""
        token = self._oidc.id_token
        expires = token_expiry(token)
        is_good = bool(token) and (expires is None or expires > self._clock() + _SPARE_SECONDS)
        if not is_good or token == self._given:
            token = await self._refreshed()
            expires = token_expiry(token)
        self._given = token
        return Login(f"Bearer {token}", expires=expires)

    async def _refreshed(self) -> str:
        oidc = self._oidc
        if not oidc.refresh_token:
            raise no_login("The login has run out, and there is no refresh token.", "Log in to the cluster again.")
        tls = ssl.create_default_context(cadata=oidc.ca.decode()) if oidc.ca else True
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
            raise no_login(f"The identity provider {oidc.issuer} does not answer.", "Try again.") from error
        token = _field(answer, "id_token") if status < 300 else ""
        if not token:
            raise no_login(
                f"The identity provider {oidc.issuer} gives no new token.", "Log in to the cluster again."
            )
        renewed = replace(oidc, id_token=token, refresh_token=_field(answer, "refresh_token") or oidc.refresh_token)
        if renewed.refresh_token != oidc.refresh_token:
            _write_back(oidc, renewed)
        self._oidc = renewed
        return token


def token_expiry(token: str) -> float | None:
    """When a JSON web token runs out, seconds since the epoch; None when it does not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    with contextlib.suppress(ValueError, msgspec.DecodeError):
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires = claims.get("exp") if isinstance(claims, dict) else None
        return float(expires) if isinstance(expires, int | float) else None
    return None


def _authorization(client_id: str, secret: str) -> dict[str, str]:
    """Basic authentication as OAuth has it (RFC 6749, 2.3.1): both escaped: a colon may be in either."""
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
    """Put the new tokens where the old ones stand, and touch nothing else: comments and order stay."""
    path = Path(old.source)
    try:
        text = path.read_text()
        changed = text.replace(old.refresh_token, new.refresh_token)
        if old.id_token:
            changed = changed.replace(old.id_token, new.id_token)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".l2rtui-")  # mode 0600
        with os.fdopen(handle, "w") as file:
            file.write(changed)
        Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path.resolve())
    except OSError as error:
        raise no_login(
            f"The new refresh token cannot be written to {path}: {error.strerror}.", "Make the file writable."
        ) from error
