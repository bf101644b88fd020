"""Checkpoint writer: a thread of its own, so that neither copies nor a slow disk delay learning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runtime.exchange.learner_server import ExchangeState
from runtime.rl.checkpoints.checkpoint_files import Checkpoints
from runtime.rl.checkpoints.learner_state import LearnerSnapshot
from runtime.rl.checkpoints.upload import Mirror


class CheckpointWriter:
    """Writer of one checkpoint at a time."""

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
        self._error: Exception | None = None
        self.trouble = ""
        """Error of the disk that kept the latest checkpoint from it; empty once one is there."""

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written; raises what `wait` raises."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        return self._thread is not None

    def save(self, snapshot: LearnerSnapshot) -> None:
        """Begin to write, after the previous checkpoint is done; raises what `wait` raises."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(snapshot,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written. Raises NotFiniteError for a state that must not be saved."""
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
        """Write one checkpoint; report a disk that refuses it, and leave it to the next one."""
        began = time.monotonic()
        arrays, holdings = snapshot.pack()
        try:
            name = self._checkpoints.save(snapshot.updates, holdings.env_steps, arrays, snapshot.facts)
        except OSError as error:
            self._say(f"the checkpoint could not be written ({error}); training goes on without it")
            self.trouble = error.strerror or str(error)
            return
        self.trouble = ""
        # Only now may segments behind this checkpoint be acknowledged: what it holds survives the process.
        self._saved(holdings)
        if self._mirror is not None:
            self._mirror.offer(name)
        size = sum(array.nbytes for array in arrays.values()) / 2**20
        self._say(f"checkpoint {name}: {size:.1f} MiB in {time.monotonic() - began:.2f} s")
