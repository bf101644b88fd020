"""Images of a Docker Engine: list, tag, build and push.

Docker's Python library only has the classic builder; BuildKit runs as ``docker buildx``.

Progress is read from an Engine's message stream of a build, pull or push. The Engine sends status 200 before it
starts the work; success or failure is a message in the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from msgspec import Struct

from l2rtui.cloud.docker_engine import DockerEngine, DockerError, DockerMissingError
from l2rtui.cloud.images.credentials import Login
from l2rtui.domain.imageref import ImageRef, parse_image
from l2rtui.domain.quantity import format_bytes
from l2rtui.errors import BackendError

_TAIL_LINES = 15
_STEP_BYTES = 256 << 20
"""Where lines cannot be overwritten, one line for so many bytes: a layer of gigabytes takes many minutes."""
_DONE = ("Pushed", "Layer already exists", "Mounted from", "Already exists", "Pull complete")


class Progress(Struct, frozen=True):
    """One line of progress."""

    text: str
    is_step: bool
    """A new step, for logs where lines cannot be overwritten; False for changed byte counts."""


class BuildStage(Struct, frozen=True):
    """One image to build: source tree, its Dockerfile, name of the result, and settings of the builder."""

    folder: str
    dockerfile: str
    tag: str
    args: Mapping[str, str]
    labels: Mapping[str, str]
    network: str = ""


class BuildFailedError(Exception):
    """Failure of a build or push, with the text of the builder or Engine."""


class StreamTracker:
    """State of one message stream."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._steps = 0
        self.aux: dict[str, Any] = {}
        """The result: the image's id, or the digest of a pushed image."""
        self.present: set[str] = set()
        """Layers that the registry already has."""

    @property
    def last_lines(self) -> str:
        """Last lines of a build's output."""
        return "\n".join(self._lines)

    @property
    def layers(self) -> int:
        """Number of layers in the stream."""
        return len(self._layers)

    def add_message(self, item: Mapping[str, Any]) -> Progress | None:
        """Add one message of the stream; return its progress, None without news. Raises BuildFailedError."""
        if error := item.get("error"):
            detail = item.get("errorDetail")
            message = detail.get("message") if isinstance(detail, dict) else None
            raise BuildFailedError(str(message or error).strip())
        if isinstance(aux := item.get("aux"), dict):
            self.aux |= aux
        if text := str(item.get("stream") or "").strip():
            self._lines += text.splitlines()
            return Progress(text.splitlines()[-1], text.startswith("Step "))
        if (status := str(item.get("status") or "")) and (layer := str(item.get("id") or "")):
            return self._layer(layer, status, item.get("progressDetail"))
        return None

    def _layer(self, layer: str, status: str, detail: Any) -> Progress:
        before, current, total = self._layers.get(layer, ("", 0, 0))
        if isinstance(detail, dict) and "current" in detail:
            # Some messages of a layer omit its size, so the largest so far counts.
            current, total = int(detail["current"]), max(int(detail.get("total") or 0), total)
        self._layers[layer] = (status, current, total)
        if status == "Layer already exists":
            self.present.add(layer)
        if status.startswith(_DONE) or status.startswith("Retrying"):
            return Progress(f"{self._verb}: {layer} {status[0].lower()}{status[1:]}", status != before)
        done = sum(state.startswith(_DONE) for state, _, _ in self._layers.values())
        # A layer may end up larger than its announced size, compressed or not.
        moved = sum(min(sent, size) for _, sent, size in self._layers.values())
        all_bytes = sum(total for _, _, total in self._layers.values())
        size = f", {format_bytes(moved)} of {format_bytes(all_bytes)}" if all_bytes else ""
        last, self._steps = self._steps, max(self._steps, moved // _STEP_BYTES)
        return Progress(f"{self._verb}: {done} of {len(self._layers)} layers{size}", self._steps > last)


LABEL_REVISION: Final = "org.opencontainers.image.revision"
LABEL_DIRTY: Final = "io.l2rtui.dirty"
LABEL_OURS: Final = "io.l2rtui.image"
LABEL_BASE: Final = "org.opencontainers.image.base.name"
LABEL_BASE_DIGEST: Final = "org.opencontainers.image.base.digest"
_DISTRIBUTION_SECONDS: Final = 15.0

Message = Mapping[str, Any]


class LocalImage(Struct, frozen=True):
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


_STEP = re.compile(r"#\d+ (\[[^\]]*\d+/\d+\]|DONE|CACHED|ERROR)")
_LINE_BYTES = 1 << 20


async def has_buildx(program: str = "docker") -> bool:
    """Return True when the plugin is installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, "buildx", "version", stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
    except OSError:
        return False
    return await process.wait() == 0


async def build(stage: BuildStage, *, program: str = "docker") -> AsyncGenerator[Progress, None]:
    """Build an image into the Engine's own store; yield the lines of its output as progress.

    Raises BuildFailedError with the end of the output.
    """
    # The builder named `default` is the Engine's own: only it sees the base image that was just built.
    argv = [program, "buildx", "--builder", "default", "build", "--progress", "plain", "--load", "-t", stage.tag]
    argv += ["-f", f"{stage.folder}/{stage.dockerfile}", *(["--network", stage.network] if stage.network else [])]
    argv += [word for key, value in stage.args.items() for word in ("--build-arg", f"{key}={value}")]
    argv += [word for key, value in stage.labels.items() for word in ("--label", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        *argv,
        stage.folder,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        limit=_LINE_BYTES,  # asyncio's 64 KiB is too short for some tools' progress lines
        start_new_session=True,  # only we receive Ctrl-C, and we end the build
    )
    lines: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        async for raw in process.stdout:
            if line := raw.decode(errors="replace").strip():
                lines.append(line)
                yield Progress(line, bool(_STEP.match(line)))
        if await process.wait() != 0:
            raise BuildFailedError("\n".join(lines))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
