"""OpenID Connect tokens, as the kubeconfig's ``auth-provider: oidc`` holds them.

The library's implementation is not used (kubernetes/aio/config/openid.py at 37.0.1). Without
``idp-certificate-authority`` it verifies no certificate, and so may send refresh token and client secret to
anyone; with one it raises a TypeError (kubernetes-client/python#2034, open since 2023). It also loses a rotated
refresh token.

The id token in the kubeconfig is used until it expires; then the refresh token is exchanged for another (OpenID
Connect Core, section 12). A provider that rotates refresh tokens then invalidates the old one, so the new one is
written to the kubeconfig: otherwise kubectl would be locked out.

Tokens are read from the kubeconfig, and written back under kubectl's own lock. Only the scalars of that user's
``auth-provider`` are edited, which are found by parsing the file: comments, order and other users stay. The
library's reader saves nothing (its ``config_persister`` is the result of a call, None:
kubernetes/aio/config/kube_config.py at 37.0.1), so a provider that rotates refresh tokens locks kubectl out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import yaml
from msgspec.structs import replace

from l2rtui.backends.kubernetes.api.connectors import environment_proxy, http_proxy
from l2rtui.backends.kubernetes.api.kubeconfig import Oidc
from l2rtui.backends.kubernetes.api.login import ApiLogin, login_error
from runtime.base import bounded_json
from runtime.base.atomic_files import write_atomic

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


_LOCK_SECONDS = 5.0
"""Longest wait for another writer; kubectl holds the lock for the milliseconds of a write."""
_POLL_SECONDS = 0.05
_KEYS = ("id-token", "refresh-token")


def stored_tokens(oidc: Oidc) -> Oidc:
    """Return the settings with the tokens that are now in the file; unchanged if they cannot be read."""
    try:
        scalars = _token_scalars(_read(oidc), oidc.user)
    except (OSError, ValueError, yaml.YAMLError):
        return oidc  # the tokens read at the start are the best available
    values = {key: node.value for key, node in scalars.items()}
    return replace(
        oidc,
        id_token=values.get("id-token", oidc.id_token),
        refresh_token=values.get("refresh-token") or oidc.refresh_token,
    )


async def store_tokens(oidc: Oidc) -> None:
    """Write both tokens into the file that they came from.

    Raises:
        ApiError: The file cannot be written, is locked, or no longer contains the user.
    """
    # In a thread, as it may wait for the lock. It continues when we are cancelled: the file is never half written.
    await asyncio.to_thread(_store, oidc)


def _store(oidc: Oidc) -> None:
    path = Path(oidc.source)
    try:
        with _locked(path):
            changed = _edited(_read(oidc), oidc)
            mode = path.stat().st_mode & 0o777
            # A kubeconfig is often a symbolic link: its target is replaced, and the link stays.
            write_atomic(path.resolve(), changed.encode(), is_shared=True, mode=mode)
    except FileExistsError as error:
        raise login_error(
            f"The new refresh token cannot be written to {path}: {path}.lock is there.",
            "Remove that file if no kubectl is running.",
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = (error.strerror if isinstance(error, OSError) else "") or "its user is no longer there"
        raise login_error(
            f"The new refresh token cannot be written to {path}: {cause}.", "Make the file writable."
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of client-go (``lockFile`` in clientcmd): a file next to the kubeconfig, created exclusively.

    client-go gives up immediately if it exists; we wait briefly, since a rotated token exists nowhere else.
    """
    lock, until = Path(f"{path}.lock"), time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0))
            break
        except FileExistsError:
            if time.monotonic() >= until:
                raise
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _read(oidc: Oidc) -> str:
    return Path(oidc.source).read_bytes().decode()  # no translation of line ends: marks count characters


def _edited(text: str, oidc: Oidc) -> str:
    """Replace the values of both tokens; ValueError if the user or its refresh token is not in the text."""
    scalars = _token_scalars(text, oidc.user)
    if "refresh-token" not in scalars:
        raise ValueError(oidc.user)
    values = {"id-token": oidc.id_token, "refresh-token": oidc.refresh_token}
    # From the last to the first, so that the marks of earlier values stay valid.
    for key, node in sorted(scalars.items(), key=lambda item: -item[1].start_mark.index):
        # A JSON string is a YAML double-quoted scalar, in block and in flow style.
        start, end = node.start_mark.index, node.end_mark.index
        line_end = "\n" if text[start:end].endswith("\n") else ""  # a block scalar ends with its line
        text = text[:start] + json.dumps(values[key]) + line_end + text[end:]
    # An unforeseen form (an anchor on the value) must not damage the file.
    if {key: node.value for key, node in _token_scalars(text, oidc.user).items()} != {
        key: values[key] for key in scalars
    }:
        raise ValueError(oidc.user)
    return text


def _token_scalars(text: str, user: str) -> dict[str, yaml.ScalarNode]:
    """Return the scalars of a user's tokens by key, with their positions; the first user of a name counts.

    Raises:
        ValueError: The user does not exist. YAMLError: The text is not valid YAML.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)  # not the C loader: its marks count bytes
    for entry in _items(_value(root, "users")):
        if isinstance(name := _value(entry, "name"), yaml.ScalarNode) and name.value == user:
            config = _value(_value(_value(entry, "user"), "auth-provider"), "config")
            values = {key: _value(config, key) for key in _KEYS}
            return {key: node for key, node in values.items() if isinstance(node, yaml.ScalarNode)}
    raise ValueError(user)


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of a key of a mapping; None without one."""
    if not isinstance(node, yaml.MappingNode):
        return None
    pairs = (value for name, value in node.value if isinstance(name, yaml.ScalarNode) and name.value == key)
    return next(pairs, None)


def _items(node: yaml.Node | None) -> Iterator[yaml.Node]:
    yield from node.value if isinstance(node, yaml.SequenceNode) else ()
