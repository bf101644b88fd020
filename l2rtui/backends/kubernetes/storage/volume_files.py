"""Files of a volume, listed and copied through a pod that mounts it.

No login to the storage is needed. Small files are transferred together as a tar stream; large ones are sent one by
one and resumed after a broken connection. A file appears under its name when it is complete; the SHA-256 of large
files is compared. The pod has no permissions, is deleted at the end, and ends after some hours if l2rtui was
killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import os
import posixpath
import shutil
import tarfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from l2rtui.backends.common import file_copies
from l2rtui.backends.kubernetes import labels
from l2rtui.backends.kubernetes.api.client import Api
from l2rtui.backends.kubernetes.api.errors import ApiError
from l2rtui.backends.kubernetes.manifests.pod_parts import helper_pod
from l2rtui.backends.kubernetes.streams.channels import BLOCK_BYTES, CutError, pipe
from l2rtui.domain.quantity import counted
from l2rtui.domain.volume import FileEntry, Volume
from l2rtui.errors import BackendError, NotFoundError, UsageError
from runtime.base.processes import exponential_delay

# A batch is held in memory and repeated as a whole after a broken connection.
_BATCH_BYTES = 32 * 1024 * 1024
_BATCH_FILES = 200

Progress = Callable[[int], None]
"""Called with the number of bytes transferred since the last call."""
T = TypeVar("T")
START_SECONDS: Final = 120.0
_POLL_SECONDS = 0.3
_LIFE_SECONDS = 6 * 3600
_ROOT = "/volume"
_LARGE_BYTES = 4 * 1024 * 1024
_TRIES = 5
_SLACK_BYTES: Final = 64 * 1024 * 1024
_NAMES: Final = 5
_USER = 10001  # the user of the default images; fsGroup makes the volume writable for it


def batches(items: Sequence[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Divide items into batches that are transferred together."""
    batch: list[T] = []
    total = 0
    for item in items:
        if batch and (total + size(item) > _BATCH_BYTES or len(batch) >= _BATCH_FILES):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size(item)
    if batch:
        yield batch


def unpack(stream: io.BytesIO, targets: dict[str, Path]) -> list[str]:
    """Write the requested files from a tar stream, and no other members; return the names of missing files.

    Raises:
        BackendError: The stream is not a tar archive.
    """
    missing = dict(targets)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                # tar sends the content of a hard-linked file once, and its other names as links.
                first = targets.get(member.linkname) if member.islnk() else None
                target = targets.get(member.name)
                if target is None or not (member.isreg() or (first is not None and first.is_file())):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                # Renamed when complete, so that readers never see a partial file.
                part = target.with_name(f".part-{target.name}")
                if first is not None:
                    shutil.copyfile(first, part)
                elif (data := archive.extractfile(member)) is not None:
                    part.write_bytes(data.read())
                stamp(part, member.mtime)
                part.replace(target)
                missing.pop(member.name, None)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise BackendError(f"The volume's pod did not send an archive: {error}.", "Copy it again.") from error
    return list(missing)


def stamp(path: Path, changed: float) -> None:
    """Set a file's modification time to its original's, which the next copy compares."""
    os.utime(path, (changed, changed))


def pack(batch: Sequence[tuple[str, Path, int]]) -> bytes:
    """Pack files, given by name, path and size, into one tar stream.

    Raises:
        BackendError: A file is gone, or became shorter while it was read.
    """
    stream = io.BytesIO()
    # Dereferenced: a symbolic link would arrive dangling, and a second hard link of a file without content.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, dereference=True) as archive:
        for name, path, _ in batch:
            try:
                archive.add(path, name, recursive=False)
            except OSError as error:
                raise BackendError(f"{path} changed while it was copied: {error}.", "Copy it again.") from error
    return stream.getvalue()


