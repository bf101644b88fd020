"""Journal: an append-only record of every change, with time, user, object and outcome.

One JSON object per line in ``journal.jsonl`` under the state directory. A journal that cannot be written never
stops the recorded work. It is for users, who read it by `:journal` of the app; no code depends on it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

from l2rtui.config import state_dir, user_name
from runtime.base import bounded_json

_MAX_BYTES = 8 * 1_048_576
_log = logging.getLogger(__name__)


def record(verb: str, target: str, outcome: str, **details: Any) -> None:
    """Append one entry; ``details`` must be JSON values."""
    _log.info("%s %s: %s", verb, target, outcome)
    entry = {"time": time.time(), "user": user_name(), "verb": verb, "target": target, "outcome": outcome}
    line = json.dumps(entry | details, ensure_ascii=False) + "\n"
    with contextlib.suppress(OSError):
        path = state_dir() / "journal.jsonl"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            # One older file is enough: users read the journal about last week.
            path.replace(path.with_suffix(".jsonl.1"))
        # One write of one line with O_APPEND: entries of two parallel programs do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode(errors="backslashreplace"))  # a path may contain non-text bytes
        finally:
            os.close(descriptor)


def entries() -> Iterator[dict[str, Any]]:
    """Read the entries, oldest first; a damaged line is skipped."""
    path = state_dir() / "journal.jsonl"
    for part in (path.with_suffix(".jsonl.1"), path):
        with contextlib.suppress(OSError), part.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    if isinstance(entry := bounded_json.loads(line), dict):
                        yield entry
