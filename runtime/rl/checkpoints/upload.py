"""Checkpoints beyond the run's own folder: each one goes to a bucket or a volume, the newest whole one comes back.

The order is that of the folder: first the arrays, then the manifest, which holds their SHA-256. So whatever has a
manifest is complete, wherever a writer was killed. Copying runs in a thread of its own, one checkpoint at a time;
when the line is slower than the checkpoints come, those in between are left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.checkpoints import damage
from runtime.files import write_whole
from runtime.places import Place

PATIENCE_SECONDS: Final = 60.0
"""How long a learner that is done waits for its last checkpoint, as long as bytes move."""

Say = Callable[[str], None]


class Mirror:
    """Copies the checkpoints of one folder to one place. `offer` and `close` are for one thread."""

    def __init__(self, place: Place, folder: Path, keep: int, say: Say) -> None:
        self._place = place
        self._folder = folder
        self._keep = keep
        self._say = say
        self._wanted: str | None = None
        self._copied = ""
        """The newest that is known to be there, so that no second copy is made."""
        self._moved = 0
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def offer(self, name: str) -> None:
        """Copy this checkpoint next; one that still waits is left out."""
        with self._changed:
            self._wanted = name
            self._changed.notify_all()

    def close(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for the checkpoint that was offered last, unless nothing moves for so long; then end.

        What is not copied by then is copied at the next start from the same folder.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        moved, until = -1, 0.0
        while self._thread.is_alive():
            if self._moved != moved:
                moved, until = self._moved, time.monotonic() + patience_seconds
            elif time.monotonic() > until:
                self._say(f"the last checkpoint is not in {self._place.url} yet; the next start copies it")
                return
            self._thread.join(0.1)

    def _run(self) -> None:
        is_swept = False
        while True:
            with self._changed:
                while self._wanted is None:
                    if self._is_closing:
                        return
                    self._changed.wait()
                name, self._wanted = self._wanted, None
            try:
                if not is_swept:
                    self._place.sweep()
                    is_swept = True
                self._copy(name)
            except OSError as error:
                self._say(f"checkpoint {name} could not be copied ({error}); the next one is tried")

    def _copy(self, name: str) -> None:
        if name <= self._copied:
            return
        there = self._place.names()
        if f"{name}.json" not in there:
            began = time.monotonic()
            data = self._folder / f"{name}.safetensors"
            self._place.put(data.name, data, self._progress)
            self._place.put(f"{name}.json", self._folder / f"{name}.json", self._progress)
            size, seconds = data.stat().st_size / 2**20, time.monotonic() - began
            self._say(f"checkpoint {name} is in {self._place.url}: {size:.1f} MiB in {seconds:.1f} s")
        self._copied = name
        manifests = [each for each in there if each.endswith(".json") and each != f"{name}.json"]
        for old in manifests[: max(0, len(manifests) + 1 - self._keep)]:
            self._place.remove(old)  # first: what has no manifest is no checkpoint
            self._place.remove(old.replace(".json", ".safetensors"))

    def _progress(self, count: int) -> None:
        self._moved += count


def bring_newest(place: Place, folder: Path, say: Say) -> str | None:
    """Copy the newest checkpoint of `place` that is whole to `folder`, unless that holds one as new; its name.

    Raises OSError if the place cannot be read: then nobody knows, and training must not start anew for it.
    """
    own = max((path.name for path in folder.glob("ckpt-*.json")), default="")
    there = [each for each in place.names() if each.startswith("ckpt-") and each.endswith(".json")]
    for manifest in reversed(there):
        if manifest <= own:
            return None
        if (problem := _bring(place, manifest, folder)) is None:
            return manifest.removesuffix(".json")
        say(f"{place.url}/{manifest} is not whole ({problem}); the one before is tried")
    return None


def _bring(place: Place, manifest: str, folder: Path) -> str | None:
    """Copy one checkpoint, the manifest last; what is wrong with it, or None."""
    name = manifest.replace(".json", ".safetensors")
    try:
        text = place.read(manifest)
        place.fetch(name, folder / name)
    except FileNotFoundError as error:
        return str(error)
    if (problem := damage(text, folder / name)) is not None:
        (folder / name).unlink(missing_ok=True)
        return problem
    write_whole(folder / manifest, text)
    return None