async def read(source: Path, start: int, progress: Progress) -> AsyncIterator[bytes]:
    """Yield a file from byte ``start`` on, block by block."""
    with source.open("rb") as file:
        file.seek(start)
        while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
            yield block
            progress(len(block))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class PodFiles:
    """Files under the root of one volume; paths are relative to it."""

    def __init__(self, api: Api, namespace: str, pod: str, volume: str) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._volume = volume

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """Return the entries under a path, folders first, or the file itself; NotFoundError if the path does not
        exist.
        """
        entries = await self._find(_inside(path), 1)
        return tuple(sorted(entries, key=lambda entry: (entry.kind != "folder", entry.path)))

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """Return all entries except folders under a path, at any depth; `get` copies entries of kind ``file``."""
        return tuple(entry for entry in await self._find(_inside(path), 0) if entry.kind != "folder")

    async def get(self, path: str, target: Path, progress: Progress) -> int:
        """Copy a file, or all files under a folder, to ``target``; skip copied files; return the number of files.

        Raises:
            NotFoundError: The path does not exist. BackendError: It could not be read or written.
        """
        inside = _inside(path)
        entries = [entry for entry in await self.sizes(path) if entry.kind == "file"]
        is_file = len(entries) == 1 and entries[0].path == ""
        if is_file and await asyncio.to_thread(target.is_dir):
            target /= posixpath.basename(inside)
        small: list[tuple[FileEntry, Path]] = []
        for entry in entries:
            local = target if is_file else file_copies.below(target, entry.path)
            if await asyncio.to_thread(file_copies.is_there, local, entry):
                progress(entry.size)
            elif entry.size >= _LARGE_BYTES or is_file:
                remote = posixpath.join(inside, entry.path) if entry.path else inside
                await _retry(partial(self._get_large, remote, entry, local, progress))
            else:
                small.append((entry, local))
        for batch in batches(small, lambda item: item[0].size):
            await _retry(partial(self._get_small, inside, batch, progress))
        return len(entries)

    async def put(self, source: Path, path: str, progress: Progress) -> int:
        """Copy a file, or all files under a folder, to a path; skip copied files; return the number of files.

        Raises:
            UsageError: There is nothing to copy. BackendError: It could not be read or written.
        """
        inside = _inside(path)
        if not (files := await asyncio.to_thread(file_copies.local_files, source)):
            raise UsageError(f"There is no {source} to copy, or no file in it.")
        if not files[0][0] and (path.endswith("/") or inside == _ROOT):
            inside = posixpath.join(inside, source.name)
        remote_sizes = {entry.path: entry.size for entry in await self._find_if_exists(inside)}
        small: list[tuple[str, Path, int]] = []
        for name, local, size in files:
            remote = posixpath.join(inside, name) if name else inside
            is_same_size = remote_sizes.get(name) == size
            if is_same_size and await self._digest(remote) == await asyncio.to_thread(digest, local):
                progress(size)
            elif size >= _LARGE_BYTES or not name:
                await _retry(partial(self._put_large, remote, local, size, progress))
            else:
                small.append((name, local, size))
        for batch in batches(small, lambda item: item[2]):
            await _retry(partial(self._put_small, inside, batch, progress))
        if small:
            await self._compare(inside, small)
        return len(files)

    async def _compare(self, folder: str, sent: Sequence[tuple[str, Path, int]]) -> None:
        """Raise BackendError if the volume does not have the files that were sent."""
        arrived = {entry.path: entry.size for entry in await self._find_if_exists(folder) if entry.kind == "file"}
        wrong = [name for name, _, size in sent if arrived.get(name) != size]
        if wrong:
            raise BackendError(
                f"{counted(len(wrong), 'file')} did not arrive as here: {_some(wrong)}.", "Copy it again."
            )

    # --- transfer ---
    async def _get_large(self, path: str, entry: FileEntry, target: Path, progress: Progress) -> None:
        """Copy one file, resuming the last try; compare digests, then rename."""
        part = target.with_name(f".part-{target.name}")
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        have = part.stat().st_size if part.exists() else 0
        # Longer than its source: the part belongs to an older version of the file.
        if have > entry.size:
            part.unlink()
            have = 0
        with part.open("ab") as file:
            limit = 2 * entry.size + _SLACK_BYTES  # it may grow meanwhile, and must not fill this disk

            async def on_output(block: bytes) -> None:
                if file.tell() + len(block) > limit:
                    raise BackendError(f"{path} sends far more than its {entry.size} bytes.", "Look at the volume.")
                await asyncio.to_thread(file.write, block)
                progress(len(block))

            await self._run(["tail", "-c", f"+{have + 1}", "--", path], on_output=on_output)
        if await asyncio.to_thread(digest, part) != await self._digest(path):
            part.unlink()
            raise BackendError(f"{path.removeprefix(_ROOT + '/')} changed while it was copied.", "Copy it again.")
        part.replace(target)

    async def _get_small(self, folder: str, batch: Sequence[tuple[FileEntry, Path]], progress: Progress) -> None:
        stream = io.BytesIO()
        # Files may grow meanwhile, and names take blocks of 512 bytes; a longer response would only fill the
        # memory.
        limit = 2 * sum(entry.size + 8 * len(entry.path) + 4096 for entry, _ in batch) + _SLACK_BYTES

        async def on_output(block: bytes) -> None:
            if stream.tell() + len(block) > limit:
                raise BackendError("The volume's pod sends far more than it has listed.", "Look at the volume.")
            stream.write(block)

        names = [f"./{entry.path}" for entry, _ in batch]
        await self._run(["tar", "-C", folder, "-cf", "-", "--", *names], on_output=on_output)
        stream.seek(0)
        targets = {f"./{entry.path}": to for entry, to in batch}
        if missing := await asyncio.to_thread(unpack, stream, targets):
            names = [name.removeprefix("./") for name in missing]
            raise BackendError(
                f"{counted(len(names), 'file')} did not come from the volume: {_some(names)}.", "Copy it again."
            )
        progress(sum(entry.size for entry, _ in batch))

    # --- the other way ---
    async def _put_large(self, path: str, source: Path, size: int, progress: Progress) -> None:
        part = posixpath.join(posixpath.dirname(path), f".part-{posixpath.basename(path)}")
        await self._run(["mkdir", "-p", "--", posixpath.dirname(path)])
        have = next((entry.size for entry in await self._find_if_exists(part)), 0)
        if have > size:
            await self._run(["rm", "-f", "--", part])
            have = 0
        # `head -c` ends after the last byte: exec on servers before 1.29 cannot close stdin.
        script = f'head -c {size - have} >> "$1"'
        await self._run(["sh", "-c", script, "sh", part], stdin=read(source, have, progress))
        if await self._digest(part) != await asyncio.to_thread(digest, source):
            await self._run(["rm", "-f", "--", part])
            raise BackendError(f"{source} changed while it was copied.", "Copy it again.")
        await self._run(["mv", "-f", "--", part, path])

    async def _put_small(self, folder: str, batch: Sequence[tuple[str, Path, int]], progress: Progress) -> None:
        data = await asyncio.to_thread(pack, batch)
        script = f'mkdir -p "$1" && head -c {len(data)} | tar -C "$1" --no-same-owner -xf -'

        async def blocks() -> AsyncIterator[bytes]:
            for start in range(0, len(data), BLOCK_BYTES):
                yield data[start : start + BLOCK_BYTES]

        await self._run(["sh", "-c", script, "sh", folder], stdin=blocks())
        progress(sum(size for _, _, size in batch))

    # --- commands in the pod ---
    async def _find(self, path: str, depth: int) -> list[FileEntry]:
        # NUL between entries: names may contain newlines.
        levels = ["-maxdepth", str(depth)] if depth else []
        try:
            output = await self._run(["find", path, *levels, "-printf", r"%y\t%s\t%T@\t%P\0"])
        except CutError:
            raise
        except BackendError as error:
            if "No such file" in error.message:
                relative = path.removeprefix(_ROOT).lstrip("/")
                raise NotFoundError(f"There is no {relative or '/'} in {self._volume}.") from None
            raise
        return [entry for entry in map(entry_of, output.split(b"\0")[:-1]) if entry.path or entry.kind != "folder"]

    async def _find_if_exists(self, path: str) -> list[FileEntry]:
        try:
            return await self._find(path, 0)
        except NotFoundError:
            return []

    async def _digest(self, path: str) -> str:
        return (await self._run(["sha256sum", "--", path])).decode().lstrip("\\").split(maxsplit=1)[0]

    async def _run(
        self,
        argv: Sequence[str],
        *,
        on_output: Callable[[bytes], Awaitable[None]] | None = None,
        stdin: AsyncIterator[bytes] | None = None,
    ) -> bytes:
        return await pipe(self._api, self._namespace, self._pod, argv, on_output=on_output, stdin=stdin)


