"""Secrets on this machine: files with mode 0600 whose values processes get as variables when they start.

A run's own files contain only the name of a secret. Every program of the user can read these files, as with
``~/.aws/credentials``.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from l2rtui.config import user_name
from l2rtui.domain.secret import Secret, SecretKind, SecretView
from l2rtui.errors import BackendError, NotFoundError, RefusedError
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

SUFFIX: Final = ".json"


def missing(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the secrets that have no file."""
    return tuple(name for name in names if not (folder / f"{name}{SUFFIX}").is_file())


def variables(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of these secrets; later secrets override earlier ones.

    Raises:
        OSError: A secret does not exist or cannot be read; the message names it without quoting its content.
    """
    environ: dict[str, str] = {}
    for name in names:
        path = folder / f"{name}{SUFFIX}"
        if "/" in name or not path.is_file():
            raise OSError(None, f"there is no secret {name}")
        try:
            kind, values = read(path)
        except BackendError as error:
            raise OSError(None, f"the secret {name} cannot be read") from error
        # A registry login is for pulling images, which this backend does not use.
        if kind is SecretKind.VARIABLES:
            environ |= values
    return environ


def read(path: Path) -> tuple[SecretKind, dict[str, str]]:
    """Read kind and variables of one file.

    Raises:
        BackendError: It cannot be read; the message does not quote its content.
    """
    try:
        document = bounded_json.loads(path.read_text("utf-8"))
        return SecretKind(document["kind"]), {str(key): str(value) for key, value in document["values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The parser's own text may quote the file's content.
        raise BackendError(f"{path} cannot be read as a secret ({type(error).__name__}).") from None


class LocalSecrets:
    """The secrets in their own folder, mode 0700."""

    hidden = ""

    def __init__(self, folder: Path, owner: str = "") -> None:
        self._folder = folder
        self._owner = owner or user_name()

    async def list(self) -> tuple[SecretView, ...]:
        """List the secrets by name."""
        return await asyncio.to_thread(self._list)

    async def keep(self, secret: Secret, *, replace: bool = False) -> None:
        """Write a secret atomically."""
        await asyncio.to_thread(self._keep, secret, replace)

    async def delete(self, name: str) -> None:
        """Delete a secret."""
        # No check before: unlink() reports a missing file itself, and another delete may come in between.
        try:
            await asyncio.to_thread(self._path(name).unlink)
        except FileNotFoundError:
            raise NotFoundError(f"There is no secret {name} here.", "See `l2rtui secret ls`.") from None

    def _list(self) -> tuple[SecretView, ...]:
        if not self._folder.is_dir():
            return ()
        views = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            kind, values = read(path)
            created = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
            keys = tuple(sorted(values))
            views.append(SecretView(path.name.removesuffix(SUFFIX), kind, keys, self._owner, created))
        return tuple(views)

    def _keep(self, secret: Secret, replace: bool) -> None:
        path = self._path(secret.name)
        if path.exists() and not replace:
            raise RefusedError(f"There is a secret {secret.name} here.", "Add --replace, or delete it.")
        document = {"kind": str(secret.kind), "values": dict(secret.values), "time": time.time()}
        try:
            write_private(path, json.dumps(document))
        except OSError as error:
            raise BackendError(f"{self._folder} cannot be written: {error.strerror}.") from error

    def _path(self, name: str) -> Path:
        # A name becomes a file name: it must not lead out of the folder.
        if "/" in name or name.startswith("."):
            raise NotFoundError(f"{name!r} is not a secret name.")
        return self._folder / f"{name}{SUFFIX}"
