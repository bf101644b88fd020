"""Transfers of files to and from a volume with progress, for app and commands.

An interrupted transfer continues when it is started again, so no state is kept here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from l2rtui.backends.base import VolumeFiles
from l2rtui.domain.quantity import counted, format_bytes, format_rate
from l2rtui.domain.sanitize import sanitize

_NAMES = 5


async def download(files: VolumeFiles, path: str, target: Path, say: Say) -> str:
    """Copy a file, or all under a folder, to this machine; return a sentence about the result."""
    listed = await files.sizes(path)
    total = sum(item.size for item in listed if item.kind == "file")
    items = await files.get(path, target, Counter(say, total).add)
    left_out = [item.path for item in listed if item.kind != "file"]
    return f"{target} has {counted(items, 'file')}, {format_bytes(total)}{_left_out(left_out)}"


async def upload(files: VolumeFiles, source: Path, path: str, say: Say) -> str:
    """Copy a file, or all under a folder, to a volume; return a sentence about the result."""
    # A folder may contain a million files; walking it must not block the screen.
    total, left_out = await asyncio.to_thread(_look, source)
    items = await files.put(source, path, Counter(say, total).add)
    return f"{path or '/'} has {counted(items, 'file')}, {format_bytes(total)}{_left_out(left_out)}"


def _look(source: Path) -> tuple[int, list[str]]:
    """Return the bytes of a file, or of all files under a folder, and the names of entries that are not copied.

    Links to files are copied as files; links to folders and broken links, sockets and devices are not. 0 bytes if
    the source is missing, which the copy reports better.
    """
    if source.is_file():
        return source.stat().st_size, []
    total, left_out = 0, []
    for path in source.rglob("*"):
        if path.is_file():
            total += path.stat().st_size
        elif path.is_symlink() or not path.is_dir():
            left_out.append(path.relative_to(source).as_posix())
    return total, sorted(left_out)


def _left_out(names: Sequence[str]) -> str:
    """Return the end of a sentence that names the entries not copied; empty if all were."""
    if not names:
        return ""
    some = ", ".join(sanitize(name) for name in names[:_NAMES])
    return f"; not copied, since they are links or no files: {some}{', …' * (len(names) > _NAMES)}"


_SECONDS = 1.0


class Say(Protocol):
    """Callback for a sentence, with a flag for steps that need a separate line."""

    def __call__(self, text: str, *, is_step: bool) -> None:
        """Report the sentence."""


class Counter:
    """Adds up bytes and reports the progress once a second.

    Args:
        say: Such as ``Talk.step``.
        total: Total bytes; 0 if unknown.
    """

    def __init__(self, say: Say, total: int) -> None:
        self._say = say
        self._total = total
        self._began = self._reported_at = time.monotonic()
        self._tenth = 0
        self.done = 0

    def add(self, count: int) -> None:
        """Count transferred bytes; from any thread."""
        self.done += count
        now = time.monotonic()
        if now - self._reported_at < _SECONDS:
            return
        self._reported_at = now
        # Without a terminal each tenth is one line: a transfer of hours must not flood a log.
        tenth = 10 * self.done // self._total if self._total else 0
        self._say(self.sentence(now), is_step=tenth > self._tenth)
        self._tenth = tenth

    def sentence(self, now: float) -> str:
        """Return the progress, such as ``12.0Mi of 1.00Gi, 8.1 MiB/s``."""
        rate = self.done / max(now - self._began, 1e-6)
        of = f" of {format_bytes(self._total)}" if self._total else ""
        return f"{format_bytes(self.done)}{of}, {format_rate(int(rate))}"
