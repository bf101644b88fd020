"""Names of container images, parsed as Docker's distribution/reference does: registry, repository, tag, digest."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

HUB = "docker.io"
# Grammar of distribution/reference: separators inside a component, never at its ends.
_PATH = re.compile(r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?|\[[0-9a-fA-F:]+\](:[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ECR = re.compile(r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]+){3}|\[::1\]")


class ImageRef(Struct, frozen=True):
    """One name of an image.

    Attributes:
        registry: Host, with a port if it has one; ``docker.io`` if the name has no host.
        repository: Path within the registry.
        tag: Empty if the name has no tag. digest: ``sha256:…`` or empty.
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
        """Reference for the registry API: the digest, else the tag, else ``latest``."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        """Full name as a command line takes it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}{f'@{self.digest}' if self.digest else ''}"

    def tagged(self, tag: str) -> ImageRef:
        """The same repository with this tag and no digest."""
        return replace(self, tag=tag, digest="")

    def pinned(self, digest: str) -> ImageRef:
        """The same image by its content: the tag stays for people, registries use the digest."""
        return replace(self, digest=digest)


def parse_image(text: str) -> ImageRef:
    """Read the name of an image.

    Raises:
        ValueError: The name is invalid; the message says which part is wrong.
    """
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"the digest {digest!r} is not sha256: and 64 hexadecimal digits")
    host, slash, path = rest.partition("/")
    # Docker's rule: the part before the first slash is a host only if it has a dot or a port, or is localhost.
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
    # `docker.io/python` means `docker.io/library/python`; a bare `python` is kept as written.
    if registry == HUB and "/" not in path and has_host:
        path = f"library/{path}"
    return ImageRef(registry, path, tag, digest)


def is_loopback(registry: str) -> bool:
    """True for a registry on this machine, to which Docker speaks plain HTTP."""
    return bool(_LOOPBACK.fullmatch(re.sub(r":[0-9]+$", "", registry)))


def ecr_region(registry: str) -> str:
    """AWS region of an ECR registry; empty for any other registry."""
    match = _ECR.fullmatch(registry)
    return match["region"] if match else ""
