"""Transfers of files to and from a volume with progress, for app and commands.

A transfer that was cut continues when it is started again, so no state is kept here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from l2rtui.backends.base import VolumeFiles
from l2rtui.domain.quantity import counted, format_bytes
from l2rtui.services.transfer_progress import Counter, Say


async def download(files: VolumeFiles, path: str, target: Path, say: Say) -> str:
    """Copy a file, or all under a folder, to this machine; return a sentence about the result."""
    total = sum(item.size for item in await files.sizes(path))
    items = await files.get(path, target, Counter(say, total).add)
    return f"{target} has {counted(items, 'file')}, {format_bytes(total)}"


async def upload(files: VolumeFiles, source: Path, path: str, say: Say) -> str:
    """Copy a file, or all under a folder, to a volume; return a sentence about the result."""
    # A folder may hold a million files; walking it must not stop the screen.
    total = await asyncio.to_thread(_size, source)
    items = await files.put(source, path, Counter(say, total).add)
    return f"{path or '/'} has {counted(items, 'file')}, {format_bytes(total)}"


def _size(source: Path) -> int:
    """Return the bytes of a file, or of all under a folder; 0 if it is missing, which the copy reports better."""
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)
