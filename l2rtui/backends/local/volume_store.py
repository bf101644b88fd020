"""Volumes of this machine: folders that outlive the runs that mount them, and the files in them.

The only mount that this backend supports is a volume that a spec mounts at /l2r: it becomes L2R_DIR. A volume
claim is a folder of its name in the state folder, and a hostPath is the folder itself. So a run of several steps
finds files of its earlier runs, as on a cluster. Other mounts would need containers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from l2rtui.backends.common.file_copies import below, local_files
from l2rtui.backends.local.paths import StateFolder
from l2rtui.backends.local.run_store import RunStore
from l2rtui.backends.local.supervision import client
from l2rtui.domain.containers import Mount
from l2rtui.domain.volume import FileEntry, Volume
from l2rtui.domain.workload import RunSpec, SetSpec, name_problem
from l2rtui.errors import BackendError, NotFoundError, RefusedError, UsageError

_CLASS = "folder"
_ACCESS = ("RWX",)
"""Any number of processes of one machine can use a folder."""
_BLOCK = 1 << 20

Progress = Callable[[int], None]


class LocalVolumes:
    """The volumes in the state folder; see ``backends.base.VolumeStore``. A volume's size is the size of its
    files.
    """

    def __init__(self, root: StateFolder, store: RunStore) -> None:
        self._root = root
        self._store = store

    async def list(self) -> tuple[Volume, ...]:
        """List every volume by name, with the pods of the runs that mount it."""
        return await asyncio.to_thread(self._list)

    async def create(
        self,
        name: str,
        size: str,  # noqa: ARG002  (a folder has no size of its own)
        *,
        storage_class: str = "",
        modes: tuple[str, ...] = ("RWO",),  # noqa: ARG002  (every process may mount it)
    ) -> Volume:
        """Create an empty folder.

        Raises:
            UsageError: The name is invalid, or a storage class was named. RefusedError: The volume exists.
        """
        if problem := name_problem(name, 253):
            raise UsageError(f"{problem}.")
        if storage_class:
            raise UsageError("A volume of this machine is a folder: it has no storage class.")
        async with client.lock_state(self._root):
            try:
                self._folder(name).mkdir(mode=0o700, parents=True)
            except FileExistsError:
                raise RefusedError(f"There is a volume {name}.", "See `l2rtui volume ls`.") from None
            except OSError as error:
                raise client.unwritable_error(self._root, error) from error
        return Volume(name, 0, "Bound", _ACCESS, _CLASS)

    async def delete(self, name: str) -> None:
        """Delete a volume and its files.

        Raises:
            NotFoundError: The volume does not exist. RefusedError: A run mounts it. BackendError: A file cannot be
                removed.
        """
        # Under the lock: a launch that mounts it must not come between the check and the removal.
        async with client.lock_state(self._root):
            volume = next((volume for volume in self._list() if volume.name == name), None)
            if volume is None:
                raise _missing(name)
            if volume.mounted_by:
                users = ", ".join(volume.mounted_by)
                raise RefusedError(f"{name} is mounted by {users}.", "Destroy what uses it first.")
            try:
                await client.finish_in_thread(shutil.rmtree, self._folder(name))
            except OSError as error:
                raise BackendError(f"{name} cannot be removed: {error.strerror or error}.") from error

    @asynccontextmanager
    async def files(self, name: str, image: str = "") -> AsyncGenerator[FolderFiles]:  # noqa: ARG002  (no pod)
        """Open the files of a volume. Raises NotFoundError if it does not exist."""
        if name_problem(name, 253) or not await asyncio.to_thread(self._folder(name).is_dir):
            raise _missing(name)
        yield FolderFiles(self._folder(name), name)

    def _folder(self, name: str) -> Path:
        return self._root.volumes / name

    def _list(self) -> tuple[Volume, ...]:
        try:
            folders = sorted(path for path in self._root.volumes.iterdir() if path.is_dir())
        except OSError:  # no run has mounted a volume
            return ()
        users = _users(self._root, self._store)
        return tuple(
            Volume(
                folder.name,
                sum(entry.size for entry in _walk(folder, folder) if entry.kind == "file"),
                "Bound",
                _ACCESS,
                _CLASS,
                tuple(users.get(folder.name, ())),
            )
            for folder in folders
        )


class FolderFiles:
    """Files under the folder of one volume; see ``backends.base.VolumeFiles``."""

    def __init__(self, root: Path, volume: str) -> None:
        self._root = root
        self._volume = volume

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """List the entries directly under a path, folders first; for a file, the file itself."""
        return await asyncio.to_thread(self._entries, path)

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """List all entries except folders under a path, at any depth; `get` copies entries of kind ``file``."""
        return await asyncio.to_thread(self._sizes, path)

    async def get(self, path: str, target: Path, progress: Progress) -> int:
        """Copy a file, or all files under a folder, to a path outside; return their number. Equal files are
        skipped.
        """
        return await asyncio.to_thread(self._get, path, target, progress)

    async def put(self, source: Path, path: str, progress: Progress) -> int:
        """Copy a file, or all files under a folder, into the volume; return their number. Equal files are
        skipped.
        """
        return await asyncio.to_thread(self._put, source, path, progress)

    # --- these block, and run in threads -----------------------------------------------------------------------
    def _inside(self, path: str) -> Path:
        local = below(self._root, path.strip("/")) if path.strip("/") else self._root
        # A link in the volume may lead out of it: its target does not belong to the volume.
        if not local.resolve().is_relative_to(self._root.resolve()):
            raise NotFoundError(f"{path} leads out of {self._volume}.")
        return local

    def _existing(self, path: str) -> Path:
        local = self._inside(path)
        if not local.exists():
            raise NotFoundError(f"There is no {path or '/'} in {self._volume}.")
        return local

    def _entries(self, path: str) -> tuple[FileEntry, ...]:
        local = self._existing(path)
        if not local.is_dir():
            return (_entry(local, local),)
        try:
            listed = [_entry(child, local) for child in local.iterdir()]
        except OSError as error:
            raise BackendError(f"{local} cannot be read: {error.strerror or error}.") from error
        return tuple(sorted(listed, key=lambda entry: (entry.kind != "folder", entry.path)))

    def _sizes(self, path: str) -> tuple[FileEntry, ...]:
        local = self._existing(path)
        return tuple(_walk(local, local)) if local.is_dir() else (_entry(local, local),)

    def _get(self, path: str, target: Path, progress: Progress) -> int:
        local = self._existing(path)
        entries = [entry for entry in self._sizes(path) if entry.kind == "file"]
        if not local.is_dir():
            target = target / local.name if target.is_dir() else target
        for entry in entries:
            _copy(local / entry.path, below(target, entry.path) if entry.path else target, progress)
        return len(entries)

    def _put(self, source: Path, path: str, progress: Progress) -> int:
        if not (files := local_files(source)):
            raise UsageError(f"There is no {source} to copy, or no file in it.")
        target = self._inside(path)
        if not files[0][0] and (path.endswith("/") or target == self._root):
            target /= source.name
        for name, local, _ in files:
            _copy(local, target / name if name else target, progress)
        return len(files)


def _users(root: StateFolder, store: RunStore) -> dict[str, list[str]]:
    """Return the names of the pods that mount each volume; users in an unreadable run are unknown."""
    users: dict[str, list[str]] = {}
    for state in store.scan().runs:
        path = Path(state.record.volume) if state.record is not None and state.record.volume else None
        # A spec may mount a folder within a volume; then the enclosing volume counts.
        if state.record is not None and path is not None and path.is_relative_to(root.volumes):
            name = path.relative_to(root.volumes).parts[0]
            users.setdefault(name, []).extend(pod.plan.name for pod in state.record.pods)
    return users


def _walk(folder: Path, root: Path) -> Iterator[FileEntry]:
    """Yield all non-folders under a folder; links are not followed, files removed meanwhile are skipped."""
    for parent, folders, names in os.walk(folder):
        for name in sorted([*names, *folders]):
            try:
                entry = _entry(Path(parent, name), root)
            except OSError:
                continue
            if entry.kind != "folder":
                yield entry


def _entry(path: Path, root: Path) -> FileEntry:
    status = path.lstat()
    kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file" if path.is_file() else "other"
    name = "" if path == root else path.relative_to(root).as_posix()
    return FileEntry(name, kind, status.st_size, status.st_mtime)


def _copy(source: Path, target: Path, progress: Progress) -> None:
    """Copy one file with its time, block by block; readers of the target never see a partial file."""
    try:
        status = source.stat()
        # Exactly the same time, which `copystat` sets: files written within the same second are not the same.
        if target.is_file() and (status.st_size, status.st_mtime_ns) == _version(target):
            progress(status.st_size)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".part-{target.name}")
        with source.open("rb") as reader, part.open("wb") as writer:
            while block := reader.read(_BLOCK):
                writer.write(block)
                progress(len(block))
        shutil.copystat(source, part)
        part.replace(target)
    except OSError as error:
        raise BackendError(f"{source} cannot be copied to {target}: {error.strerror or error}.") from error


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"There is no volume {name} on this machine.", "See `l2rtui volume ls`.")


DATA_DIR = "/l2r"
"""Path of L2R_DIR in containers."""


def prepare(root: StateFolder, spec: RunSpec) -> str:
    """Create and return the folder for /l2r of a run; empty if the spec mounts none there.

    Raises:
        OSError: It cannot be created.
    """
    mount = next((mount for mount in map(_data_mount, spec.sets) if mount is not None), None)
    if mount is None:
        return ""
    folder = Path(mount.host_path) if mount.host_path else root.volumes / mount.claim
    # As kubelet does with a subPath: it is created if it does not exist.
    folder /= mount.sub_path
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(folder)


def not_mounted(spec: SetSpec) -> list[str]:
    """Return the paths of the mounts of a set that this backend ignores."""
    return [mount.path for mount in spec.pod.mounts if mount != _data_mount(spec)]


def _data_mount(spec: SetSpec) -> Mount | None:
    mounts = (mount for mount in spec.pod.mounts if mount.claim or mount.host_path)
    return next((mount for mount in mounts if mount.path.rstrip("/") == DATA_DIR), None)
