"""Snapshots of one rank: rank 0 uses the run's folder, one process of each other node its own folder.

In each round all ranks determine the newest snapshot together (`runtime.jobs.elastic.newest_state`). This module
handles the snapshots of one process: on a volume shared by all nodes, the same for all; without one, those that
this node wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from runtime.base import contract
from runtime.base.errors import FailedError
from runtime.jobs.classify import network as net
from runtime.jobs.classify.rank_context import TrainingRank
from runtime.rl.checkpoints.checkpoint_files import Checkpoint, Checkpoints

KEPT: Final = 3
NODE_KEPT: Final = 2


class Snapshots:
    """Snapshots that one rank reads and writes; only the first process of a node has any."""

    def __init__(self, folder: Path, rank: TrainingRank, environ: Mapping[str, str]) -> None:
        self._sources: list[Checkpoints] = []
        self._target: Checkpoints | None = None
        if rank.local_rank:
            return
        # One process writes to the run's folder; the others must not clean up there meanwhile.
        run = Checkpoints(folder / "checkpoints", KEPT, is_read_only=rank.rank > 0)
        self._sources.append(run)
        self._target = run if rank.rank == 0 else None
        if own := environ.get(contract.ENV_NODE_DIR):
            node = Checkpoints(Path(own) / "checkpoints", NODE_KEPT)
            self._sources.append(node)
            self._target = self._target or node

    @property
    def is_writer(self) -> bool:
        """Return whether this process writes snapshots."""
        return self._target is not None

    def load(self, network: net.Classifier, optimiser: net.FlatSGD, say: Callable[[str], None]) -> int:
        """Load the newest snapshot of this process and return its step; 0 if there is none.

        Raises FailedError if it belongs to another network.
        """
        candidates = []
        for source in self._sources:
            checkpoint, aside = source.load()
            for sentence in aside:
                say(sentence)
            if checkpoint is not None:
                candidates.append((_step(checkpoint), checkpoint))
        if not candidates:
            return 0
        step, newest = max(candidates, key=lambda candidate: candidate[0])
        try:
            net.load_network(network, newest.tensors)
            net.load_momentum(optimiser, newest.tensors)
        except (ValueError, KeyError) as error:
            raise FailedError(_unfit(newest, error)) from error
        return step

    def save(self, step: int, samples: int, arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write a snapshot; does nothing in a process that writes none."""
        if self._target is not None:
            self._target.save(step, samples, arrays, facts)


def _step(checkpoint: Checkpoint) -> int:
    try:
        return int(checkpoint.facts["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise FailedError(_unfit(checkpoint, error)) from error


def _unfit(checkpoint: Checkpoint, error: Exception) -> str:
    return f"{checkpoint.name} does not fit: {error}; use the previous options, or another folder"
