"""Coverage guidance: inputs that reach a new line of the program become seeds of further ones.

The corpus in ``tests/fuzz/corpus`` keeps such inputs between runs, one folder for each target. Lines are traced
with ``sys.settrace``; a function without a new line in many calls is no longer traced, so tracing costs little.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

CORPUS: Final = Path(__file__).parent / "corpus"
LONGEST_BYTES: Final = 2048
"""Longer inputs guide a run, and are not stored."""
MOST_INPUTS: Final = 40
"""Number of stored inputs of a target."""
_ROOT: Final = Path(__file__).parents[2]
_TRACED: Final = (str(_ROOT / "l2rtui"), str(_ROOT / "runtime"))
_CALLS_WITHOUT_NEWS: Final = 300


class Coverage:
    """Lines of this program that inputs have reached."""

    def __init__(self) -> None:
        self._seen: set[tuple[CodeType, int]] = set()
        self._idle: Counter[CodeType] = Counter()
        self._has_news = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Trace what runs inside; afterwards `has_news` says whether a line was reached for the first time."""
        self._has_news = False
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    @property
    def has_news(self) -> bool:
        """True if the last watched input reached a new line."""
        return self._has_news

    @property
    def lines(self) -> int:
        """Number of lines that were reached."""
        return len(self._seen)

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_TRACED) or self._idle[code] > _CALLS_WITHOUT_NEWS:
            return None
        self._idle[code] += 1
        return self._line

    def _line(self, frame: FrameType, _event: str, _argument: object) -> Any:
        line = (frame.f_code, frame.f_lineno)
        if line not in self._seen:
            self._seen.add(line)
            self._idle[frame.f_code] = 0
            self._has_news = True
        return self._line


def folder_of(name: str) -> Path:
    """Return the folder with the stored inputs of a target."""
    return CORPUS / re.sub(r"\W+", "-", name.lower())


def stored(name: str) -> list[bytes]:
    """Return the stored inputs of a target."""
    return [path.read_bytes() for path in sorted(folder_of(name).glob("*"))]


def store(name: str, inputs: list[bytes]) -> None:
    """Add inputs to the corpus, up to a number."""
    folder = folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    for data in sorted((data for data in inputs if len(data) <= LONGEST_BYTES), key=len):
        if len(list(folder.iterdir())) >= MOST_INPUTS:
            return
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
