"""Reader of secret files for supervisors; separate from ``secrets``, as a supervisor must not import asyncio."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from l2rtui.domain.secret import SecretKind
from l2rtui.errors import BackendError
from runtime.base import bounded_json

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
