"""Images from source to a digest in a spec: build in order, push, pin the pushed digest.

The base changes rarely and the image above it with every edit of ``runtime``, so the two are built one after the
other, the second on the first.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from msgspec import Struct, field

import l2rtui
from l2rtui import __version__, commit
from l2rtui.cloud.aws.clients import Cloud, CloudError
from l2rtui.cloud.images import credentials
from l2rtui.cloud.images import engine as buildx
from l2rtui.cloud.images.credentials import Login
from l2rtui.cloud.images.engine import (
    LABEL_BASE,
    LABEL_BASE_DIGEST,
    LABEL_DIRTY,
    LABEL_OURS,
    LABEL_REVISION,
    BuildFailedError,
    BuildStage,
    ImageEngine,
    Message,
    Progress,
    StreamTracker,
)
from l2rtui.cloud.images.registry import Registry
from l2rtui.config import state_dir
from l2rtui.domain.imageref import HUB, ImageRef, ecr_region, parse_image
from l2rtui.domain.plan import LaunchPlan
from l2rtui.domain.preflight import Finding, Severity
from l2rtui.errors import BackendError, L2RError, NotFoundError, RefusedError, UsageError
from l2rtui.services.history import journal
from runtime.base.processes import exponential_delay

_log = logging.getLogger(__name__)

BASE_NAME = "l2rtui-base"
NODE_NAME = "l2rtui-node"
PUSH_ATTEMPTS = 6
_LONGEST_PAUSE_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 4.0
_SOURCES = ("docker", "requirements", "runtime")
"""Inputs of an image; only edits there make a tree dirty."""
_NO_ENTRY = re.compile(
    r"unauthorized|authentication required|denied|no basic auth|incorrect username|forbidden", re.IGNORECASE
)
_EXPIRED = re.compile(r"token has expired", re.IGNORECASE)
_DEFAULT_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)

Logins = Callable[[], Awaitable[Login | None]]


class SourceTree(Struct, frozen=True):
    """A source tree to build from.

    Attributes:
        revision: Short git revision; empty outside of git.
        is_dirty: The inputs of an image differ from that revision.
    """

    folder: Path
    revision: str
    is_dirty: bool

    @property
    def tag(self) -> str:
        """Tag of an image built from it."""
        return f"{self.revision or 'unversioned'}{'-dirty' if self.is_dirty else ''}"


class Built(Struct, frozen=True):
    """An image that was built."""

    image: ImageRef
    id: str
    source: SourceTree


class Pushed(Struct, frozen=True):
    """A pushed image.

    Attributes:
        layers: Number of its layers. present: number of layers that the registry already had.
    """

    image: ImageRef
    layers: int
    present: int


class Recipe(Struct, frozen=True):
    """Sources, base and arguments of a build.

    Attributes:
        base: Image below the base; empty for the one that the Dockerfile names.
        args: Further build arguments. network: of the build's commands; empty for Docker's own.
    """

    source: SourceTree
    image: ImageRef
    base: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    network: str = ""


async def find_source(folder: str = "") -> SourceTree:
    """Return the source tree in a folder; by default the working directory, a parent of it, or this program's own.

    An installed program has no tree: a folder of its own files is made.

    Raises:
        UsageError: no source tree was found. BackendError: the folder cannot be written.
    """
    source_folder = await asyncio.to_thread(_source_folder, folder)
    if source_folder is None:
        source_folder = await asyncio.to_thread(write_source, state_dir() / "image-source", replaces=True)
        return SourceTree(source_folder, commit()[:12] or f"v{__version__}", is_dirty=False)
    revision = (await _git(source_folder, "rev-parse", "--short=12", "HEAD")).strip()
    changed = revision and (await _git(source_folder, "status", "--porcelain", "--", *_SOURCES)).strip()
    return SourceTree(source_folder, revision, bool(changed))


def node_image(source: SourceTree, name: str = NODE_NAME) -> ImageRef:
    """Return the image name for a source tree; its tag contains the revision."""
    return named(name) if named(name).tag else named(name).tagged(source.tag)


def named(name: str) -> ImageRef:
    """Parse the name of an image. Raises UsageError if it is not valid."""
    try:
        return parse_image(name)
    except ValueError as error:
        raise UsageError(f"{name!r} is not an image name: {error}.") from None


def destination(name: str) -> ImageRef:
    """Return the image of a name that can be pushed. Raises UsageError if it is invalid or names no registry."""
    image = named(name)
    if image.registry == HUB and "/" not in image.repository:
        raise UsageError(f"{name} names no registry.", "Write its host first, such as registry.example/lab/node.")
    return image if image.tag else image.tagged("latest")


def write_source(folder: Path, *, replaces: bool = False) -> Path:
    """Write the sources of an image into a folder: Dockerfiles, pins and the runtime of this program.

    Args:
        replaces: The folder is ours: what an earlier version wrote there is replaced.

    Raises:
        RefusedError: the folder has contents. BackendError: it cannot be written.
    """
    package = Path(l2rtui.__file__).parent
    try:
        if not replaces and folder.is_dir() and any(folder.iterdir()):
            raise RefusedError(f"{folder} is not empty.", "Name a new folder.")
        for name in _SOURCES:
            if replaces:
                shutil.rmtree(folder / name, ignore_errors=True)
            # An installed package contains the first two; in a source tree all are next to the package.
            source = package / name if (package / name).is_dir() else package.parent / name
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    except (OSError, shutil.Error) as error:
        sentence = f"The source of the image was not written to {folder}: {error}."
        raise BackendError(sentence, "Name another folder, or a source tree with --source.") from error
    return folder


def _source_folder(folder: str) -> Path | None:
    """Return the folder of a source tree; None where the program is installed without one."""
    here = Path.cwd()
    own = Path(__file__).resolve().parents[2]
    places = [Path(folder).resolve()] if folder else [here, *here.parents, own]
    for place in places:
        if (place / "docker" / "Dockerfile.node").is_file():
            return place
    if not folder and (Path(l2rtui.__file__).parent / "docker" / "Dockerfile.node").is_file():
        return None
    sentence = f"There is no docker/Dockerfile.node in {folder or here}."
    raise UsageError(sentence, "Name the source tree with --source.")


async def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git; empty if git or the repository is missing."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git", "-C", str(folder), *arguments, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
        )
    except OSError:
        return ""
    out, _ = await process.communicate()
    return out.decode(errors="replace") if process.returncode == 0 else ""


async def build(engine: ImageEngine, recipe: Recipe) -> AsyncGenerator[Progress | Built, None]:
    """Build the base and the image on it; the last item is the image.

    Raises:
        BackendError: a step fails; the sentence contains the end of its output.
    """
    source = recipe.source
    base = parse_image(f"{BASE_NAME}:{source.tag}")
    labels = {LABEL_OURS: "true", LABEL_DIRTY: str(source.is_dirty).lower()}
    labels |= {LABEL_REVISION: source.revision} if source.revision else {}
    labels |= await _base_labels(engine, recipe)
    has_buildkit = await buildx.has_buildx()
    stages = (
        ("Dockerfile.base", base, {"BASE": recipe.base} if recipe.base else {}),
        ("Dockerfile.node", recipe.image, {"BASE_IMAGE": str(base)}),
    )
    for number, (name, image, args) in enumerate(stages, 1):
        yield Progress(f"{number}/{len(stages)} docker/{name} → {image}", is_step=True)
        arguments = {**recipe.args, **args}
        stage = BuildStage(str(source.folder), f"docker/{name}", str(image), arguments, labels, recipe.network)
        steps = (
            buildx.build(stage) if has_buildkit else _with_last_lines(engine.build(stage), StreamTracker("base"))
        )
        try:
            async with aclosing(steps):
                async for step in steps:
                    yield step
        except BuildFailedError as error:
            raise BackendError(f"docker/{name} was not built: {error}", "Correct it and build again.") from error
    # Ask the Engine: BuildKit may have built only into a cache, which no pod can run.
    built = await engine.find(str(recipe.image))
    if built is None:
        raise BackendError(f"{recipe.image} was built, and the Docker Engine does not know it.", "Build again.")
    journal.record("image build", str(recipe.image), "done", id=built.id, dirty=source.is_dirty, base=recipe.base)
    yield Built(recipe.image, built.id, source)


def _default_base(folder: Path) -> str:
    """Return the base that the Dockerfile names; empty if it names none or cannot be read."""
    try:
        match = _DEFAULT_BASE.search((folder / "docker" / "Dockerfile.base").read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    return match[1] if match else ""


async def _base_labels(engine: ImageEngine, recipe: Recipe) -> dict[str, str]:
    """Return name and digest of the outermost base, for both stages: the intermediate one is in no registry."""
    name = recipe.base or await asyncio.to_thread(_default_base, recipe.source.folder)
    if not name:
        return {}
    image = named(name)
    image = image if image.tag or image.digest else image.tagged("latest")
    digest = await engine.base_digest(image)
    # The annotation contains a full name: `debian` is docker.io/library/debian.
    path = image.repository if "/" in image.repository or image.registry != HUB else f"library/{image.repository}"
    labels = {LABEL_BASE: f"{image.registry}/{path}{f':{image.tag}' if image.tag else ''}"}
    return labels | ({LABEL_BASE_DIGEST: digest} if digest else {})


async def _with_last_lines(
    messages: AsyncGenerator[Message, None], tracker: StreamTracker
) -> AsyncGenerator[Progress, None]:
    async with aclosing(messages):
        try:
            async for message in messages:
                if (progress := tracker.add_message(message)) is not None:
                    yield progress
        except BuildFailedError as error:
            progress_lines = f"{tracker.last_lines}\n{error}" if tracker.last_lines else str(error)
            raise BuildFailedError(progress_lines) from error


async def push(
    engine: ImageEngine, image: ImageRef, login: Logins, *, first_pause_seconds: float = _FIRST_PAUSE_SECONDS
) -> AsyncGenerator[Progress | Pushed, None]:
    """Push one tag, with retries after an interruption: layers that have arrived are not sent again. The last item
    is Pushed.

    Args:
        login: Called before each attempt, since some logins expire.

    Raises:
        BackendError: the registry refuses the login, or every attempt failed.
    """
    for attempt in range(1, PUSH_ATTEMPTS + 1):
        tracker = StreamTracker("push")
        try:
            steps = _with_last_lines(engine.push(image, await login()), tracker)
            async with aclosing(steps):
                async for step in steps:
                    yield step
        except (BuildFailedError, BackendError) as error:
            reason = (error.message if isinstance(error, BackendError) else str(error)).rstrip(".")
            # An expired login is renewed by the next attempt; a refused one would be refused again.
            if _NO_ENTRY.search(reason) and not _EXPIRED.search(reason):
                hint = f"Do `l2rtui image login {image.registry}`."
                raise BackendError(f"{image.registry} does not let us push {image}: {reason}.", hint) from error
            if attempt == PUSH_ATTEMPTS:
                hint = "Layers that have arrived are kept: push again."
                raise BackendError(f"{image} was not pushed in {attempt} attempts: {reason}.", hint) from error
            pause = exponential_delay(attempt, first_pause_seconds, _LONGEST_PAUSE_SECONDS)
            yield Progress(f"push: cut ({reason}); again in {pause:g} s", is_step=True)
            await asyncio.sleep(pause)
            continue
        # The Engine reports the digest in a separate message, only after the manifest has been accepted.
        digest = str(tracker.aux.get("Digest") or "")
        if not digest:
            raise BackendError(f"{image} was pushed, and the Docker Engine names no digest.", "Push it again.")
        pinned = image.pinned(digest)
        journal.record("image push", str(image), "done", digest=digest)
        yield Pushed(pinned, tracker.layers, len(tracker.present))
        return


# --- registries ------------------------------------------------------------------------------------------------


async def login_for(registry: str) -> Login | None:
    """Return the login for a registry: from the AWS account for ECR, otherwise the saved one; None without one."""
    if region := ecr_region(registry):
        return Login(*await registry_login(Cloud(region)))
    return await asyncio.to_thread(credentials.find_login, registry)


async def prepare_registry(image: ImageRef) -> bool:
    """Create the repository if the registry needs that before a push; return True if it was created."""
    if region := ecr_region(image.registry):
        return await ensure_repository(Cloud(region), image.repository)
    return False


async def log_in(registry: str, login: Login) -> str:
    """Check a login and save it; return where it is saved.

    Raises:
        BackendError: the registry refuses it, or does not answer; nothing is saved.
    """
    async with Registry(registry, login) as client:
        await client.check_login()
    return await asyncio.to_thread(credentials.store_login, registry, login)


async def digest_of(image: ImageRef) -> str:
    """Return the digest of a tag in its registry."""
    async with Registry(image.registry, await login_for(image.registry)) as registry:
        return await registry.digest(image)


async def tags_of(image: ImageRef) -> list[tuple[str, str]]:
    """Return every tag of a repository with its digest."""
    async with Registry(image.registry, await login_for(image.registry)) as registry:
        names = await registry.tags(image)
        return [(name, await registry.digest(image.tagged(name))) for name in sorted(names)]


def names_in(plan: LaunchPlan) -> list[str]:
    """Return the images of a plan's pods."""
    parts = ((run.spec, part) for run in plan.runs for part in run.spec.sets)
    return list(dict.fromkeys(filter(None, (part.pod.image or spec.image for spec, part in parts))))


