"""Volumes: what a backend offers besides ``base.Backend`` where it has storage that outlives pods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Volume:
    """Storage that outlives pods.

    Attributes:
        phase: Bound, Pending, Lost or Terminating. modes: access modes in Kubernetes' words.
        mounted_by: Names of the pods that hold it. reason: why it is not bound; empty when it is.
    """

    name: str
    size_bytes: int = 0
    phase: str = ""
    modes: tuple[str, ...] = ()
    storage_class: str = ""
    mounted_by: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a volume.

    Attributes:
        path: Relative to where one looked; empty for the file itself. kind: file, folder, link or other.
        size: Bytes. changed: Seconds since the epoch.
    """

    path: str
    kind: str
    size: int
    changed: float


class VolumeFiles(Protocol):
    """The files of one volume that is open. Paths are relative to its root."""

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """What lies directly under a path, folders first; a file gives itself."""
        ...

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """Every file under a path, at any depth."""
        ...

    async def get(self, path: str, target: Path, progress: Callable[[int], None]) -> int:
        """Copy a file, or all under a folder, to this machine; how many files. What is there already is left."""
        ...

    async def put(self, source: Path, path: str, progress: Callable[[int], None]) -> int:
        """Copy a file, or all under a folder, to the volume; how many files. What is there already is left."""
        ...


class VolumeStore(Protocol):
    """The volumes of a backend."""

    async def list(self) -> tuple[Volume, ...]:
        """Every volume, and what mounts it."""
        ...

    async def create(
        self, name: str, size: str, *, storage_class: str = "", modes: tuple[str, ...] = ("RWO",)
    ) -> Volume:
        """Make one; ``size`` is a quantity such as 50Gi, ``modes`` are RWO, RWX, ROX or RWOP."""
        ...

    async def delete(self, name: str) -> None:
        """Remove one that nothing mounts."""
        ...

    def files(self, name: str) -> AbstractAsyncContextManager[VolumeFiles]:
        """Open its files."""
        ...


@runtime_checkable
class Storing(Protocol):
    """A backend with volumes."""

    def volumes(self, owner: str, image: str = "") -> VolumeStore:
        """The volumes.

        Args:
            owner: Who we are, for the labels of what is made.
            image: For the pods that carry files; that of the settings when it is empty.
        """
        ...
