"""One fetch: the digits, or a download and optionally its unpacking, with progress messages."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Final

from runtime.base.errors import FailedError, SetupError
from runtime.base.metrics import Console, record
from runtime.base.signals import Stop
from runtime.jobs.fetch import sources
from runtime.jobs.fetch.download import Download
from runtime.jobs.fetch.unpack import MAX_RATIO, is_archive, unpack

SAY_SECONDS: Final = 2.0
DIGITS: Final = "digits"


def fetch(
    text: str,
    dest: Path,
    console: Console,
    stop: Stop,
    *,
    is_folder: bool,
    sha256: str,
    unpacks: bool,
    max_ratio: int = MAX_RATIO,
) -> None:
    """Fetch the source `text` to `dest`. Raises SetupError, FailedError, InterruptedWorkError and OSError."""
    if text == DIGITS:
        from runtime.jobs.datasets.cifar import write_digits

        if sha256:
            raise SetupError("the digits are made here; they have no check sum to compare")
        teller = _ProgressReporter(console, DIGITS)
        teller.end("done", write_digits(dest), f"training and test pictures are in {dest}")
        return
    source = sources.parse(text)
    teller = _ProgressReporter(console, source.display_url)
    into = unpacks and is_archive(source.name)
    if (is_folder or into) and not source.name:
        raise SetupError(f"the source {source.display_url} ends without a name; give a file's name as DEST")
    file = dest / (f".fetched-{source.name}" if into else source.name) if is_folder or into else dest
    try:
        if sha256 and not into and _has_sum(file, sha256):
            teller.end("done", file.stat().st_size, f"{file} is there already")
            return
        Download(source, file, sha256, teller.tell, stop).run()
        size = file.stat().st_size
        if into:
            try:
                names = unpack(file, dest, source.name, stop, max_ratio)
            finally:
                file.unlink(missing_ok=True)
            teller.end("done", size, f"unpacked to {dest}: {', '.join(names[:8])}")
        else:
            teller.end("done", size, f"it is {file}")
    except (FailedError, OSError):
        teller.end("failed", teller.seen, "")
        raise


def _has_sum(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


class _ProgressReporter:
    """Prints a download's progress every few seconds."""

    def __init__(self, console: Console, display_url: str) -> None:
        self._console = console
        self._shown = display_url
        self._began = self._said = time.monotonic()
        self.seen = 0
        self._total: int | None = None

    def tell(self, size: int, total: int | None) -> None:
        """Record `size` bytes of `total`."""
        self.seen, self._total = size, total
        now = time.monotonic()
        if now - self._said < SAY_SECONDS:
            return
        self._said = now
        self._record("running")
        share = f" of {total / 1e6:.1f} MB, {100 * size / total:.0f} %" if total else ""
        self._console.say(f"fetching {self._shown}: {size / 1e6:.1f} MB{share}")

    def end(self, state: str, size: int, detail: str) -> None:
        """Print how it ended."""
        self.seen = size
        self._record(state)
        seconds = time.monotonic() - self._began
        if detail:
            self._console.say(f"fetched {self._shown}: {size / 1e6:.1f} MB in {seconds:.1f} s; {detail}")

    def _record(self, state: str) -> None:
        fields = {"source": self._shown, "state": state, "bytes": self.seen, "total_bytes": self._total}
        self._console.record(record("fetch", fields))
