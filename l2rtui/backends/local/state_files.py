"""State files: written atomically, and validated when they are read. Blocking, but fast, as they are small."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from l2rtui.backends.local.records import FORMAT
from runtime.base import atomic_files, bounded_json

T = TypeVar("T")
_SIZE_LIMIT = 64 << 20
_LINE_BYTES = 4096


class CorruptError(ValueError):
    """The content of a state file is invalid."""


class UnreadableError(CorruptError):
    """The system does not give the content at the moment: for lack of descriptors, memory or rights."""


class NewerError(CorruptError):
    """A later version of this program wrote the file: it is left unchanged."""


def write_atomic(path: Path, value: object, *, sync: bool) -> None:
    """Replace a file by the JSON of a value: readers see the old file or the new one, never a part.

    Args:
        sync: Survive a power failure too. Desired state must; observed state is worthless after one.
    """
    data = msgspec.json.encode(value)
    atomic_files.write_atomic(path, data, is_durable=sync, is_shared=True, mode=0o600)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write every byte: a full disk or a signal may cut one write short."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read(path: Path, kind: type[T]) -> T:
    """Read a state file.

    Raises:
        FileNotFoundError: The file does not exist.
        CorruptError: It is not the JSON of such a value, or cannot be read.
        UnreadableError: The system does not give its content.
        NewerError: A later version of this program wrote it.
    """
    try:
        # A damaged file must not use up the memory of a supervisor.
        if path.stat().st_size > _SIZE_LIMIT:
            raise CorruptError(f"more than {_SIZE_LIMIT >> 20} MiB")
        value = bounded_json.decode(path.read_bytes(), kind)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_no_file = error.errno in (errno.EISDIR, errno.ELOOP)
        raise (CorruptError if is_no_file else UnreadableError)(str(error)) from error
    except ValueError as error:
        raise CorruptError(str(error)) from error
    if (version := getattr(value, "format", FORMAT)) != FORMAT:
        kind_of_error = NewerError if version > FORMAT else CorruptError
        raise kind_of_error(f"it has format {version}, and this version reads {FORMAT}")
    return value


def read_valid(path: Path, kind: type[T]) -> T | None:
    """Read a state file; None if it is missing or unreadable."""
    try:
        return read(path, kind)
    except (FileNotFoundError, CorruptError):
        return None


def read_line(path: Path) -> str:
    """Return the first line of a text file; empty if it is missing or unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(_LINE_BYTES).decode("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def read_or_set_aside(path: Path, kind: type[T]) -> T | None:
    """Read a state file; None if it is missing, unreadable, or invalid and was set aside. Raises NewerError."""
    try:
        return read(path, kind)
    except (FileNotFoundError, UnreadableError):
        return None
    except NewerError:
        raise
    except CorruptError:
        with contextlib.suppress(OSError):
            set_aside(path)
        return None


def set_aside(path: Path) -> None:
    """Rename an unreadable file, so that it can be examined."""
    path.rename(path.with_name(f"{path.name}.corrupt-{time.time():.0f}"))
