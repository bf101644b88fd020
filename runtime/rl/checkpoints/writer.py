"""Checkpoint writer: a separate thread, so that neither copies nor a slow disk delay learning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runtime.exchange.learner_server import ExchangeState
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.checkpoints.learner_state import LearnerSnapshot
from runtime.rl.checkpoints.upload import Mirror


class CheckpointWriter:
    """Writes one checkpoint at a time."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
        saved: Callable[[ExchangeState], None],
        mirror: Mirror | None,
    ) -> None:
        """The writer thread calls `saved` once a checkpoint is on disk; `mirror` uploads a copy."""
        self._checkpoints = checkpoints
        self._say = say
        self._saved = saved
        self._mirror = mirror
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.trouble = ""
        """Disk error of the latest checkpoint; empty once one was written."""

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written; raises the same errors as `wait`."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        return self._thread is not None

    def save(self, snapshot: LearnerSnapshot) -> None:
        """Start writing once the previous checkpoint is done; raises the same errors as `wait`."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return once nothing is being written. Raises NotFiniteError for a state that must not be saved."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, snapshot: LearnerSnapshot) -> None:
        try:
            self._write(snapshot)
        except Exception as error:  # noqa: BLE001  (the main thread raises it again)
            self._error = error

    def _write(self, snapshot: LearnerSnapshot) -> None:
        """Write one checkpoint; on a disk error report it, and leave the retry to the next checkpoint."""
        began = time.monotonic()
        arrays, holdings = snapshot.pack()
        try:
            name = self._checkpoints.save(snapshot.updates, holdings.env_steps, arrays, snapshot.facts)
        except OSError as error:
            self._say(f"the checkpoint could not be written ({error}); training continues without it")
            self.trouble = error.strerror or str(error)
            return
        self.trouble = ""
        # Acknowledge the checkpoint's segments only now: its contents survive the process.
        self._saved(holdings)
        if self._mirror is not None:
            self._mirror.offer(name)
        size = sum(array.nbytes for array in arrays.values()) / 2**20
        self._say(f"checkpoint {name}: {size:.1f} MiB in {time.monotonic() - began:.2f} s")
