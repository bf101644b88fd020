"""Files to and from a volume with their bytes counted: what the verb and the app do alike.

A transfer that was cut goes on where it ended when it is asked for again, so neither of the two keeps a state.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from l2rtui.backends.storage import VolumeFiles
from l2rtui.domain.quantity import format_bytes
from l2rtui.services.progress import Counter, Say


async def download(files: VolumeFiles, path: str, target: Path, say: Say) -> str:
    """Copy a file, or all under a folder, to this machine; a sentence that says what is here now."""
    total = sum(one.size for one in await files.sizes(path))
    found = await files.get(path, target, Counter(say, total).add)
    return f"{target} has {_files(found)}, {format_bytes(total)}"


async def upload(files: VolumeFiles, source: Path, path: str, say: Say) -> str:
    """Copy a file, or all under a folder, to a volume; a sentence that says what is there now."""
    total = await asyncio.to_thread(_size, source)
    found = await files.put(source, path, Counter(say, total).add)
    return f"{path or '/'} has {_files(found)}, {format_bytes(total)}"


def _size(source: Path) -> int:
    """Bytes of a file, or of all under a folder; 0 where there is none, which the copy says better."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"
