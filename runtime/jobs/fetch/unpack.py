"""Unpacks untrusted archives: writes nothing outside the folder, and unpacks everything or nothing.

Only files and folders are unpacked. An archive with a link, a device, a path outside the folder, or more contents
than the limits allow is rejected. Existing folders are merged: files with the same names are replaced, and others
stay.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final, Self

from runtime.base.errors import FailedError, InterruptedWorkError
from runtime.base.signals import Stop

_TAR: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_DAMAGE: Final = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, struct.error),
    # Errors from a header's claims: an unknown version or method, a password, a position outside the file, and for
    # lzma a dictionary of gigabytes (MemoryError, before anything was allocated).
    *(MemoryError, EOFError, OSError, ValueError, LookupError, OverflowError, NotImplementedError, RuntimeError),
)
_COPY_BYTES: Final = 1024 * 1024
MAX_RATIO: Final = 200
"""Unpacked bytes per byte of the archive. Texts and tables reach 10 to 50, malicious archives a thousand."""
MAX_MEMBERS: Final = 5_000_000
"""Maximum number of files and folders; ImageNet has 1.4 million."""
_SMALL_BYTES: Final = 64 * 1024 * 1024
"""Unpacked bytes up to which the ratio does not matter."""
_HEADERS: Final = frozenset(
    {
        *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
        *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    }
)
_MAX_HEADER_BYTES: Final = 1024 * 1024
Member = tuple[str, IO[bytes] | None]
"""Name and content, or None for a folder."""


class _BoundedHeader(tarfile.TarInfo):
    """Header of a tar archive, with a size limit on long names and extended headers, which tarfile reads into
    memory.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        """Return the header in a block. Raises FailedError."""
        header = super().frombuf(buf, encoding or "utf-8", errors)
        if header.type in _HEADERS and header.size > _MAX_HEADER_BYTES:
            raise FailedError(f"the archive has a header of {header.size} bytes; nothing was unpacked")
        return header


def is_archive(name: str) -> bool:
    """Return True if a file with this name would be unpacked."""
    return name.lower().endswith((*_TAR, ".zip"))


class _Budget:
    """Number of bytes and members that an archive may still unpack to."""

    def __init__(self, archive: Path, folder: Path, max_ratio: int) -> None:
        self._packed, self._ratio = archive.stat().st_size, max_ratio
        self._free = shutil.disk_usage(folder).free
        self._limit = max(_SMALL_BYTES, self._packed * max_ratio)
        self._bytes = self._members = 0

    def add_member(self) -> None:
        """Count a file or folder. Raises FailedError."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise FailedError(f"the archive has more than {MAX_MEMBERS} files and folders; nothing was unpacked")

    def add(self, size: int) -> None:
        """Count bytes before they are written. Raises FailedError."""
        self._bytes += size
        if self._bytes > self._limit:
            raise FailedError(
                f"the archive's {self._packed} bytes unpack to more than {self._limit}, as made-up archives do; "
                f"nothing was unpacked (if it is right: --max-ratio above {self._ratio})"
            )
        if self._bytes > self._free:
            raise FailedError(
                f"the archive needs more than the {self._free} bytes that are free; nothing was unpacked"
            )


def unpack(archive: Path, folder: Path, name: str, stop: Stop, max_ratio: int = MAX_RATIO) -> list[str]:
    """Unpack `archive`, which was fetched as `name`, and return the names that were added to `folder`.

    Raises FailedError with a sentence, and then leaves `folder` unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Next to the target, so that the final renames stay within one file system.
    staging = folder / f".unpacking-{name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        budget = _Budget(archive, folder, max_ratio)
        for text, content in _members(archive, name):
            if stop.is_set():
                raise InterruptedWorkError(f"{name}: ended by {stop.reason} while it was unpacked")
            budget.add_member()
            _put(staging, text, content, budget)
        made = sorted(path.name for path in staging.iterdir())
        # Check all conflicts before the first move: a rejected archive leaves the folder unchanged.
        for name_in_archive in made:
            _check_merge(staging / name_in_archive, folder / name_in_archive)
        for name_in_archive in made:
            _merge(staging / name_in_archive, folder / name_in_archive)
    except _DamageError as error:
        raise FailedError(f"{name} cannot be unpacked: it is damaged or of another kind ({error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made


class _DamageError(Exception):
    """The archive cannot be read."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Separate errors of the archive's reader from errors of writing: a full disk is not a damaged archive."""
    try:
        yield
    except _DAMAGE as error:
        raise _DamageError(str(error) or type(error).__name__) from error


def _members(archive: Path, name: str) -> Iterator[Member]:
    members = _zip(archive) if name.lower().endswith(".zip") else _tar(archive)
    while True:
        with _reading():
            member = next(members, None)
        if member is None:
            return
        yield member


def _tar(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r:*", tarinfo=_BoundedHeader) as tar:
        for member in tar:
            if member.isdir():
                yield member.name, None
            elif member.isreg():
                yield member.name, tar.extractfile(member)
            else:
                kind = "a link" if member.issym() or member.islnk() else "a device"
                raise FailedError(f"the archive holds {kind}, {member.name!r}; nothing of it was unpacked")
        # The checksum of a compressed file is after the last member: read to the end, so that it is verified.
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


def _put(folder: Path, text: str, content: IO[bytes] | None, budget: _Budget) -> None:
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
        while True:
            with _reading():
                block = content.read(_COPY_BYTES)
            if not block:
                return
            budget.add(len(block))  # counted as it arrives: a header may claim any size
            file.write(block)


def _check_merge(made: Path, target: Path) -> None:
    """Raise FailedError if a folder of the archive would replace something else, or a file a folder."""
    is_folder = target.is_dir() and not target.is_symlink()
    if made.is_dir() and is_folder:
        for child in made.iterdir():
            _check_merge(child, target / child.name)
    elif (made.is_dir() or is_folder) and os.path.lexists(target):
        kinds = ("a folder", "no folder") if made.is_dir() else ("a file", "a folder")
        raise FailedError(
            f"{target.name!r} is {kinds[0]} in the archive, and {target} is {kinds[1]}; nothing was unpacked "
            f"(move it away, or unpack to another folder)"
        )


def _merge(made: Path, target: Path) -> None:
    """Move a file or folder to its place; files with the same names are replaced, other files stay."""
    if made.is_dir() and target.is_dir():
        for child in made.iterdir():
            _merge(child, target / child.name)
    else:
        made.replace(target)
