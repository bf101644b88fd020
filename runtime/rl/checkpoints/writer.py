"""Checkpoint writer: a thread of its own, so that a slow disk does not delay learning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from runtime.exchange.learner_server import ExchangeState
from runtime.rl.checkpoints.checkpoint_files import Checkpoints, Tensors
from runtime.rl.checkpoints.upload import Mirror


class CheckpointWriter:
    """Writes one checkpoint at a time. Arrays passed to `save` must not change afterwards."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
        saved: Callable[[ExchangeState], None],
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
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, updates: int, arrays: Tensors, facts: dict[str, Any], holdings: ExchangeState) -> None:
        """Begin to write, after the previous checkpoint is done."""
        self.wait()
        arguments = updates, arrays, facts, holdings
        self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, updates: int, arrays: Tensors, facts: dict[str, Any], holdings: ExchangeState) -> None:
        """Write one checkpoint; report a disk that refuses it, and leave it to the next one."""
        began = time.monotonic()
        try:
            name = self._checkpoints.save(updates, holdings.env_steps, arrays, facts)
        except OSError as error:
            self._say(f"the checkpoint could not be written ({error}); training goes on without it")
            return
        # Only now may segments behind this checkpoint be acknowledged: what it holds survives the process.
        self._saved(holdings)
        if self._mirror is not None:
            self._mirror.offer(name)
        size = sum(array.nbytes for array in arrays.values()) / 2**20
        self._say(f"checkpoint {name}: {size:.1f} MiB in {time.monotonic() - began:.2f} s")
