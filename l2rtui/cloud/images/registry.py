"""Client of a registry's HTTP API (OCI distribution specification): login check, digest of a tag, list of tags.

It needs no Docker Engine, so a login node that only launches can pin images by digest. Like Docker, it uses plain
HTTP for a registry on this machine, and TLS for all others.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlencode, urljoin, urlsplit

import aiohttp

from l2rtui import __version__
from l2rtui.cloud.images.credentials import Login
from l2rtui.domain.imageref import HUB, ImageRef, is_loopback
from l2rtui.errors import BackendError, NotFoundError
from runtime.base import bounded_json

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
    """The registry rejects the login, or needs one."""


class Registry:
    """One registry with at most one login. Use it as an async context manager, since it holds connections."""

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
        """Check that the registry accepts the login.

        Raises RegistryRefusedError if not, BackendError if it is unreachable or not a registry.
        """
        status, _, _ = await self._ask("GET", "/v2/", "")
        if status != 200:
            raise BackendError(f"{self.host} answers with {status}: that is not a registry.", "Correct its name.")

    async def digest(self, image: ImageRef) -> str:
        """Return the digest of the manifest that a tag currently refers to.

        Raises NotFoundError if the image does not exist, BackendError if the registry fails.
        """
        path = f"/v2/{image.repository}/manifests/{image.reference}"
        scope = f"repository:{image.repository}:pull"
        headers = {"Accept": ", ".join(MANIFESTS)}
        status, reply_headers, _ = await self._ask("HEAD", path, scope, headers)
        if status == 200 and (digest := reply_headers.get("docker-content-digest", "")):
            return digest
        # Some registries omit the header or refuse HEAD; the digest is the hash of the manifest's bytes.
        status, reply_headers, body = await self._ask("GET", path, scope, headers)
        if status == 200:
            return reply_headers.get("docker-content-digest") or f"sha256:{hashlib.sha256(body).hexdigest()}"
        if status == 404:
            raise NotFoundError(f"{self.host} has no image {image}.", "Push it first: `l2rtui image push`.")
        raise BackendError(f"{self.host} answers with {status} when asked for {image}.")

    async def tags(self, image: ImageRef) -> list[str]:
        """Return every tag of a repository, in the registry's order."""
        path = f"/v2/{image.repository}/tags/list?n=1000"
        names: list[str] = []
        for _ in range(_MOST_PAGES):
            status, headers, body = await self._ask("GET", path, f"repository:{image.repository}:pull")
            if status == 404:
                raise NotFoundError(f"{self.host} has no repository {image.repository}.")
            if status != 200:
                raise BackendError(f"{self.host} answers with {status} when asked for the tags of {image.name}.")
            tags = _json(body).get("tags")
            names += [str(tag) for tag in tags] if isinstance(tags, list) else []
            following = re.search(r'<([^>]*)>;\s*rel="?next', headers.get("link", ""))
            if not following:
                break
            # Only the path: a login must never go to another host.
            parts = self._split(following[1], f"{self._base}{path}")
            path = f"{parts.path}?{parts.query}"
        return names

    # --- one request ------------------------------------------------------------------------------------------
    async def _ask(
        self, method: str, path: str, scope: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request; after a 401 repeat it once with the authorisation that the registry demands."""
        url = f"{self._base}{path}"
        status, reply_headers, body = await self._fetch(method, url, headers, self._tokens.get(scope, ""))
        if status == 401:
            self._tokens[scope] = await self._authorisation(reply_headers.get("www-authenticate", ""), scope)
            status, reply_headers, body = await self._fetch(method, url, headers, self._tokens[scope])
        if status in (401, 403):
            self._tokens.pop(scope, None)
            raise self._refusal()
        return status, reply_headers, body

    async def _fetch(
        self, method: str, url: str, headers: Mapping[str, str], authorisation: str
    ) -> tuple[int, dict[str, str], bytes]:
        headers = {**headers, "Authorization": authorisation} if authorisation else headers
        assert self._session is not None, "use Registry with `async with`"  # noqa: S101
        try:
            async with self._session.request(method, url, headers=headers) as answer:
                body = await answer.content.read(_MAX_BYTES)
                return answer.status, {key.lower(): value for key, value in answer.headers.items()}, body
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # Not the error's own text: it may contain the URL with its query.
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise BackendError(f"The registry {self.host} does not answer: {why}.") from error

    async def _authorisation(self, challenge: str, scope: str) -> str:
        """Return the Authorization header for a challenge: the login itself, or a token from the realm."""
        kind = challenge.partition(" ")[0].lower()
        if kind == "basic":
            if self._login is None:
                raise self._refusal()
            return f"Basic {self._login.basic}"
        if kind != "bearer":
            raise self._refusal()
        fields = dict(_PARAMETER.findall(challenge))
        realm = fields.get("realm", "")
        parts = self._split(realm)
        # The registry chooses the realm that gets the login: never send it in clear text over the network.
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
            raise BackendError(f"{self.host} sends logins to {parts.netloc or 'nowhere'} without TLS.")
        query = {"service": fields.get("service", ""), "scope": fields.get("scope", scope)}
        basic = f"Basic {self._login.basic}" if self._login is not None else ""
        url = f"{realm}{'&' if parts.query else '?'}{urlencode({k: v for k, v in query.items() if v})}"
        status, _, body = await self._fetch("GET", url, {}, basic)
        answer = _json(body) if status == 200 else {}
        token = answer.get("token") or answer.get("access_token")
        if not token:
            raise self._refusal()
        return f"Bearer {token}"

    def _split(self, address: str, base: str = "") -> SplitResult:
        try:
            return urlsplit(urljoin(base, address))
        except ValueError as error:
            raise BackendError(f"The registry {self.host} names an address that is none: {error}.") from error

    def _refusal(self) -> RegistryRefusedError:
        hint = f"Do `l2rtui image login {self.host}`"
        if self._login is None:
            return RegistryRefusedError(f"{self.host} requires a login, and none is configured.", f"{hint}.")
        problem = f"{self._login.user}: the user or the password is wrong, or has no rights there."
        return RegistryRefusedError(f"{self.host} refuses {problem}", f"{hint} again.")


def _json(body: bytes) -> dict[str, Any]:
    try:
        document = bounded_json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
