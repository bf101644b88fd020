"""Target of the fuzzer."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Run = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A decoder: a name, correct inputs, the call, and its allowed exceptions."""

    name: str
    seeds: Callable[[], list[bytes]]
    run: Run
    errors: tuple[type[Exception], ...] = ()

    def __call__(self, data: bytes) -> None:
        """Decode; raises only unexpected exceptions."""
        try:
            self.run(data)
        except self.errors:
            return


@cache
def folder() -> Path:
    path = Path(tempfile.mkdtemp(prefix="l2r-fuzz-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def file_of(name: str, data: bytes) -> str:
    path = folder() / name
    path.write_bytes(data)
    return str(path)
