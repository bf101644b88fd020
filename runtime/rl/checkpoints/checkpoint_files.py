"""Checkpoints in a folder: written whole or not at all, and the newest whole one is found after any damage.

A checkpoint is two files, `ckpt-UPDATES-ENVSTEPS.safetensors` and a JSON manifest of the same name with the
SHA-256 of the first, and of itself. The manifest is written last, each file as a temporary one that is flushed to
the disk and renamed, then the folder is flushed. So a checkpoint with a manifest is complete, and the check sums
find what a disk did to either file later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from runtime.files import write_whole

FORMAT: Final = 2
"""Version of the manifest."""
_DAMAGE: Final = (errno.ENOENT, errno.EIO)
"""What the system says of a file that is gone, or of a disk that lost it."""
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved: arrays by name, and plain facts."""

    name: str
    tensors: Tensors
    facts: Mapping[str, Any]


class Checkpoints:
    """The checkpoints of one run. Only one process may write; the learner's lock on its folder sees to that."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def save(self, updates: int, env_steps: int, tensors: Tensors, facts: Mapping[str, Any]) -> str:
        """Write a checkpoint, remove the oldest beyond those kept, and return its name.

        Raises OSError if the disk does not take it; earlier checkpoints stay as they are.
        """
        name = f"ckpt-{updates:010d}-{env_steps:012d}"
        if self._manifest(name).exists():
            return name  # nothing was learned or collected since
        data = safetensors.numpy.save({key: np.asarray(value, order="C") for key, value in tensors.items()})
        manifest = {
            "format": FORMAT,
            "data": f"{name}.safetensors",
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "updates": updates,
            "env_steps": env_steps,
            "facts": facts,
        }
        manifest["check"] = _check_sum(manifest)
        self._write(f"{name}.safetensors", data)
        self._write(f"{name}.json", json.dumps(manifest, indent=1).encode())
        for old in self.names()[: -self._keep]:
            self._remove(old)
        return name

    def load(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is whole, and a sentence for each that was set aside on the way.

        Raises OSError, and changes nothing, if the system cannot read just now (rights, no descriptor left): that
        says nothing of a checkpoint, and training must not start anew for it.
        """
        aside: list[str] = []
        for name in reversed(self.names()):
            try:
                return self._read(name), aside
            except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
                if isinstance(error, OSError) and error.errno not in _DAMAGE:
                    raise
                self._set_aside(name)
                aside.append(f"checkpoint {name} is damaged ({error}); it was set aside as {name}.*.damaged")
        return None, aside

    def names(self) -> list[str]:
        """Names of the checkpoints, the oldest first."""
        return sorted(path.stem for path in self._folder.glob("ckpt-*.json"))

    def _read(self, name: str) -> Checkpoint:
        manifest = manifest_of(self._manifest(name).read_bytes())
        data = (self._folder / f"{name}.safetensors").read_bytes()
        if len(data) != manifest["bytes"]:
            raise ValueError(f"it has {len(data)} bytes of {manifest['bytes']}")
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise ValueError("its check sum is wrong")
        return Checkpoint(name, safetensors.numpy.load(data), manifest["facts"])

    def _write(self, file_name: str, data: bytes) -> None:
        write_whole(self._folder / file_name, data)

    def _manifest(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _remove(self, name: str) -> None:
        """Remove the manifest first: what has none is no checkpoint, so an end between the two harms nothing."""
        with contextlib.suppress(OSError):
            self._manifest(name).unlink(missing_ok=True)
            (self._folder / f"{name}.safetensors").unlink(missing_ok=True)

    def _set_aside(self, name: str) -> None:
        """Keep the newest damaged checkpoint for a look at it, and only that one."""
        for old in self._folder.glob("*.damaged"):
            old.unlink(missing_ok=True)
        for path in (self._manifest(name), self._folder / f"{name}.safetensors"):
            with contextlib.suppress(OSError):
                path.rename(path.with_name(path.name + ".damaged"))

    def _sweep(self) -> None:
        """Remove what a process that was killed in the middle of `save` left."""
        whole = set(self.names())
        for path in self._folder.iterdir():
            unfinished = path.name.startswith(".tmp-")
            orphan = path.suffix == ".safetensors" and path.stem not in whole
            if unfinished or orphan:
                path.unlink(missing_ok=True)


def manifest_of(text: bytes) -> dict[str, Any]:
    """Return what a manifest says. Raises ValueError or KeyError with what is wrong with it."""
    manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest["format"] != FORMAT:
        raise ValueError("its manifest is of another format")
    if manifest.pop("check") != _check_sum(manifest):
        raise ValueError("its manifest's check sum is wrong")
    return manifest


def damage(text: bytes, data: Path) -> str | None:
    """Say what is wrong with a checkpoint of this manifest and these arrays, unloaded; None if nothing is."""
    try:
        manifest = manifest_of(text)
        size = data.stat().st_size
        if size != manifest["bytes"]:
            return f"it has {size} bytes of {manifest['bytes']}"
        with data.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (ValueError, KeyError, TypeError) as error:
        return str(error)
    return None if digest == manifest["sha256"] else "its check sum is wrong"


def _check_sum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, however it is written down."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
