"""Unpacking of untrusted archives: nothing outside the folder is written, and all of it arrives or nothing.

Only files and folders are unpacked. A link, a device or a path that leads outside refuses the archive.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from runtime.base.errors import FailedError, InterruptedWorkError
from runtime.base.signals import Stop

_TAR: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_DAMAGE: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(EOFError, UnicodeDecodeError),
)
_COPY_BYTES: Final = 1024 * 1024
Member = tuple[str, IO[bytes] | None]
"""A name and its content, or None for a folder."""


def is_archive(name: str) -> bool:
    """Return True if a file of this name is unpacked."""
    return name.lower().endswith((*_TAR, ".zip"))


def unpack(archive: Path, folder: Path, name: str, stop: Stop) -> list[str]:
    """Unpack `archive`, which was fetched as `name`, and return the names that are in `folder` now.

    Raises FailedError with a sentence, and leaves `folder` as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the final renames stay within one file system.
    staging = folder / f".unpacking-{name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        for text, content in _zip(archive) if name.lower().endswith(".zip") else _tar(archive):
            if stop.is_set():
                raise InterruptedWorkError(f"{name}: ended by {stop.reason} while it was unpacked")
            _put(staging, text, content)
        made = sorted(path.name for path in staging.iterdir())
        for name_in_archive in made:
            _replace(staging / name_in_archive, folder / name_in_archive)
    except _DAMAGE as error:
        raise FailedError(f"{name} cannot be unpacked: it is damaged or of another kind ({error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made


def _tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r:*") as tar:
        for member in tar:
            if member.isdir():
                yield member.name, None
            elif member.isreg():
                yield member.name, tar.extractfile(member)
            else:
                kind = "a link" if member.issym() or member.islnk() else "a device"
                raise FailedError(f"the archive holds {kind}, {member.name!r}; nothing of it was unpacked")
        # The checksum of a compressed file is at its end, behind the last member: read on, so that it is verified.
        while tar.fileobj.read(_COPY_BYTES):
            pass


def _zip(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                raise FailedError(f"the archive holds a link, {member.filename!r}; nothing of it was unpacked")
            if member.is_dir():
                yield member.filename, None
            else:
                with zipped.open(member) as content:
                    yield member.filename, content


def _put(folder: Path, text: str, content: IO[bytes] | None) -> None:
    name = PurePosixPath(text)
    # Backslash and NUL too: other systems treat them as separators or ends of a name.
    if name.is_absolute() or ".." in name.parts or "\0" in text or "\\" in text:
        raise FailedError(f"the archive holds {text!r}, which leads out of the folder; nothing of it was unpacked")
    path = folder.joinpath(*name.parts)
    if path == folder:
        return
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(content, file, _COPY_BYTES)


def _replace(made: Path, target: Path) -> None:
    """Replace an older file or folder."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    made.replace(target)