@asynccontextmanager
async def opened(api: Api, volume: Volume, image: str, owner: str, *, node: str = "") -> AsyncGenerator[PodFiles]:
    """Start the pod, wait until it is running, and finally delete it.

    Args:
        node: Required node, because a pod there has mounted a volume that only one node can mount.

    Raises:
        BackendError: It does not start; the message names the reason.
    """
    name, namespace = f"l2rtui-files-{uuid.uuid4().hex[:8]}", api.namespace
    try:
        await api.create(_volume_pod(name, namespace, volume.name, image, owner, node))
        await _running(api, namespace, name, volume.name)
        yield PodFiles(api, namespace, name, volume.name)
    finally:
        with suppress(ApiError):
            await asyncio.shield(asyncio.ensure_future(api.delete("Pod", namespace, name, grace_seconds=0)))


async def _running(api: Api, namespace: str, name: str, volume: str) -> None:
    until = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        status = (await api.read("Pod", namespace, name)).get("status") or {}
        if status.get("phase") == "Running":
            return
        reason = _reason(status)
        # A pull error does not resolve within the deadline, so it is reported immediately.
        is_over = status.get("phase") in ("Failed", "Succeeded")
        if is_over or asyncio.get_running_loop().time() > until or "ErrImage" in reason or "ImagePull" in reason:
            raise BackendError(
                f"The pod that opens {volume} does not start: {reason or status.get('phase', 'no reason')}.",
                "Name an image that the cluster can pull: --image.",
            )
        await asyncio.sleep(_POLL_SECONDS)


