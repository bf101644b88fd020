"""Where checkpoints are also put, beyond the run's own folder: another folder (a volume), or a bucket.

One door for both. A file appears under its name whole or not at all: a folder gets it by a rename, a bucket shows
an object when its last part has come. So a reader needs no lock, and a writer that is killed leaves nothing that
could be read (what it leaves unseen, `sweep` takes away).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

CHUNK_BYTES: Final = 8 * 1024 * 1024

Progress = Callable[[int], None]
"""Called with the bytes that have been moved since the last call; any thread."""


class PlaceError(OSError):
    """The place cannot be used, or not just now; the sentence names it."""


class Place(Protocol):
    """Files by name under one root."""

    url: str

    def names(self) -> list[str]:
        """Names of all files directly under the root, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """Return a small file. Raises FileNotFoundError or another OSError."""
        ...

    def put(self, name: str, source: Path, progress: Progress = lambda _: None) -> None:
        """Copy a file there; it appears whole. Raises OSError, and then nothing has appeared."""
        ...

    def fetch(self, name: str, target: Path, progress: Progress = lambda _: None) -> None:
        """Copy a file from there to `target`, which appears whole. Raises OSError."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error. Raises OSError."""
        ...

    def sweep(self) -> None:
        """Remove what writers that were killed have left half done. Only the one writer of a place calls it."""
        ...


def open_place(url: str, *parts: str) -> Place:
    """Return the place that `url` names: ``s3://BUCKET[/PREFIX]`` or a folder, with `parts` below it.

    Raises PlaceError: the URL names none, or the library for it is not installed.
    """
    if url.startswith("s3://"):
        from runtime.s3 import S3Place  # boto3 takes half a second

        return S3Place("/".join([url.rstrip("/"), *parts]))
    if "://" in url:
        raise PlaceError(f"{url} is not a place for checkpoints; use s3://BUCKET/PREFIX or a folder")
    return FolderPlace(Path(url, *parts))


class FolderPlace:
    """A folder: of this machine, or of a volume that outlives the pod."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder

    def names(self) -> list[str]:
        """Names of all files, sorted; none where the folder is not there yet."""
        try:
            return sorted(each.name for each in os.scandir(self._folder) if each.is_file())
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """Return the file's bytes."""
        return (self._folder / name).read_bytes()

    def put(self, name: str, source: Path, progress: Progress = lambda _: None) -> None:
        """Copy it to a name that begins with a dot, flush it, rename it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy_whole(source, self._folder / name, progress)

    def fetch(self, name: str, target: Path, progress: Progress = lambda _: None) -> None:
        """Copy it from there, in the same way."""
        copy_whole(self._folder / name, target, progress)

    def remove(self, name: str) -> None:
        """Unlink it."""
        (self._folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove copies that were not finished."""
        for name in self.names():
            if name.startswith(".tmp-"):
                self.remove(name)


def copy_whole(source: Path, target: Path, progress: Progress) -> None:
    """Copy a file so that `target` is the whole of it or what it was before. Raises OSError."""
    temporary = target.with_name(f".tmp-{target.name}")
    try:
        with source.open("rb") as reading, temporary.open("wb") as writing:
            while chunk := reading.read(CHUNK_BYTES):
                writing.write(chunk)
                progress(len(chunk))
            writing.flush()
            os.fsync(writing.fileno())
        with contextlib.suppress(OSError):  # a file system may not take it
            shutil.copymode(source, temporary)
        temporary.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
