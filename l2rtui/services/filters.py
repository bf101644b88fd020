"""Filters with a name: those of the settings, and those that were kept in the app."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from l2rtui.backends.privatefile import write_private
from l2rtui.config import nearest, state_dir
from l2rtui.errors import BackendError, ConfigError

VIEWS: Final = ("slots", "seeds", "pods", "nodes", "events")
MOST: Final = 200


def checked(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Filters of the settings, by name.

    Raises:
        ConfigError: one names no view.
    """
    for name, text in given:
        view = text.split(maxsplit=1)[0] if text.strip() else ""
        if view not in VIEWS:
            raise ConfigError(
                f"[filters]: {name} is {text!r}: it begins with a view, such as `pods status=Failed`.",
                nearest(view, VIEWS) or f"The views are {', '.join(VIEWS)}.",
            )
    return dict(given)


def kept() -> dict[str, str]:
    """Filters that were kept in the app, by name; none where the file cannot be read."""
    try:
        found = json.loads(_path().read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    texts = {name: text for name, text in found.items() if isinstance(text, str)}
    return {name: text for name, text in texts.items() if text.split(maxsplit=1)[:1] and text.split()[0] in VIEWS}


def keep(name: str, text: str) -> None:
    """Keep a filter under a name, in place of one that has it; an empty text forgets it.

    Raises:
        BackendError: it cannot be written.
    """
    found = {other: one for other, one in kept().items() if other != name}
    if text:
        found[name] = text
    _write(dict(list(found.items())[-MOST:]))


def _write(found: Mapping[str, str]) -> None:
    path = _path()
    try:
        write_private(path, json.dumps(found, indent=1, ensure_ascii=False))
    except OSError as error:
        raise BackendError(f"{path} was not written: {error.strerror}.", "Look at its folder's rights.") from error


def _path() -> Path:
    return state_dir() / "filters.json"
