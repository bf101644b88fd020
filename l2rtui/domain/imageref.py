"""Names of container images, read as Docker reads them: registry, repository, tag, digest."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

HUB = "docker.io"
_PATH = re.compile(r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ECR = re.compile(r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]+){3}|\[::1\]")


@dataclass(frozen=True, slots=True)
class ImageRef:
    """One name of an image.

    Attributes:
        registry: Host, with a port where it has one; ``docker.io`` where the name has none.
        repository: Path within the registry.
        tag: Empty where only a digest, or neither, is said. digest: ``sha256:…`` or empty.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Registry and repository, as people write them."""
        return self.repository if self.registry == HUB else f"{self.registry}/{self.repository}"

    @property
    def reference(self) -> str:
        """What a registry is asked for: the digest, else the tag, else ``latest``."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        """The whole name."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"

    def tagged(self, tag: str) -> ImageRef:
        """The same repository with this tag and no digest."""
        return replace(self, tag=tag, digest="")

    def pinned(self, digest: str) -> ImageRef:
        """The same image by its content: the tag stays for people, registries go by the digest."""
        return replace(self, digest=digest)


def parse_image(text: str) -> ImageRef:
    """Read the name of an image.

    Raises:
        ValueError: it is none; the sentence says which part is wrong.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"the digest {digest!r} is not sha256: and 64 hexadecimal digits")
    host, slash, path = rest.partition("/")
    has_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    registry = host if has_host else HUB
    path = path if has_host else rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"the tag {tag!r} is not letters, digits, '_', '.' and '-', at most 128")
    if not _HOST.fullmatch(registry):
        raise ValueError(f"the registry {registry!r} is not a host name")
    if not _PATH.fullmatch(path) or len(path) > 255:
        raise ValueError(f"the name {path!r} is not lower-case letters, digits, '.', '_', '-' and '/'")
    if registry == HUB and "/" not in path and has_host:
        path = f"library/{path}"
    return ImageRef(registry, path, tag, digest)


def is_loopback(registry: str) -> bool:
    """Whether a registry is on this machine: Docker then speaks plain HTTP to it."""
    return bool(_LOOPBACK.fullmatch(re.sub(r":[0-9]+$", "", registry)))


def ecr_region(registry: str) -> str:
    """The region of a registry of Amazon's; empty for any other registry."""
    found = _ECR.fullmatch(registry)
    return found["region"] if found else ""
