"""Checkpoints that learners have left in a bucket or a folder: found, read, fetched.

``runtime.mirror`` writes them: arrays in ``NAME.safetensors``, then ``NAME.json``, the manifest, with their SHA-256
and what they are. Whatever has a manifest is complete. This is the reader's half: it needs neither torch nor numpy,
and believes no manifest before its own check sum is right.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from l2rtui.errors import BackendError, NotFoundError, UsageError

MOST = 10_000
"""Manifests that are looked at in one place."""
_AT_ONCE = 16
"""Manifests that are read at the same time."""
_FORMAT = 2

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Artifact:
    """One checkpoint.

    Attributes:
        place: URL or path of the folder that it lies in. name: as the learner called it.
        problem: What is wrong with it, a sentence; empty when nothing is known to be.
        facts: Run, seed, environment, algorithm, returns at that moment, where its manifest has them.
    """

    place: str
    name: str
    updates: int = 0
    env_steps: int = 0
    bytes: int = 0
    sha256: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class _Files(Protocol):
    """Files under one root, by their paths below it."""

    async def names(self) -> list[str]: ...
    async def read(self, name: str) -> bytes: ...
    async def fetch(self, name: str, target: Path, progress: Progress) -> None: ...


class Artifacts:
    """The checkpoints under one root, at any depth.

    Args:
        root: ``s3://BUCKET[/PREFIX]`` or a folder.

    Raises:
        UsageError: it is neither.
    """

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        if root.startswith("s3://"):
            from l2rtui.backends.aws.objects import Objects

            self._files: _Files = Objects(self.root)
        elif "://" in root:
            raise UsageError(f"{root} is no place for checkpoints.", "Use s3://BUCKET/PREFIX or a folder.")
        else:
            self._files = _Folder(Path(root).expanduser())

    async def list(self) -> tuple[Artifact, ...]:
        """Every checkpoint, by place, the oldest first.

        Raises:
            BackendError: the place cannot be read.
        """
        names = await self._files.names()
        there = set(names)
        manifests = sorted(name for name in names if _is_manifest(name))[:MOST]
        found: list[Artifact] = []
        for start in range(0, len(manifests), _AT_ONCE):
            some = manifests[start : start + _AT_ONCE]
            found += await asyncio.gather(*(self._look(name, there) for name in some))
        return tuple(found)

    async def fetch(self, one: Artifact, folder: Path, progress: Progress) -> Path:
        """Copy a checkpoint to a folder and check it; the manifest comes last.

        Raises:
            BackendError: it cannot be read or written, or its check sum is wrong; nothing is left.
        """
        below = one.place.removeprefix(self.root).strip("/")
        source = f"{below}/{one.name}" if below else one.name
        data, manifest = folder / f"{one.name}.safetensors", folder / f"{one.name}.json"
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            await self._files.fetch(f"{source}.safetensors", data, progress)
            if await asyncio.to_thread(_digest, data) != one.sha256:
                data.unlink()
                raise BackendError(f"{one.place}/{one.name} is damaged: its check sum is wrong.", "Take another.")
            text = await self._files.read(f"{source}.json")
            temporary = manifest.with_name(f".tmp-{manifest.name}")
            temporary.write_bytes(text)
            temporary.replace(manifest)
        except OSError as error:
            raise BackendError(f"{one.place}/{one.name} cannot be copied to {folder}: {error.strerror}.") from error
        return data

    async def _look(self, path: str, there: set[str]) -> Artifact:
        folder, _, file = path.rpartition("/")
        place, name = (f"{self.root}/{folder}" if folder else self.root), file.removesuffix(".json")
        try:
            says = _checked(await self._files.read(path))
        except (ValueError, TypeError, msgspec.DecodeError) as error:
            return Artifact(place, name, problem=f"its manifest cannot be used: {error}")
        made = says.facts.get("made")
        facts = made if isinstance(made, dict) else {}
        problem = "" if path.replace(".json", ".safetensors") in there else "its arrays are not there"
        return Artifact(place, name, says.updates, says.env_steps, says.bytes, says.sha256, facts, problem)


class _Manifest(msgspec.Struct):
    format: int
    updates: int
    env_steps: int
    bytes: int
    sha256: str
    check: str
    facts: dict[str, Any] = {}


def _checked(text: bytes) -> _Manifest:
    """Decode a manifest whose own check sum is right. Raises ValueError, TypeError or msgspec.DecodeError."""
    raw = json.loads(text)
    says = msgspec.convert(raw, _Manifest)
    if says.format != _FORMAT:
        raise ValueError("it is of another format")
    del raw["check"]
    if hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest() != says.check:
        raise ValueError("its check sum is wrong")
    return says


def _is_manifest(path: str) -> bool:
    file = path.rpartition("/")[2]
    return file.startswith("ckpt-") and file.endswith(".json")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Folder:
    """Files of this machine, or of a volume that is mounted here."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def names(self) -> list[str]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[str]:
        if not self._root.is_dir():
            raise NotFoundError(f"There is no folder {self._root}.")
        return [
            os.path.relpath(os.path.join(folder, name), self._root)  # noqa: PTH118  (thousands of names)
            for folder, _, names in os.walk(self._root)
            for name in names
        ]

    async def read(self, name: str) -> bytes:
        return await asyncio.to_thread((self._root / name).read_bytes)

    async def fetch(self, name: str, target: Path, progress: Progress) -> None:
        progress(await asyncio.to_thread(_copy, self._root / name, target))


def _copy(source: Path, target: Path) -> int:
    """Copy a file so that it appears whole; its bytes."""
    temporary = target.with_name(f".tmp-{target.name}")
    shutil.copyfile(source, temporary)
    temporary.replace(target)
    return target.stat().st_size
