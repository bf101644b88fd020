"""Checkpoints are written in a thread of their own: a slow disk must not cost a second of learning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from runtime.checkpoints import Checkpoints, Tensors
from runtime.exchange import Holdings
from runtime.mirror import Mirror


class Saver:
    """Writes one checkpoint at a time. What it is given must not be changed by anybody afterwards."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
        saved: Callable[[Holdings], None],
        mirror: Mirror | None,
    ) -> None:
        """`saved` is called in the writing thread once a checkpoint is on the disk; `mirror` gets a copy of it."""
        self._checkpoints = checkpoints
        self._say = say
        self._saved = saved
        self._mirror = mirror
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, updates: int, arrays: Tensors, facts: dict[str, Any], holdings: Holdings) -> None:
        """Begin to write; the one before is waited for."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(updates, arrays, facts, holdings), name="checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, updates: int, arrays: Tensors, facts: dict[str, Any], holdings: Holdings) -> None:
        """A disk that refuses is told of, and the next checkpoint is tried in its time."""
        began = time.monotonic()
        try:
            name = self._checkpoints.save(updates, holdings.env_steps, arrays, facts)
        except OSError as error:
            self._say(f"the checkpoint could not be written ({error}); training goes on without it")
            return
        self._saved(holdings)
        if self._mirror is not None:
            self._mirror.offer(name)
        size = sum(array.nbytes for array in arrays.values()) / 2**20
        self._say(f"checkpoint {name}: {size:.1f} MiB in {time.monotonic() - began:.2f} s")
