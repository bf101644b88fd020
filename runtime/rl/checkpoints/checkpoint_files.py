"""Checkpoints in a folder: each is written completely or not at all, and the newest undamaged one is loaded.

A checkpoint is two files: `ckpt-UPDATES-ENVSTEPS.safetensors`, and a JSON manifest of the same name with the
SHA-256 of the first file and of itself. Each file is written under a temporary name, flushed to the disk and
renamed, the manifest last; then the folder is flushed. A checkpoint with a manifest is therefore complete, and the
checksums detect later damage by the disk.

Uploads checkpoints to a bucket or volume, and downloads the newest complete one.

The order is the same as in the folder: first the arrays, then the manifest with their SHA-256. A checkpoint with a
manifest is therefore complete, even if a writer was killed. Uploads run in a separate thread, one checkpoint at a
time; if the connection is slower than the learner, checkpoints in between are skipped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from runtime.base.atomic_files import TEMPORARY_PREFIX, write_atomic
from runtime.base.checkpoint_manifest import (
    checkpoint_name,
    decode_manifest,
    encode_manifest,
    find_damage,
    is_manifest,
)
from runtime.base.descriptors import PATIENCE_SECONDS, with_reserve
from runtime.base.errors import unexpected_reason
from runtime.base.object_store import ObjectStore

_DAMAGE: Final = (errno.ENOENT, errno.EIO)
"""Error numbers for a file that does not exist, and for a disk that lost its data."""
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Arrays by name, and facts as JSON values."""

    name: str
    tensors: Tensors
    facts: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run. Only one process may write; the learner's lock on the folder ensures this.

    With `is_read_only` the folder is not changed: another process may be writing there.
    """

    def __init__(self, folder: Path, keep: int, *, is_read_only: bool = False) -> None:
        self._folder = folder
        self._keep = keep
        self._is_read_only = is_read_only
        if not is_read_only:
            folder.mkdir(parents=True, exist_ok=True)
            self._sweep()

    def save(self, updates: int, env_steps: int, tensors: Tensors, facts: Mapping[str, Any]) -> str:
        """Write a checkpoint, remove the oldest ones beyond the number to keep, and return its name.

        Raises OSError if the disk cannot store it; earlier checkpoints remain unchanged.
        """
        name = checkpoint_name(updates, env_steps)
        if self._manifest(name).exists():
            return name  # nothing was learned or collected since
        data = safetensors.numpy.save({key: np.asarray(value, order="C") for key, value in tensors.items()})
        write_atomic(self._folder / f"{name}.safetensors", data)
        write_atomic(self._manifest(name), encode_manifest(name, updates, env_steps, data, facts))
        for old in self.names()[: -self._keep]:
            self._remove(old)
        return name

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest undamaged checkpoint, and a sentence for each one that was set aside before it.

        Raises OSError, and changes nothing, if the system cannot read now (permissions, no free descriptor): the
        checkpoint may be intact, and training must not restart from zero.
        """
        aside: list[str] = []
        for name in reversed(self.names()):
            try:
                return self.read(name), aside
            except (OSError, ValueError, safetensors.SafetensorError) as error:
                if isinstance(error, OSError) and error.errno not in _DAMAGE:
                    raise
                if self._is_read_only:
                    continue  # its writer may just have removed it
                self._set_aside(name)
                aside.append(f"checkpoint {name} is damaged ({error}); it was set aside as {name}.*.damaged")
        return None, aside

    def names(self) -> list[str]:
        """Names of the checkpoints, oldest first."""
        return with_reserve(
            lambda: sorted(path.stem for path in self._folder.glob("ckpt-*.json")),
            patience_seconds=PATIENCE_SECONDS,
        )

    def read(self, name: str) -> Checkpoint:
        """Return a checkpoint. Raises OSError, ValueError or SafetensorError if it is damaged."""
        manifest = decode_manifest(self._manifest(name).read_bytes())
        data = (self._folder / f"{name}.safetensors").read_bytes()
        if len(data) != manifest.bytes:
            raise ValueError(f"it has {len(data)} bytes of {manifest.bytes}")
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise ValueError("its check sum is wrong")
        return Checkpoint(name, safetensors.numpy.load(data), manifest.facts)

    def _manifest(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _remove(self, name: str) -> None:
        """Remove the manifest first: without it, files do not count as a checkpoint, so an interruption is
        harmless.
        """
        with contextlib.suppress(OSError):
            self._manifest(name).unlink(missing_ok=True)
            (self._folder / f"{name}.safetensors").unlink(missing_ok=True)

    def _set_aside(self, name: str) -> None:
        """Keep only the newest damaged checkpoint, for inspection."""
        for old in self._folder.glob("*.damaged"):
            old.unlink(missing_ok=True)
        for path in (self._manifest(name), self._folder / f"{name}.safetensors"):
            with contextlib.suppress(OSError):
                path.rename(path.with_name(path.name + ".damaged"))

    def _sweep(self) -> None:
        """Remove files that a process left when it was killed during `save`."""
        complete = set(self.names())
        for path in self._folder.iterdir():
            unfinished = path.name.startswith(TEMPORARY_PREFIX)
            orphan = path.suffix == ".safetensors" and path.stem not in complete
            if unfinished or orphan:
                path.unlink(missing_ok=True)


UPLOAD_PATIENCE_SECONDS: Final = 60.0
"""How long a finished learner waits for its last upload, since the last byte that was transferred."""

Say = Callable[[str], None]


class Mirror:
    """Uploads the checkpoints of one folder. One thread calls `offer` and `close`."""

    def __init__(self, place: ObjectStore, folder: Path, keep: int, say: Say) -> None:
        self._place = place
        self._folder = folder
        self._keep = keep
        self._say = say
        self._pending: str | None = None
        self._copied = ""
        """Name of the newest checkpoint that is already stored."""
        self._moved = 0
        self._has_told = False
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def offer(self, name: str) -> None:
        """Upload this checkpoint next, instead of one that is still waiting."""
        with self._changed:
            self._pending = name
            self._changed.notify_all()

    def close(self, patience_seconds: float = UPLOAD_PATIENCE_SECONDS) -> None:
        """Wait for the last upload, at most `patience_seconds` without progress.

        The next start from the same folder completes an upload that is not done by then.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        moved, until = -1, 0.0
        while self._thread.is_alive():
            if self._moved != moved:
                moved, until = self._moved, time.monotonic() + patience_seconds
            elif time.monotonic() > until:
                self._say(f"the last checkpoint is not in {self._place.url} yet; the next start copies it")
                return
            self._thread.join(0.1)

    def _run(self) -> None:
        is_swept = False
        while True:
            with self._changed:
                while self._pending is None:
                    if self._is_closing:
                        return
                    self._changed.wait()
                name, self._pending = self._pending, None
            try:
                if not is_swept:
                    self._place.sweep()
                    is_swept = True
                self._copy(name)
            except OSError as error:
                self._say_failed(name, str(error))
            except Exception as error:  # noqa: BLE001 (the thread must continue, or no later checkpoint would be copied)
                self._say_failed(name, unexpected_reason(error))

    def _say_failed(self, name: str, reason: str) -> None:
        is_last = self._is_closing and self._pending is None
        next_step = "the next start copies it" if is_last else "the next one is tried"
        self._say(f"checkpoint {name} could not be copied ({reason}); {next_step}")

    def _copy(self, name: str) -> None:
        if name <= self._copied:
            return
        there = self._place.names()
        self._tell_of_others(name, there)
        if f"{name}.json" not in there:
            began = time.monotonic()
            data = self._folder / f"{name}.safetensors"
            self._place.put(data.name, data, self._progress)
            self._place.put(f"{name}.json", self._folder / f"{name}.json", self._progress)
            size, seconds = data.stat().st_size / 2**20, time.monotonic() - began
            self._say(f"checkpoint {name} is in {self._place.url}: {size:.1f} MiB in {seconds:.1f} s")
        self._copied = name
        manifests = [key for key in there if key.endswith(".json") and key != f"{name}.json"]
        for old in manifests[: max(0, len(manifests) + 1 - self._keep)]:
            self._place.remove(old)  # before the arrays: without it they are no checkpoint
            self._place.remove(old.replace(".json", ".safetensors"))

    def _tell_of_others(self, name: str, there: list[str]) -> None:
        """Warn once that another learner writes there: each would remove the other's checkpoints."""
        foreign = [key for key in there if is_manifest(key) and key > f"{name}.json"]
        same = f"{name}.json"
        if same in there and self._place.read(same) != (self._folder / same).read_bytes():
            foreign.append(same)
        if foreign and not self._has_told:
            self._has_told = True
            self._say(
                f"{self._place.url} holds {foreign[0]}, which this learner has not made: another one writes there, "
                "and of both the older checkpoints are removed. Give each run a place of its own"
            )

    def _progress(self, count: int) -> None:
        self._moved += count


def bring_newest(place: ObjectStore, folder: Path, say: Say) -> str | None:
    """Download the newest complete checkpoint to `folder`, unless it is already there; return its name or None.

    Raises OSError if the store cannot be read: it may have a newer checkpoint, so do not train from zero.
    """
    own = max((path.name for path in folder.glob("ckpt-*.json")), default="")
    there = [key for key in place.names() if is_manifest(key)]
    for manifest in reversed(there):
        if manifest <= own:
            return None
        if (problem := _bring(place, manifest, folder)) is None:
            return manifest.removesuffix(".json")
        say(f"{place.url}/{manifest} is not whole ({problem}); the one before is tried")
    return None


def _bring(place: ObjectStore, manifest: str, folder: Path) -> str | None:
    """Download one checkpoint, the manifest last; return an error sentence, or None."""
    name = manifest.replace(".json", ".safetensors")
    try:
        text = place.read(manifest)
        place.fetch(name, folder / name)
    except FileNotFoundError as error:
        return str(error)
    if (problem := find_damage(text, folder / name)) is not None:
        (folder / name).unlink(missing_ok=True)
        return problem
    write_atomic(folder / manifest, text)
    return None
