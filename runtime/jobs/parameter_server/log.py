"""Console of a parameter-server process: standard output and a log file on the volume, which outlives the pod."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from runtime.base import contract
from runtime.base.metrics import Console


class LoggedConsole(Console):
    """Writes to standard output and to a file on the volume, which outlives the pod."""

    def __init__(self, path: Path, console: Console) -> None:
        super().__init__()
        self._console = console
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record(self, line: str) -> None:
        """Print a metric record, and append it to the file."""
        self._console.record(line)
        self._keep(line)

    def say(self, sentence: str) -> None:
        """Print a sentence with the time of day, and append it to the file."""
        self._console.say(sentence)
        self._keep(sentence)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _keep(self, line: str) -> None:
        stamp = "" if line.startswith(contract.METRIC_PREFIX) else time.strftime("%H:%M:%S ")
        with contextlib.suppress(OSError):  # a full disk does not end training
            os.write(self._file, f"{stamp}{line}\n".encode())