def _reason(status: dict[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "ContainerCreating"):
            return f"{waiting['reason']} {waiting.get('message', '')}".strip()
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return ""


def _volume_pod(name: str, namespace: str, claim: str, image: str, owner: str, node: str) -> dict[str, Any]:
    container = {
        "name": "files",
        "image": image,
        "command": ["sleep", str(_LIFE_SECONDS)],
        # NVIDIA's runtime gives CUDA images every GPU by default.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
        "volumeMounts": [{"name": "volume", "mountPath": _ROOT}],
    }
    pod = helper_pod(name, namespace, "files", container, user=_USER, deadline_seconds=_LIFE_SECONDS)
    pod["metadata"]["labels"][labels.OWNER] = labels.label_value(owner)
    pod["spec"] |= {
        "enableServiceLinks": False,
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
        # ``sleep`` as process 1 ignores SIGTERM; there is nothing to save.
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        pod["spec"]["nodeSelector"] = {labels.HOSTNAME: node}
    return pod


def entry_of(line: bytes) -> FileEntry:
    """Parse an entry of the listing. Raises BackendError for text that `find` does not print."""
    try:
        kind, size, changed, name = line.decode("utf-8", "surrogateescape").split("\t", 3)
        entry_kind = {"d": "folder", "f": "file", "l": "link"}.get(kind, "other")
        entry = FileEntry(name, entry_kind, int(size), float(changed))
    except ValueError as error:
        raise BackendError(
            "The file list of the volume's pod cannot be read.", "Name another image: --image."
        ) from error
    if entry.size < 0 or not math.isfinite(entry.changed):
        raise BackendError("The file list of the volume's pod cannot be read.", "Name another image: --image.")
    return entry


def _some(names: Sequence[str]) -> str:
    """Return the first names of many."""
    return ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")


# --- pieces ---------------------------------------------------------------------------------------------------
def _inside(path: str) -> str:
    """Return the path in the pod of a path in the volume; UsageError if it leads out of the volume."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise UsageError(f"{path!r} leads out of the volume.", "Write it without `..`.")
    return posixpath.join(_ROOT, *parts)


async def _retry(act: Callable[[], Awaitable[None]]) -> None:
    """Run a transfer; after a broken connection repeat it, resuming where it ended."""
    for number in range(_TRIES):
        try:
            return await act()
        except CutError:
            if number == _TRIES - 1:
                raise
            await asyncio.sleep(exponential_delay(number + 1, 0.5, 30.0))
    return None
