"""The files of a volume, through a pod that mounts it: look, fetch, put.

Nobody needs a login to the storage. Small files travel together as a tar stream, large ones one by one from where
the last try ended; each appears under its name when it is whole, with its SHA-256 compared for large ones. The pod
has no rights, ends by itself after some hours even if we are killed, and goes when we are done.
"""

from __future__ import annotations

import asyncio
import io
import posixpath
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from l2rtui.backends.kubernetes import labels, transfer
from l2rtui.backends.kubernetes.client import Api
from l2rtui.backends.kubernetes.errors import ApiError
from l2rtui.backends.kubernetes.pipes import BLOCK_BYTES, CutError, piped
from l2rtui.backends.kubernetes.transfer import Progress
from l2rtui.backends.storage import FileEntry, Volume
from l2rtui.errors import BackendError, NotFoundError, UsageError

START_SECONDS: Final = 120.0
_POLL_SECONDS = 0.3
_LIFE_SECONDS = 6 * 3600
_ROOT = "/volume"
_LARGE_BYTES = 4 * 1024 * 1024
_TRIES = 5
_USER = 10001


class PodFiles:
    """Files under the root of one volume; paths are relative to it."""

    def __init__(self, api: Api, namespace: str, pod: str, volume: str) -> None:
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._volume = volume

    async def entries(self, path: str = "") -> tuple[FileEntry, ...]:
        """What lies directly under a path, folders first; a file gives itself.

        Raises:
            NotFoundError: there is no such path.
        """
        entries = await self._find(_inside(path), 1)
        return tuple(sorted(entries, key=lambda one: (one.kind != "folder", one.path)))

    async def sizes(self, path: str = "") -> tuple[FileEntry, ...]:
        """Every file under a path, at any depth."""
        return tuple(one for one in await self._find(_inside(path), 0) if one.kind == "file")

    async def get(self, path: str, target: Path, progress: Progress) -> int:
        """Copy a file, or all under a folder, to `target`; how many files. Files that are there already are left.

        Raises:
            NotFoundError: there is no such path. BackendError: it could not be read or written.
        """
        inside = _inside(path)
        entries = await self.sizes(path)
        is_file = len(entries) == 1 and entries[0].path == ""
        if is_file and await asyncio.to_thread(target.is_dir):
            target /= posixpath.basename(inside)
        small: list[tuple[FileEntry, Path]] = []
        for entry in entries:
            local = target if is_file else transfer.below(target, entry.path)
            if await asyncio.to_thread(transfer.is_there, local, entry):
                progress(entry.size)
            elif entry.size >= _LARGE_BYTES or is_file:
                remote = posixpath.join(inside, entry.path) if entry.path else inside
                await _again(partial(self._get_large, remote, entry, local, progress))
            else:
                small.append((entry, local))
        for batch in transfer.batches(small, lambda item: item[0].size):
            await _again(partial(self._get_small, inside, batch, progress))
        return len(entries)

    async def put(self, source: Path, path: str, progress: Progress) -> int:
        """Copy a file, or all under a folder, to a path; how many files. What is there already is left.

        Raises:
            UsageError: there is nothing to copy. BackendError: it could not be read or written.
        """
        inside = _inside(path)
        if not (files := await asyncio.to_thread(transfer.local_files, source)):
            raise UsageError(f"There is no {source} to copy, or no file in it.")
        if not files[0][0] and (path.endswith("/") or inside == _ROOT):
            inside = posixpath.join(inside, source.name)
        there = {one.path: one.size for one in await self._known(inside)}
        small: list[tuple[str, Path, int]] = []
        for name, local, size in files:
            remote = posixpath.join(inside, name) if name else inside
            if there.get(name) == size and await self._same(remote, local):
                progress(size)
            elif size >= _LARGE_BYTES or not name:
                await _again(partial(self._put_large, remote, local, size, progress))
            else:
                small.append((name, local, size))
        for batch in transfer.batches(small, lambda item: item[2]):
            await _again(partial(self._put_small, inside, batch, progress))
        return len(files)

    # --- one way ---
    async def _get_large(self, path: str, entry: FileEntry, target: Path, progress: Progress) -> None:
        """Go on where the last try ended, compare, rename."""
        part = target.with_name(f".part-{target.name}")
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        have = part.stat().st_size if part.exists() else 0
        if have > entry.size:
            part.unlink()
            have = 0
        with part.open("ab") as file:

            async def take(block: bytes) -> None:
                await asyncio.to_thread(file.write, block)
                progress(len(block))

            await self._run(["tail", "-c", f"+{have + 1}", "--", path], take=take)
        if await asyncio.to_thread(transfer.digest, part) != await self._digest(path):
            part.unlink()
            raise BackendError(f"{path.removeprefix(_ROOT + '/')} changed while it was copied.", "Copy it again.")
        part.replace(target)

    async def _get_small(self, folder: str, batch: Sequence[tuple[FileEntry, Path]], progress: Progress) -> None:
        stream = io.BytesIO()

        async def take(block: bytes) -> None:
            stream.write(block)

        names = [f"./{entry.path}" for entry, _ in batch]
        await self._run(["tar", "-C", folder, "-cf", "-", "--", *names], take=take)
        stream.seek(0)
        await asyncio.to_thread(transfer.unpack, stream, {f"./{entry.path}": to for entry, to in batch})
        progress(sum(entry.size for entry, _ in batch))

    # --- the other way ---
    async def _put_large(self, path: str, source: Path, size: int, progress: Progress) -> None:
        part = posixpath.join(posixpath.dirname(path), f".part-{posixpath.basename(path)}")
        await self._run(["mkdir", "-p", "--", posixpath.dirname(path)])
        have = next((one.size for one in await self._known(part)), 0)
        if have > size:
            await self._run(["rm", "-f", "--", part])
            have = 0
        script = f'head -c {size - have} >> "$1"'
        await self._run(["sh", "-c", script, "sh", part], give=transfer.read(source, have, progress))
        if await self._digest(part) != await asyncio.to_thread(transfer.digest, source):
            await self._run(["rm", "-f", "--", part])
            raise BackendError(f"{source} changed while it was copied.", "Copy it again.")
        await self._run(["mv", "-f", "--", part, path])

    async def _put_small(self, folder: str, batch: Sequence[tuple[str, Path, int]], progress: Progress) -> None:
        data = await asyncio.to_thread(transfer.pack, batch)
        script = f'mkdir -p "$1" && head -c {len(data)} | tar -C "$1" --no-same-owner -xf -'

        async def blocks() -> AsyncIterator[bytes]:
            for start in range(0, len(data), BLOCK_BYTES):
                yield data[start : start + BLOCK_BYTES]

        await self._run(["sh", "-c", script, "sh", folder], give=blocks())
        progress(sum(size for _, _, size in batch))

    # --- asking ---
    async def _find(self, path: str, depth: int) -> list[FileEntry]:
        levels = ["-maxdepth", str(depth)] if depth else []
        try:
            said = await self._run(["find", path, *levels, "-printf", r"%y\t%s\t%T@\t%P\0"])
        except CutError:
            raise
        except BackendError as error:
            if "No such file" in error.message:
                shown = path.removeprefix(_ROOT).lstrip("/")
                raise NotFoundError(f"There is no {shown or '/'} in {self._volume}.") from None
            raise
        found = []
        for line in said.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            kind, size, changed, name = line.split("\t", 3)
            what = {"d": "folder", "f": "file", "l": "link"}.get(kind, "other")
            if name or what != "folder":
                found.append(FileEntry(name, what, int(size), float(changed)))
        return found

    async def _known(self, path: str) -> list[FileEntry]:
        try:
            return await self._find(path, 0)
        except NotFoundError:
            return []

    async def _same(self, path: str, local: Path) -> bool:
        return await self._digest(path) == await asyncio.to_thread(transfer.digest, local)

    async def _digest(self, path: str) -> str:
        return (await self._run(["sha256sum", "--", path])).decode().lstrip("\\").split(maxsplit=1)[0]

    async def _run(
        self,
        argv: Sequence[str],
        *,
        take: Callable[[bytes], Awaitable[None]] | None = None,
        give: AsyncIterator[bytes] | None = None,
    ) -> bytes:
        return await piped(self._api, self._namespace, self._pod, argv, take=take, give=give)


