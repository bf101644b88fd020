"""Local side of copies to and from a volume: which files exist, which are already copied, and safe target paths."""

from __future__ import annotations

from pathlib import Path

from l2rtui.domain.volume import FileEntry
from l2rtui.errors import BackendError


def below(folder: Path, name: str) -> Path:
    """Return the local path for an untrusted name in a volume. Raises BackendError if it leaves the folder."""
    parts = name.split("/")
    if ".." in parts or name.startswith("/"):
        raise BackendError(f"The volume names a file {name!r}, which would lead out of {folder}.")
    return folder.joinpath(*parts)


def is_there(local: Path, entry: FileEntry) -> bool:
    """Return whether a local copy has the same size and modification time."""
    try:
        status = local.stat()
    except OSError:
        return False
    # Within a second: tar stores whole seconds, `find` prints fractions.
    return status.st_size == entry.size and abs(status.st_mtime - entry.changed) < 1.0


def local_files(source: Path) -> list[tuple[str, Path, int]]:
    """Return name relative to the source, path and size of every file; the name is empty if the source is a
    file.
    """
    if source.is_file():
        return [("", source, source.stat().st_size)]
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    return [(path.relative_to(source).as_posix(), path, path.stat().st_size) for path in paths]
