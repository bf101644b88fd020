"""Converts a learner's state to the arrays and facts of a checkpoint, and back.

The learner's loop only takes a snapshot: tensors are cloned on the device, experience and counts are cut. The
checkpoint thread waits for the copies and checks for non-finite numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import NotFiniteError
from runtime.exchange.learner_server import ExchangeCut, ExchangeState
from runtime.exchange.machines.member_state import Accounts
from runtime.rl.checkpoints.checkpoint_files import Checkpoint, Checkpoints, Mirror
from runtime.rl.checkpoints.counters import Counters

if TYPE_CHECKING:
    from torch import Tensor

    from runtime.rl.algos.algorithm import Algorithm, Stats
    from runtime.rl.algos.plan import Store
    from runtime.rl.buffers.replay import TensorBatch


Arrays = dict[str, NDArray[Any]]
_COLLECTOR = "collector."
"""Prefix of names in the method's part of a checkpoint; earlier versions ignore unknown names."""


class LearnerSnapshot:
    """State of a learner at construction; only the writer thread calls `pack`."""

    def __init__(
        self,
        method: Algorithm,
        counters: Counters,
        cut: ExchangeCut,
        item_steps: int,
        collector: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`item_steps` is the number of env steps per item; `collector` is the live state of the learner's own
        collector.
        """
        from runtime.rl.device.staging import HostCopy

        self.facts = _facts(counters, cut.state, cut.state.env_steps * item_steps)
        self.updates = counters.updates
        own = {_COLLECTOR + name: tensor for name, tensor in (collector or {}).items()}
        self._method = HostCopy(method.live_state() | own)
        self._cut = cut

    def pack(self) -> tuple[Arrays, ExchangeState]:
        """Return the arrays of a checkpoint, and the exchange's contents at the same moment.

        Raises NotFiniteError: with NaN in a checkpoint every restart would fail, so the last good one must stay the
        newest.
        """
        holdings, method = self._cut.complete(), self._method.numpy()
        if names := not_finite_names(method):
            raise NotFiniteError(report(self.updates, {}, names, None))
        return _arrays(method, holdings), holdings


def pack(
    method: Algorithm, counters: Counters, holdings: ExchangeState, env_steps: int
) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and facts for `unpack`; `env_steps` is the number behind the holdings."""
    method_arrays = {name: tensor.numpy() for name, tensor in method.state().items()}
    return _arrays(method_arrays, holdings), _facts(counters, holdings, env_steps)


def _arrays(method: Mapping[str, NDArray[Any]], holdings: ExchangeState) -> Arrays:
    arrays = {f"method.{name}": array for name, array in method.items()}
    return arrays | {f"experience.{name}": array for name, array in holdings.store.items()}


def _facts(counters: Counters, holdings: ExchangeState, env_steps: int) -> dict[str, Any]:
    return {"counters": {**counters.facts(), "env_steps": env_steps}, "accounts": holdings.accounts}


class Resumed(NamedTuple):
    """Facts of a checkpoint whose tensors were loaded."""

    counters: Counters
    accounts: Accounts
    notes: list[str]
    """Sentences about differences from an uninterrupted run."""


def unpack(checkpoint: Checkpoint, method: Algorithm, store: Store) -> Resumed:
    """Load a checkpoint's state into `method` and `store`, whatever device it was saved on.

    Raises ValueError if the checkpoint belongs to other settings, and names the mismatch; `method` is not changed.
    """
    facts = checkpoint.facts
    try:
        counters, accounts = Counters.from_facts(facts["counters"]), Accounts.from_state(facts["accounts"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"its counters or accounts cannot be read ({error!r})") from error
    saved = method_state(checkpoint)
    # Check both before the first change: otherwise the networks would already be replaced when the experience turns
    # out not to fit.
    method.check_state(saved)
    try:
        store.load_state(_part(checkpoint.tensors, "experience."))
    except KeyError as error:
        raise ValueError(f"the saved experience has no {error}") from error
    return Resumed(counters, accounts, method.load_state(saved))


def method_state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the algorithm's state for `Algorithm.load_state`."""
    return _tensors(checkpoint, "method.")


def collector_state(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the state of the learner's own collector; empty if workers collected."""
    return _tensors(checkpoint, f"method.{_COLLECTOR}")


def _tensors(checkpoint: Checkpoint, prefix: str) -> dict[str, Tensor]:
    import torch

    return {name: torch.from_numpy(array) for name, array in _part(checkpoint.tensors, prefix).items()}


def _part(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    # A file reader's arrays may be read-only, and torch.from_numpy warns about those.
    return {name.removeprefix(prefix): np.array(array) for name, array in arrays.items() if name.startswith(prefix)}


def not_finite_names(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the names of arrays that contain infinite numbers or NaN."""
    return [name for name, array in arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]


def not_finite_report(method: Algorithm, batch: TensorBatch | None, updates: int, stats: Stats | None) -> str:
    """Return a sentence that names the non-finite statistics, tensors, and columns of the latest batch."""
    networks = {name: tensor.detach().cpu().numpy() for name, tensor in method.tensors().items()}
    columns = {} if batch is None else {name: column.cpu().numpy() for name, column in batch.columns().items()}
    figures = {} if stats is None else stats.floats()
    return report(updates, figures, not_finite_names(networks), columns or None)


def report(
    updates: int,
    stats: Mapping[str, float],
    networks: Iterable[str],
    batch: Mapping[str, NDArray[Any]] | None,
) -> str:
    """Return a sentence.

    Args:
        updates: Number of updates so far.
        stats: Statistics of the latest update.
        networks: Names of the non-finite tensors of the learning state.
        batch: Columns of the latest batch, if they still exist.
    """
    broken = [name for name, value in stats.items() if not np.isfinite(value)]
    sentence = f"{' and '.join(broken) or 'a weight'} not finite after update {updates:,}"
    if names := ", ".join(networks):
        sentence += f", nor are {names} of the networks"
    return f"{sentence}; {_cause(batch)}; a restart continues from the newest checkpoint"


def _cause(batch: Mapping[str, NDArray[Any]] | None) -> str:
    """Return the likely cause according to the batch."""
    advice = "lower the step sizes or bound the rewards"
    if batch is None:
        return advice
    if broken := not_finite_names(batch):
        return f"{' and '.join(broken)} of its batch not finite either: the environment gave such numbers"
    largest = max((float(np.abs(array).max()) for array in batch.values() if array.size), default=0.0)
    return f"its batch is finite, no number beyond {largest:.4g}: {advice}"


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
