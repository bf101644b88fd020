"""This machine's side of files that are carried to and from a volume; all of it blocks, so it runs in threads."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from l2rtui.backends.kubernetes.pipes import BLOCK_BYTES
from l2rtui.backends.storage import FileEntry
from l2rtui.errors import BackendError

_BATCH_BYTES = 32 * 1024 * 1024
_BATCH_FILES = 200

Progress = Callable[[int], None]
"""Called with the bytes that have come over since the last call."""
T = TypeVar("T")


def below(folder: Path, name: str) -> Path:
    """A local path for a name that a volume gave; such a name is not trusted.

    Raises:
        BackendError: it leads out of the folder.
    """
    parts = name.split("/")
    if ".." in parts or name.startswith("/"):
        raise BackendError(f"The volume names a file {name!r}, which would lead out of {folder}.")
    return folder.joinpath(*parts)


def is_there(local: Path, entry: FileEntry) -> bool:
    """Whether a copy of the same size and time is here."""
    try:
        found = local.stat()
    except OSError:
        return False
    return found.st_size == entry.size and abs(found.st_mtime - entry.changed) < 1.0


def local_files(source: Path) -> list[tuple[str, Path, int]]:
    """Name below the source, path and size of every file; a file's own name is empty."""
    if source.is_file():
        return [("", source, source.stat().st_size)]
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    return [(path.relative_to(source).as_posix(), path, path.stat().st_size) for path in paths]


def batches(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in groups that travel together."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and (total + size(item) > _BATCH_BYTES or len(batch) >= _BATCH_FILES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def unpack(stream: io.BytesIO, targets: dict[str, Path]) -> None:
    """Write the files that were asked for, and nothing else of what the stream may hold."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            target = targets.get(member.name)
            if target is None or not member.isreg() or (data := archive.extractfile(member)) is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".part-{target.name}")
            part.write_bytes(data.read())
            stamp(part, member.mtime)
            part.replace(target)


def stamp(path: Path, changed: float) -> None:
    """Give a file the time of its original, by which the next copy knows it."""
    os.utime(path, (changed, changed))


def pack(batch: Sequence[tuple[str, Path, int]]) -> bytes:
    """Name, path and size of files to one tar stream."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path, _ in batch:
            archive.add(path, name, recursive=False)
    return stream.getvalue()


async def read(source: Path, start: int, progress: Progress) -> AsyncIterator[bytes]:
    """A file from some byte on, block by block."""
    with source.open("rb") as file:
        file.seek(start)
        while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
            yield block
            progress(len(block))


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
