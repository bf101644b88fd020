"""Manifest of a checkpoint: the JSON file that describes its arrays and proves that they are complete.

A checkpoint is ``ckpt-UPDATES-ENVSTEPS.safetensors`` and a manifest of the same name ending in ``.json``, with the
SHA-256 of the former and of itself. The manifest is written last, so a checkpoint with a manifest is complete,
wherever the writer was killed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.base import bounded_json

FORMAT: Final = 2
"""Version of the manifest."""
ARRAYS_SUFFIX: Final = ".safetensors"
MANIFEST_SUFFIX: Final = ".json"
_PREFIX: Final = "ckpt-"


class ManifestError(ValueError):
    """The manifest cannot be used; the message has the reason."""


class CheckpointManifest(msgspec.Struct, frozen=True):
    """Contents of a manifest.

    Attributes:
        data: Name of the file with the arrays. bytes, sha256: Size and checksum of that file.
        facts: JSON values that the writer added: counters, settings, provenance.
        check: SHA-256 of the JSON of all other fields with sorted keys.
    """

    format: int
    updates: int
    env_steps: int
    bytes: int
    sha256: str
    check: str
    data: str = ""
    facts: dict[str, Any] = {}


def checkpoint_name(updates: int, env_steps: int) -> str:
    """Return the name of a checkpoint; names sort by age."""
    return f"{_PREFIX}{updates:010d}-{env_steps:012d}"


def is_manifest(file_name: str) -> bool:
    """Return whether a file name, without its folder, is a manifest's name."""
    return file_name.startswith(_PREFIX) and file_name.endswith(MANIFEST_SUFFIX)


def encode_manifest(name: str, updates: int, env_steps: int, arrays: bytes, facts: Mapping[str, Any]) -> bytes:
    """Return the manifest of a checkpoint; `arrays` is the content of its arrays file."""
    fields = {
        "format": FORMAT,
        "data": f"{name}{ARRAYS_SUFFIX}",
        "bytes": len(arrays),
        "sha256": hashlib.sha256(arrays).hexdigest(),
        "updates": updates,
        "env_steps": env_steps,
        "facts": facts,
    }
    fields["check"] = _check_sum(fields)
    return json.dumps(fields, indent=1).encode()


def decode_manifest(text: bytes) -> CheckpointManifest:
    """Decode a manifest; verify its format version and its own checksum. Raises ManifestError."""
    try:
        # Python's JSON, not msgspec's: facts may contain NaN, and the checksum covers Python's number format.
        fields = bounded_json.loads(text)
        is_foreign = isinstance(fields, dict) and fields.get("format", FORMAT) != FORMAT
        # Another format may have other fields, so it is not converted: an error would name a field, not the format.
        manifest = None if is_foreign else bounded_json.convert(fields, CheckpointManifest)
        check = _check_sum({name: value for name, value in fields.items() if name != "check"})
    except (ValueError, TypeError) as error:
        raise ManifestError(f"its manifest cannot be used: {error}") from error
    if manifest is None:
        raise ManifestError("its manifest cannot be used: it is of another format")
    if check != manifest.check:
        raise ManifestError("its manifest cannot be used: its check sum is wrong")
    return manifest


def find_damage(text: bytes, arrays: Path) -> str | None:
    """Return a short description of a checkpoint's damage; None if manifest and arrays are intact.

    Raises OSError if the arrays cannot be read.
    """
    try:
        manifest = decode_manifest(text)
    except ManifestError as error:
        return str(error)
    if (size := arrays.stat().st_size) != manifest.bytes:  # cheaper than the checksum of some gigabytes
        return f"it has {size} bytes of {manifest.bytes}"
    return None if file_sha256(arrays) == manifest.sha256 else "its check sum is wrong"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sum(fields: Mapping[str, Any]) -> str:
    # Sorted keys: the checksum does not depend on the file's formatting.
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
