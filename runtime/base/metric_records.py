"""Parser of metric records: one line of JSON on a process's standard output, as `contract` defines them.

Records come from inside a run and are untrusted: a line that is not a record gives None, and so does a field of an
unexpected type. `runtime.base.metrics` writes them.
"""

from __future__ import annotations

import math
from typing import Any, Final

from runtime.base import bounded_json
from runtime.base.contract import METRIC_PREFIX

MAX_LINE: Final = 65_536
"""Length of the longest line that is parsed; a longer one is not a record."""
MAX_NUMBER: Final = 1e300
"""Largest magnitude of a number that can be scaled and added without becoming infinite."""
MAX_COUNT: Final = 1e15
"""Largest count: every integer up to here is exact as a float, and short enough to be shown in full."""
MAX_TEXT: Final = 200


def parse_record(line: str) -> dict[str, Any] | None:
    """Parse a line as a metric record, with its kind under ``l2r``; None for any other line."""
    # The prefix first: nearly every line of a log is rejected here, before the JSON parser sees it. The record may
    # follow text that another thread or a progress bar has written without a line end.
    at = line.find(METRIC_PREFIX)
    if at < 0 or len(line) - at > MAX_LINE:
        return None
    try:
        record = bounded_json.loads(line[at:])
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("l2r"), str) else None


def number(value: Any, max_abs: float = MAX_NUMBER) -> float | None:
    """Return a finite number as a float; None for anything else."""
    # bool is a subclass of int, and Python's JSON parser reads NaN and Infinity, which records must not contain.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= max_abs
    return float(value) if is_number and math.isfinite(value) else None


def integer(value: Any, max_abs: float = MAX_NUMBER) -> int | None:
    """Return a number without its fraction; None for anything else."""
    result = number(value, max_abs)
    return None if result is None else int(result)


def text(value: Any, max_chars: int = MAX_TEXT) -> str:
    """Return a text, truncated at `max_chars`; empty for anything else."""
    return value[:max_chars] if isinstance(value, str) else ""
