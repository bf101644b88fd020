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
from collections.abc import Iterator, Mapping
from typing import Any, Final

from l2rtui.config import state_dir, user_name
from l2rtui.domain.quantity import age, counted
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
        with contextlib.suppress(FileNotFoundError):  # the first entry, or another program has just moved the file
            if path.stat().st_size > _MAX_BYTES:
                # One older file is enough: users read the journal about last week.
                path.replace(path.with_suffix(".jsonl.1"))
        # One write of one line with O_APPEND: entries of two parallel programs do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode(errors="backslashreplace"))  # a path may contain non-text bytes
        finally:
            os.close(descriptor)


_RESULTS: Final = {
    ("launch", "done"): "launched {pods}",
    ("launch", "failed"): "failed: {error}",
    ("launch", "taken back"): "interrupted and undone",
    ("scale", "asked"): "set to {replicas}",
    ("kill", "asked"): "deletion requested",
    ("destroy", "done"): "destroyed, nothing left",
    ("destroy", "left"): "destroyed, {left} left",
    ("signal", "sent"): "{signal} sent",
    ("simulator restart", "asked"): "restart requested",
    ("simulator signal", "asked"): "{signal} requested",
    ("reserve", "done"): "reserved for {until}",
    ("unreserve", "done"): "released",
    ("queue cancel", "done"): "removed from the queue",
    ("queue move", "done"): "moved to position {position}",
    ("image build", "done"): "built",
    ("image push", "done"): "pushed",
}


def result_of(entry: Mapping[str, Any]) -> str:
    """Return in words what an entry's change did; the bare outcome if its details are missing."""
    details = dict(entry)
    for name, noun in (("pods", "pod"), ("left", "object")):
        if isinstance(names := entry.get(name), list):
            details[name] = counted(len(names), noun)
    if isinstance(replicas := entry.get("replicas"), int):
        details["replicas"] = counted(replicas, "replica")
    until, since = entry.get("until"), entry.get("time")
    if isinstance(until, int | float) and isinstance(since, int | float):
        details["until"] = age(until - since)
    form = _RESULTS.get((str(entry.get("verb")), str(entry.get("outcome"))), "{outcome}")
    try:
        return form.format_map(details)
    except KeyError:  # written by an earlier version
        return str(entry.get("outcome", ""))


def entries() -> Iterator[dict[str, Any]]:
    """Read the entries, oldest first; a damaged line is skipped."""
    path = state_dir() / "journal.jsonl"
    for part in (path.with_suffix(".jsonl.1"), path):
        with contextlib.suppress(OSError), part.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    if isinstance(entry := bounded_json.loads(line), dict):
                        yield entry
