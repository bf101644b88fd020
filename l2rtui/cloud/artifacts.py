"""Checkpoints that learners have copied to a bucket or a folder: listing, reading and fetching.

``runtime.rl.checkpoints.checkpoint_files`` writes them. This is the reading side, which needs neither torch nor
NumPy. A manifest is only trusted after its own checksum was verified.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from msgspec import Struct, field

from l2rtui.cloud.aws.clients import describe_error, missing_library
from l2rtui.errors import BackendError, NotFoundError, UsageError
from runtime.base.atomic_files import ByteProgress, write_atomic
from runtime.base.checkpoint_manifest import (
    ARRAYS_SUFFIX,
    MANIFEST_SUFFIX,
    ManifestError,
    decode_manifest,
    file_sha256,
    is_manifest,
)
from runtime.base.object_store import ObjectStore, StoreError, open_store, split_bucket_url

MAX_MANIFESTS = 10_000
"""Maximum number of manifests that are read under one root; the rest is left out."""
_AT_ONCE = 16
"""Number of manifests that are read concurrently."""

P = ParamSpec("P")
T = TypeVar("T")


class Artifact(Struct, frozen=True):
    """One checkpoint.

    Attributes:
        location: URL or path of its folder. name: Name given by the learner.
        problem: Sentence on a known problem; otherwise empty.
        facts: Run, seed, environment, algorithm and returns at that time, if its manifest has them.
    """

    location: str
    name: str
    updates: int = 0
    env_steps: int = 0
    bytes: int = 0
    sha256: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class Artifacts:
    """The checkpoints under one root, at any depth.

    Args:
        root: ``s3://BUCKET[/PREFIX]`` or a folder.

    Raises:
        UsageError: The root is neither.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self._folder: Path | None = None
        self._store: ObjectStore | None = None
        self._opening = threading.Lock()
        if root.startswith("s3://"):
            try:
                split_bucket_url(self.root)
            except StoreError as error:
                raise UsageError(f"{self.root} names no bucket.", "Write s3://BUCKET/PREFIX.") from error
        elif "://" in root:
            raise UsageError(f"{root} is not a place for checkpoints.", "Use s3://BUCKET/PREFIX or a folder.")
        else:
            self._folder = Path(root).expanduser()

    async def list(self) -> tuple[Artifact, ...]:
        """Return every checkpoint, by folder, the oldest first.

        Raises:
            NotFoundError: The folder does not exist.
            BackendError: The root cannot be read.
        """
        if self._folder is not None and not await asyncio.to_thread(self._folder.is_dir):
            raise NotFoundError(f"There is no folder {self._folder}.")
        names = frozenset(await self._in_thread(lambda: self._open().names(is_recursive=True)))
        # Sorted paths: within a folder the names of checkpoints sort by age.
        manifests = sorted(name for name in names if is_manifest(name.rpartition("/")[2]))[:MAX_MANIFESTS]
        artifacts: list[Artifact] = []
        for start in range(0, len(manifests), _AT_ONCE):
            batch = manifests[start : start + _AT_ONCE]
            artifacts += await asyncio.gather(*(self._read(name, names) for name in batch))
        return tuple(artifacts)

    async def fetch(self, artifact: Artifact, folder: Path, progress: ByteProgress) -> Path:
        """Copy a checkpoint to a folder and verify it; return the path of its arrays.

        Args:
            progress: Called with the bytes since its last call; from other threads.

        Raises:
            BackendError: It cannot be read or written, or its checksum is wrong; nothing is left behind.
        """
        return await self._in_thread(self._fetch, artifact, folder, progress)

    def _fetch(self, artifact: Artifact, folder: Path, progress: ByteProgress) -> Path:
        below = artifact.location.removeprefix(self.root).strip("/")
        source = f"{below}/{artifact.name}" if below else artifact.name
        arrays, manifest = folder / f"{artifact.name}{ARRAYS_SUFFIX}", folder / f"{artifact.name}{MANIFEST_SUFFIX}"
        store = self._open()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            store.fetch(f"{source}{ARRAYS_SUFFIX}", arrays, progress)
            # Read again from the disk: the checksums of the transfer do not cover the written file.
            if file_sha256(arrays) != artifact.sha256:
                arrays.unlink()
                raise BackendError(
                    f"{artifact.location}/{artifact.name} is damaged: its check sum is wrong.", "Take another."
                )
            # The manifest last: a checkpoint with a manifest counts as complete.
            write_atomic(manifest, store.read(f"{source}{MANIFEST_SUFFIX}"))
        except StoreError:
            raise
        except OSError as error:
            raise BackendError(
                f"{artifact.location}/{artifact.name} cannot be copied to {folder}: {error.strerror or error}."
            ) from error
        return arrays

    async def _read(self, path: str, names: frozenset[str]) -> Artifact:
        folder, _, file = path.rpartition("/")
        location, name = (f"{self.root}/{folder}" if folder else self.root), file.removesuffix(MANIFEST_SUFFIX)
        try:
            manifest = decode_manifest(await self._in_thread(lambda: self._open().read(path)))
        except ManifestError as error:
            return Artifact(location, name, problem=str(error))
        # Facts are written by a learner; their types are not guaranteed.
        made = manifest.facts.get("made")
        facts = made if isinstance(made, dict) else {}
        problem = "" if path.removesuffix(MANIFEST_SUFFIX) + ARRAYS_SUFFIX in names else "its arrays are not there"
        return Artifact(
            location, name, manifest.updates, manifest.env_steps, manifest.bytes, manifest.sha256, facts, problem
        )

    def _open(self) -> ObjectStore:
        """Return the store. It is opened in a thread on first use: importing boto3 takes half a second."""
        with self._opening:
            if self._store is None:
                self._store = open_store(self.root if self._folder is None else str(self._folder))
            return self._store

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a blocking function of the store in a thread; its errors become BackendError."""
        try:
            return await asyncio.to_thread(function, *args, **kwargs)
        except StoreError as error:
            if isinstance(error.__cause__, ImportError):
                raise missing_library() from error
            if error.__cause__ is None:
                raise BackendError(f"{error}.") from error
            raise describe_error("s3", error.operation, error.__cause__) from error
        except OSError as error:
            raise BackendError(f"{self.root} cannot be read: {error.strerror or error}.") from error
