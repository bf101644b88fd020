"""A registry asked by itself, over its HTTP API: who we are, which digest a tag stands for, which tags there are.

This needs no Docker Engine: a login node that only launches can pin what it launches. A registry on this machine is
spoken to in plain HTTP, as Docker does, and every other one over TLS.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, Self
from urllib.parse import urlencode, urljoin, urlsplit

import aiohttp

from l2rtui import __version__
from l2rtui.backends.images.credentials import Login
from l2rtui.domain.imageref import HUB, ImageRef, is_loopback
from l2rtui.errors import BackendError, NotFoundError

MANIFESTS: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_SECONDS = 30.0
_MOST_PAGES = 50
_MAX_BYTES = 8 << 20
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class RegistryRefusedError(BackendError):
    """The registry does not let us in."""


class Registry:
    """One registry and, at most, one login.

    Use it as an async context manager: it holds connections.
    """

    def __init__(self, host: str, login: Login | None = None) -> None:
        self.host = host
        self._login = login
        server = "registry-1.docker.io" if host == HUB else host
        self._base = f"{'http' if is_loopback(host) else 'https'}://{server}"
        self._tokens: dict[str, str] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_SECONDS, sock_connect=10),
            headers={"User-Agent": f"l2rtui/{__version__}"},
            trust_env=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def check_login(self) -> None:
        """See that the registry knows us.

        Raises:
            RegistryRefusedError: it does not. BackendError: it cannot be reached, or is no registry.
        """
        status, _, _ = await self._ask("GET", "/v2/", "")
        if status != 200:
            raise BackendError(f"{self.host} answers with {status}: that is no registry.", "Correct its name.")

    async def digest(self, image: ImageRef) -> str:
        """The digest of the manifest that a name stands for now.

        Raises:
            NotFoundError: there is no such image. BackendError: the registry fails.
        """
        path = f"/v2/{image.repository}/manifests/{image.reference}"
        scope = f"repository:{image.repository}:pull"
        headers = {"Accept": ", ".join(MANIFESTS)}
        status, found, _ = await self._ask("HEAD", path, scope, headers)
        if status == 200 and (digest := found.get("docker-content-digest", "")):
            return digest
        status, found, body = await self._ask("GET", path, scope, headers)
        if status == 200:
            return found.get("docker-content-digest") or f"sha256:{hashlib.sha256(body).hexdigest()}"
        if status == 404:
            raise NotFoundError(f"{self.host} has no image {image}.", "Push it first: `l2rtui image push`.")
        raise BackendError(f"{self.host} answers with {status} when asked for {image}.")

    async def tags(self, image: ImageRef) -> list[str]:
        """Every tag of a repository, in the registry's order."""
        path = f"/v2/{image.repository}/tags/list?n=1000"
        found: list[str] = []
        for _ in range(_MOST_PAGES):
            status, headers, body = await self._ask("GET", path, f"repository:{image.repository}:pull")
            if status == 404:
                raise NotFoundError(f"{self.host} has no repository {image.repository}.")
            if status != 200:
                raise BackendError(f"{self.host} answers with {status} when asked for the tags of {image.name}.")
            found += [str(tag) for tag in _json(body).get("tags") or ()]
            following = re.search(r'<([^>]*)>;\s*rel="?next', headers.get("link", ""))
            if not following:
                break
            parts = urlsplit(urljoin(f"{self._base}{path}", following[1]))  # only the path: never another host
            path = f"{parts.path}?{parts.query}"
        return found

    # --- one request ------------------------------------------------------------------------------------------
    async def _ask(
        self, method: str, path: str, scope: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask; when the registry wants to know who we are, tell it and ask once more."""
        status, found, body = await self._once(method, path, headers, self._tokens.get(scope, ""))
        if status == 401:
            self._tokens[scope] = await self._authorisation(found.get("www-authenticate", ""), scope)
            status, found, body = await self._once(method, path, headers, self._tokens[scope])
        if status in (401, 403):
            self._tokens.pop(scope, None)
            raise self._refusal()
        return status, found, body

    async def _once(
        self, method: str, path: str, headers: dict[str, str] | None, authorisation: str
    ) -> tuple[int, dict[str, str], bytes]:
        wanted = dict(headers or {}) | ({"Authorization": authorisation} if authorisation else {})
        return await self._fetch(method, f"{self._base}{path}", wanted)

    async def _fetch(self, method: str, url: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        assert self._session is not None, "use Registry with `async with`"  # noqa: S101
        try:
            async with self._session.request(method, url, headers=headers) as answer:
                body = await answer.content.read(_MAX_BYTES)
                return answer.status, {key.lower(): value for key, value in answer.headers.items()}, body
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # The error's own text may hold the address with what was asked: its kind says enough.
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise BackendError(f"The registry {self.host} does not answer: {why}.") from error

    async def _authorisation(self, challenge: str, scope: str) -> str:
        """What to say to a registry that asks who we are: the login itself, or a token that it buys."""
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            if self._login is None:
                raise self._refusal()
            return f"Basic {self._login.basic}"
        if kind != "bearer":
            raise self._refusal()
        asked = dict(_PARAMETER.findall(challenge))
        realm = asked.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
            raise BackendError(f"{self.host} sends logins to {parts.netloc or 'nowhere'} without TLS.")
        query = {"service": asked.get("service", ""), "scope": asked.get("scope", scope)}
        headers = {}
        if self._login is not None:
            headers["Authorization"] = f"Basic {self._login.basic}"
        url = f"{realm}{'&' if parts.query else '?'}{urlencode({k: v for k, v in query.items() if v})}"
        status, _, body = await self._fetch("GET", url, headers)
        answer = _json(body) if status == 200 else {}
        token = answer.get("token") or answer.get("access_token")
        if not token:
            raise self._refusal()
        return f"Bearer {token}"

    def _refusal(self) -> RegistryRefusedError:
        if self._login is None:
            return RegistryRefusedError(
                f"{self.host} wants a login, and there is none.", f"Do `l2rtui image login {self.host}`."
            )
        return RegistryRefusedError(
            f"{self.host} refuses {self._login.user}: the user or the password is wrong, or has no rights there.",
            f"Do `l2rtui image login {self.host}` again.",
        )


def _json(body: bytes) -> dict[str, Any]:
    import json

    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
