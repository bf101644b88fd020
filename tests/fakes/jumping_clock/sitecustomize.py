"""Jumping wall clock for every Python process with this folder in its PYTHONPATH.

The file that ``CLOCK_OFFSET`` names contains seconds, which are added to ``time.time()``.
"""

import os
import time
from pathlib import Path

_FILE = Path(os.environ.get("CLOCK_OFFSET", "/nonexistent"))
_time = time.time


def _jumped() -> float:
    try:
        return _time() + float(_FILE.read_text())
    except (OSError, ValueError):
        return _time()


time.time = _jumped
