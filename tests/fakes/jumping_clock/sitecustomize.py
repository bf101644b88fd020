"""Wall clock that jumps: every Python process with this folder in its PYTHONPATH reads the date of a file's making.

The file that ``CLOCK_OFFSET`` names holds seconds, which are added to ``time.time()``.
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