async def absent(names: Iterable[str]) -> tuple[Finding, ...]:
    """Return a warning for each image that its registry does not have.

    A registry that does not answer or requires a login is not a finding: nodes may reach what this machine does
    not.
    """

    async def look(name: str) -> Finding | None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await digest_of(named(name))
        except NotFoundError as error:
            hint = "Pods wait for it, unless their nodes have it already. Correct its name or tag, or push it."
            return Finding(Severity.WARNING, f"image {name}", error.message.rstrip("."), hint)
        except (L2RError, OSError, ValueError) as error:
            _log.info("image %s: not known: %s", name, error)
        return None

    findings = await asyncio.gather(*map(look, dict.fromkeys(names)))
    return tuple(finding for finding in findings if finding is not None)


async def pinned(name: str) -> str:
    """Return the name of an image with its digest.

    Raises:
        UsageError: it is not a name of an image. BackendError: the registry does not answer, or has no such image.
    """
    image = named(name)
    if image.digest:
        return name
    try:
        return str(image.pinned(await digest_of(image)))
    except L2RError as error:
        other = "add --no-pin: nodes then use the tag when they pull."
        hint = f"{error.hint} Or {other}" if error.hint else other.capitalize()
        raise BackendError(error.message, hint) from error


# --- Amazon's registry: logins (12 hours), repositories, which must exist before the first push ----------------
async def registry_login(cloud: Cloud) -> tuple[str, str]:
    """Return user and password for the account's registry; CloudError without permission or credentials."""
    answer = await cloud.call("ecr", "get_authorization_token")
    granted = answer.get("authorizationData") or [{}]
    user, colon, secret = base64.b64decode(granted[0].get("authorizationToken") or "").decode().partition(":")
    if not colon:
        raise BackendError("Amazon's registry gave no login.", "Try again.")
    return user, secret


async def ensure_repository(cloud: Cloud, name: str) -> bool:
    """Create a repository unless it exists; return whether it was created."""
    if await cloud.find("ecr", "describe_repositories", repositoryNames=[name]) is not None:
        return False
    request: dict[str, Any] = {
        "repositoryName": name,
        "imageScanningConfiguration": {"scanOnPush": True},
        "tags": [{"Key": "l2rtui/managed", "Value": "true"}],
    }
    try:
        await cloud.call("ecr", "create_repository", **request)
    except CloudError as error:
        if "AlreadyExists" not in error.code:  # someone else created it first, which is fine
            raise
    return True