@asynccontextmanager
async def opened(api: Api, volume: Volume, image: str, owner: str, *, node: str = "") -> AsyncGenerator[PodFiles]:
    """Start the pod, wait until it runs, and remove it in the end.

    Args:
        node: Where it must run, since another pod there holds a volume that one node alone can mount.

    Raises:
        BackendError: it does not start; says why.
    """
    name, namespace = f"l2rtui-files-{uuid.uuid4().hex[:8]}", api.namespace
    try:
        await api.create(_pod(name, namespace, volume.name, image, owner, node))
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


def _pod(name: str, namespace: str, claim: str, image: str, owner: str, node: str) -> dict[str, Any]:
    mark = {
        labels.APP_MANAGED_BY: labels.MANAGED_BY,
        labels.APP_COMPONENT: "files",
        labels.OWNER: labels.label_value(owner),
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _LIFE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "files",
                "image": image,
                "command": ["sleep", str(_LIFE_SECONDS)],
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "volume", "mountPath": _ROOT}],
            }
        ],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
        "terminationGracePeriodSeconds": 0,
    }
    if node:
        spec["nodeSelector"] = {labels.HOSTNAME: node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": mark},
        "spec": spec,
    }


# --- pieces ---------------------------------------------------------------------------------------------------


def _inside(path: str) -> str:
    """A path of the volume as the pod has it.

    Raises:
        UsageError: it leads out of the volume.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in path:
        raise UsageError(f"{path!r} leads out of the volume.", "Write it without `..`.")
    return posixpath.join(_ROOT, *parts)


async def _again(act: Callable[[], Awaitable[None]]) -> None:
    """Do it; after a cut once more, from where it ended."""
    for number in range(_TRIES):
        try:
            return await act()
        except CutError:
            if number == _TRIES - 1:
                raise
            await asyncio.sleep(0.5 * 2**number)
    return None
