"""Two volumes of the demo and their files, in memory: the volume screens can be tried without a cluster."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from l2rtui.domain.quantity import parse_quantity
from l2rtui.domain.volume import FileEntry, Volume
from l2rtui.errors import NotFoundError, RefusedError, UsageError

_DAY_SECONDS = 86_400.0


class DemoVolumes:
    """The volumes; changes last until the program ends."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        began = now()
        self._volumes = {
            volume.name: volume
            for volume in (
                Volume("racing-data", 64 << 30, "Bound", ("RWX",), "efs", ("racing-sac-s0-learner-0",)),
                Volume("scratch", 1 << 30, "Bound", ("RWO",), "local-path"),
            )
        }
        self._contents: dict[str, dict[str, tuple[bytes, float]]] = {
            "racing-data": {
                "maps/thruxton.json": (b'{"track": "thruxton"}\n', began - 9 * _DAY_SECONDS),
                "checkpoints/ckpt-0000000120.json": (b'{"update": 120}\n', began - 300.0),
                "checkpoints/ckpt-0000000120.safetensors": (bytes(96 * 1024), began - 300.0),
                "README": (b"tracks and snapshots\n", began - 30 * _DAY_SECONDS),
            },
            "scratch": {},
        }

    async def list(self) -> tuple[Volume, ...]:
        """List every volume."""
        return tuple(self._volumes.values())

    async def create(
        self, name: str, size: str, *, storage_class: str = "", modes: tuple[str, ...] = ("RWO",)
    ) -> Volume:
        """Create an empty volume."""
        if name in self._volumes:
            raise RefusedError(f"A volume named {name} exists.", "Choose another name.")
        self._volumes[name] = Volume(name, int(parse_quantity(size)), "Bound", modes, storage_class)
        self._contents[name] = {}
        return self._volumes[name]

    async def delete(self, name: str) -> None:
        """Delete a volume that no pod mounts."""
        if self._volume(name).mounted_by:
            raise RefusedError(f"{name} is mounted by {', '.join(self._volume(name).mounted_by)}.")
        del self._volumes[name], self._contents[name]

    @asynccontextmanager
    async def files(self, name: str, image: str = "") -> AsyncIterator[DemoFiles]:  # noqa: ARG002  (no pod is needed)
        """Open its files; meanwhile the volume shows a mounting pod, as on a cluster."""
        volume = self._volume(name)
        self._volumes[name] = replace(volume, mounted_by=(*volume.mounted_by, "files"))
        try:
            yield DemoFiles(name, self._contents[name], self._now)
        finally:
            self._volumes[name] = volume

    def _volume(self, name: str) -> Volume:
        if name not in self._volumes:
            raise NotFoundError(f"There is no volume {name}.", "See `l2rtui volume ls`.")
        return self._volumes[name]


class DemoFiles:
    """The files of one volume; a folder exists while a file is in it."""

    def __init__(self, name: str, contents: dict[str, tuple[bytes, float]], now: Callable[[], float]) -> None:
        self._name = name
        self._contents = contents
        self._now = now

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """List the direct children of a path, folders first."""
        children: dict[str, FileEntry] = {}
        for entry in await self.sizes(path):
            head, slash, _ = entry.path.partition("/")
            children.setdefault(head, FileEntry(head, "folder", 0, entry.changed) if slash else entry)
        return tuple(sorted(children.values(), key=lambda entry: (entry.kind != "folder", entry.path)))

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """List every file under a path."""
        # Paths are relative to the root of the volume, with or without a leading slash.
        inside = path.strip("/")
        entries = [
            FileEntry("" if name == inside else posixpath.relpath(name, inside or "."), "file", len(data), changed)
            for name, (data, changed) in sorted(self._contents.items())
            if not inside or name == inside or name.startswith(f"{inside}/")
        ]
        if inside and not entries:
            raise NotFoundError(f"There is no {inside} in {self._name}.")
        return tuple(entries)

    async def get(self, path: str, target: Path, progress: Callable[[int], None]) -> int:
        """Copy to this machine."""
        entries = await self.sizes(path)
        for entry in entries:
            name = posixpath.join(path.strip("/"), entry.path).rstrip("/")
            await asyncio.to_thread(_write, target, entry.path, name, self._contents[name][0])
            progress(entry.size)
        return len(entries)

    async def put(self, source: Path, path: str, progress: Callable[[int], None]) -> int:
        """Copy from this machine."""
        files = await asyncio.to_thread(_read, source)
        if not files:
            raise UsageError(f"There is no {source} to copy, or no file in it.")
        for name, data in files.items():
            self._contents[posixpath.join(path.strip("/"), name).rstrip("/")] = (data, self._now())
            progress(len(data))
        return len(files)


def _write(target: Path, path: str, name: str, data: bytes) -> None:
    """Write one file below the target folder, or as the target itself when it names a file."""
    into = target / (path or posixpath.basename(name)) if path or target.is_dir() else target
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_bytes(data)


def _read(source: Path) -> dict[str, bytes]:
    """Read every file below the source, by relative name; the source itself has an empty one."""
    if source.is_file():
        return {"": source.read_bytes()}
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return {path.relative_to(source).as_posix(): path.read_bytes() for path in files}
