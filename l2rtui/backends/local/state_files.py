"""State files: written whole or not at all, read with suspicion. No event loop in here; all of it is quick."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from l2rtui.backends.local.records import FORMAT

T = TypeVar("T")
_SIZE_LIMIT = 64 << 20


class CorruptError(ValueError):
    """A state file holds something else than it should."""


def write_atomic(path: Path, value: object, *, sync: bool) -> None:
    """Replace a file by the JSON of a value: readers see the old one or the new one, and never a part.

    Args:
        sync: Survive a power cut too. Wishes must; what is observed is worth nothing after one.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, msgspec.json.encode(value))
        if sync:
            os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    temporary.replace(path)
    if sync:
        with open_folder(path.parent) as folder:
            os.fsync(folder)


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write every byte: a full disk or a signal may cut one write short."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder, for fsync."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read(path: Path, kind: type[T]) -> T:
    """Read a state file.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: it is not the JSON of such a value, or cannot be read.
    """
    try:
        if path.stat().st_size > _SIZE_LIMIT:
            raise CorruptError(f"more than {_SIZE_LIMIT >> 20} MiB")
        value = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError(str(error)) from error
    if (found := getattr(value, "format", FORMAT)) != FORMAT:
        raise CorruptError(f"it has format {found}, and this version reads {FORMAT}")
    return value


def set_aside(path: Path) -> Path:
    """Move an unreadable file out of the way, keeping it for whoever wants to know why; its new path."""
    aside = path.with_name(f"{path.name}.corrupt-{time.time():.0f}")
    path.rename(aside)
    return aside
