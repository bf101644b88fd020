"""Named filters: from the settings, and saved in the app."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from l2rtui.config import state_dir
from l2rtui.errors import BackendError, ConfigError, nearest
from runtime.base import bounded_json
from runtime.base.atomic_files import write_private

VIEWS: Final = ("slots", "runs", "pods", "nodes", "events", "seeds")
MAX_FILTERS: Final = 200


def checked(expression: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the filters of the settings, by name.

    Raises:
        ConfigError: a filter names no view.
    """
    for name, text in expression:
        view = text.split(maxsplit=1)[0] if text.strip() else ""
        if view not in VIEWS:
            sentence = f"[filters]: {name} is {text!r}: it begins with a view, such as `pods status=Failed`."
            raise ConfigError(sentence, nearest(view, VIEWS) or f"The views are {', '.join(VIEWS)}.")
    return dict(expression)


def saved_filters() -> dict[str, str]:
    """Return the filters that were saved in the app, by name; empty if the file cannot be read."""
    try:
        filters = bounded_json.loads(filters_path().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(filters, dict):
        return {}
    texts = {name: text for name, text in filters.items() if isinstance(text, str)}
    return {name: text for name, text in texts.items() if text.split(maxsplit=1)[:1] and text.split()[0] in VIEWS}


def save_filter(name: str, text: str) -> None:
    """Save a filter under a name, replacing an earlier one; an empty text removes it.

    Raises:
        BackendError: the file cannot be written.
    """
    filters = {other: item for other, item in saved_filters().items() if other != name}
    if text:
        filters[name] = text
    # The newest are at the end of the dict, so the oldest are dropped.
    newest, path = dict(list(filters.items())[-MAX_FILTERS:]), filters_path()
    try:
        write_private(path, json.dumps(newest, indent=1, ensure_ascii=False))
    except OSError as error:
        raise BackendError(f"{path} was not written: {error.strerror}.", "Look at its folder's rights.") from error


def filters_path() -> Path:
    """Return the file of the filters that were saved."""
    return state_dir() / "filters.json"
