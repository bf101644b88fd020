"""Local side of file transfers to and from a volume. Every function blocks, so callers run it in threads."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from l2rtui.backends.kubernetes.streams.exec import BLOCK_BYTES
from l2rtui.errors import BackendError

# A batch is held in memory and repeated as a whole after a broken connection.
_BATCH_BYTES = 32 * 1024 * 1024
_BATCH_FILES = 200

Progress = Callable[[int], None]
"""Called with the number of bytes transferred since the last call."""
T = TypeVar("T")


def batches(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Divide items into batches that are transferred together."""
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


def unpack(stream: io.BytesIO, targets: dict[str, Path]) -> list[str]:
    """Write the requested files from a tar stream, and no other members; return the names of missing files.

    Raises:
        BackendError: The stream is not a tar archive.
    """
    missing = dict(targets)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                # tar sends the content of a hard-linked file once, and its other names as links.
                first = targets.get(member.linkname) if member.islnk() else None
                target = targets.get(member.name)
                if target is None or not (member.isreg() or (first is not None and first.is_file())):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # Renamed when complete, so that readers never see a partial file.
                part = target.with_name(f".part-{target.name}")
                if first is not None:
                    shutil.copyfile(first, part)
                elif (data := archive.extractfile(member)) is not None:
                    part.write_bytes(data.read())
                stamp(part, member.mtime)
                part.replace(target)
                missing.pop(member.name, None)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BackendError(f"The volume's pod did not send an archive: {error}.", "Copy it again.") from error
    return list(missing)


def stamp(path: Path, changed: float) -> None:
    """Set a file's modification time to its original's, which the next copy compares."""
    os.utime(path, (changed, changed))


def pack(batch: Sequence[tuple[str, Path, int]]) -> bytes:
    """Pack files, given by name, path and size, into one tar stream.

    Raises:
        BackendError: A file is gone, or became shorter while it was read.
    """
    stream = io.BytesIO()
    # Dereferenced: a symbolic link would arrive dangling, and a second hard link of a file without content.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, dereference=True) as archive:
        for name, path, _ in batch:
            try:
                archive.add(path, name, recursive=False)
            except OSError as error:
                raise BackendError(f"{path} changed while it was copied: {error}.", "Copy it again.") from error
    return stream.getvalue()


async def read(source: Path, start: int, progress: Progress) -> AsyncIterator[bytes]:
    """Yield a file from byte ``start`` on, block by block."""
    with source.open("rb") as file:
        file.seek(start)
        while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
            yield block
            progress(len(block))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
