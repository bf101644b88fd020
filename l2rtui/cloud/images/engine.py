"""Images of a Docker Engine: list, tag, build with the classic builder, push."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from l2rtui.cloud.docker_engine import DockerEngine, DockerError, DockerMissingError
from l2rtui.cloud.images.build_progress import BuildStage
from l2rtui.cloud.images.credentials import Login
from l2rtui.domain.imageref import ImageRef, parse_image
from l2rtui.errors import BackendError

LABEL_REVISION: Final = "org.opencontainers.image.revision"
LABEL_DIRTY: Final = "io.l2rtui.dirty"
LABEL_OURS: Final = "io.l2rtui.image"
LABEL_BASE: Final = "org.opencontainers.image.base.name"
LABEL_BASE_DIGEST: Final = "org.opencontainers.image.base.digest"
_DISTRIBUTION_SECONDS: Final = 15.0

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LocalImage:
    """An image in the Engine's store.

    Attributes:
        base: Name of its base image; empty without a label. base_digest: The base image's digest at the build.
    """

    name: str
    id: str
    size_bytes: int
    created: str
    """RFC 3339, as the Engine writes it."""
    revision: str
    is_dirty: bool
    digests: tuple[str, ...]
    """Its names in registries, ``NAME@sha256:…``; empty before it was pushed."""
    base: str = ""
    base_digest: str = ""


class ImageEngine:
    """Images of the Docker Engine that DOCKER_HOST or a Docker context names, otherwise of this machine's."""

    def __init__(self) -> None:
        self._engine = DockerEngine()

    async def open(self) -> None:
        """Connect. Raises BackendError if Docker's library is not installed, or no Engine responds."""
        await self._engine.request_json("GET", "/version")

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.close()

    def build(self, stage: BuildStage) -> AsyncGenerator[Message, None]:
        """Build an image; the messages are the Engine's own."""
        settings = {"path": stage.folder, "dockerfile": stage.dockerfile, "tag": stage.tag}
        values = {"buildargs": dict(stage.args), "labels": dict(stage.labels)}
        network = stage.network or None
        return self._engine.build(**settings, **values, network_mode=network, rm=True, forcerm=True)

    def push(self, image: ImageRef, login: Login | None) -> AsyncGenerator[Message, None]:
        """Push one tag; the messages are the Engine's own."""
        auth: dict[str, str] = {}
        if login is not None:
            # An identity token (OAuth2) replaces user and password.
            auth = {"identitytoken": login.secret} if login.is_token else {}
            auth = auth or {"username": login.user, "password": login.secret}
            auth["serveraddress"] = image.registry
        return self._engine.push(image.name, image.tag, auth)

    async def tag(self, image_id: str, image: ImageRef) -> None:
        """Give an image a further name."""
        await self._engine.request("POST", f"/images/{image_id}/tag", repo=image.name, tag=image.tag)

    async def find(self, name: str) -> LocalImage | None:
        """Return the image with this name, or None."""
        try:
            return _local(await self._engine.request_json("GET", f"/images/{name}/json"), name)
        except DockerMissingError:
            return None

    async def base_digest(self, image: ImageRef) -> str:
        """Return the digest of the image that a build on this name starts from; empty if the Engine has none.

        Like a build, it uses the image in the Engine's store and asks the registry only without one.
        """
        if image.digest:
            return image.digest
        if (local := await self.find(str(image))) is not None:
            return local.digests[0].partition("@")[2] if local.digests else ""
        try:
            path = f"/distribution/{image}/json"
            answer = await self._engine.request_json("GET", path, seconds=_DISTRIBUTION_SECONDS)
        except DockerError:  # no network, or a login that the Engine does not have: no reason to refuse a build
            return ""
        descriptor = (answer or {}).get("Descriptor") or {}
        return str(descriptor.get("digest") or "")

    async def images(self) -> list[LocalImage]:
        """List the images that l2rtui has built on this Engine, one item for each name, newest first."""
        summaries = await self._engine.request_json("GET", "/images/json", filters={"label": [LABEL_OURS]})
        details = await self._engine.request_each([f"/images/{summary['Id']}/json" for summary in summaries])
        named = [_local(image, name) for image in details if image for name in image.get("RepoTags") or ()]
        return sorted(named, key=lambda image: image.created, reverse=True)


def _local(details: Mapping[str, Any], name: str) -> LocalImage:
    labels = (details.get("Config") or {}).get("Labels") or {}
    with contextlib.suppress(ValueError):
        repository = parse_image(name).name
        digests = (name for name in details.get("RepoDigests") or () if name.partition("@")[0] == repository)
        return LocalImage(
            name,
            str(details.get("Id", "")),
            int(details.get("Size") or 0),
            str(details.get("Created", "")),
            str(labels.get(LABEL_REVISION, "")),
            labels.get(LABEL_DIRTY) == "true",
            tuple(digests),
            str(labels.get(LABEL_BASE, "")),
            str(labels.get(LABEL_BASE_DIGEST, "")),
        )
    raise BackendError(f"The Docker Engine has an image with the name {name!r}, which is none.")
