"""Report on non-finite numbers: which ones, and whether the batch caused them. Only created on failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from runtime.rl.algos.algorithm import Algorithm, Stats
    from runtime.rl.buffers.tensor_batch import TensorBatch


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
