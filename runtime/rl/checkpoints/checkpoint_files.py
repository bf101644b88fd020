"""Checkpoints in a folder: each is written completely or not at all, and the newest undamaged one is loaded.

A checkpoint is two files: `ckpt-UPDATES-ENVSTEPS.safetensors`, and a JSON manifest of the same name with the
SHA-256 of the first file and of itself. Each file is written under a temporary name, flushed to the disk and
renamed, the manifest last; then the folder is flushed. A checkpoint with a manifest is therefore complete, and the
checksums detect later damage by the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from runtime.base.atomic_files import TEMPORARY_PREFIX, write_atomic
from runtime.base.checkpoint_manifest import checkpoint_name, decode_manifest, encode_manifest
from runtime.base.descriptors import PATIENCE_SECONDS, with_reserve

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
