"""Files with secrets, as a supervisor reads them: it imports little, so this stands apart from ``secrets``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from l2rtui.domain.secret import SecretKind
from l2rtui.errors import BackendError

SUFFIX: Final = ".json"


def missing(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of these secrets that are not kept here."""
    return tuple(name for name in names if not (folder / f"{name}{SUFFIX}").is_file())


def variables(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The variables of these secrets, later ones over earlier ones.

    Raises:
        OSError: one is not there, or cannot be read; says which, and nothing of what is in it.
    """
    found: dict[str, str] = {}
    for name in names:
        path = folder / f"{name}{SUFFIX}"
        if "/" in name or not path.is_file():
            raise OSError(None, f"there is no secret {name}")
        try:
            kind, values = read(path)
        except BackendError as error:
            raise OSError(None, f"the secret {name} cannot be read") from error
        if kind is SecretKind.VARIABLES:
            found |= values
    return found


def read(path: Path) -> tuple[SecretKind, dict[str, str]]:
    """Kind and variables in one file.

    Raises:
        BackendError: it cannot be read; nothing of what is in it is said.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        return SecretKind(document["kind"]), {str(key): str(value) for key, value in document["values"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The parser's own text may quote what is in the file.
        raise BackendError(f"{path} cannot be read as a secret ({type(error).__name__}).") from None
