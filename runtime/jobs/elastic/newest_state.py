"""The newest state of a job, from whichever process has it, after each new round.

All ranks compare how far their state is, and the rank with the newest broadcasts it (as the ImageNet example of
torchelastic does). So a node that is lost costs no progress while another has its state, whatever its rank was.
Numbers and plain tensors travel, never a pickle, which would run code at its reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.base.errors import FailedError
from runtime.jobs.elastic.plan import MAX_NAME


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Place of the newest state.

    Attributes:
        step: Of the state; 0 where no rank has any.
        rank: Lowest rank that has it. node: name of that rank's node.
    """

    step: int
    rank: int
    node: str


def take_newest(step: int, node: str, tensors: Sequence[Tensor]) -> StateOrigin:
    """Overwrite `tensors` on all ranks by those of the rank with the highest step, and say which that is.

    A collective operation of the default process group, which has a backend for CPU tensors. Raises FailedError
    where ranks train different models.
    """
    size = sum(tensor.numel() for tensor in tensors)
    rows = gather_rows([step, size, *_codes(node)])
    for rank, (_, other_size, *codes) in enumerate(rows):
        if other_size != size:
            raise FailedError(
                f"rank {rank} on node {_text(codes)} trains a model of {other_size} numbers, and this one has "
                f"{size}; start all nodes with the same program and options"
            )
    newest = max(range(len(rows)), key=lambda rank: (rows[rank][0], -rank))
    for tensor in tensors:
        # Also where all have one step: machines round differently, and weights must not drift apart.
        dist.broadcast(tensor, newest)
    return StateOrigin(rows[newest][0], newest, _text(rows[newest][2:]))


def gather_texts(text: str) -> list[str]:
    """Return a short text of each rank, by rank."""
    return [_text(row) for row in gather_rows(_codes(text))]


def gather_rows(row: Sequence[int]) -> list[list[int]]:
    """Return a row of integers of each rank, by rank; all ranks give rows of one length."""
    own = torch.tensor(row, dtype=torch.int64)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return [[int(value) for value in received] for received in rows]


def _codes(text: str) -> list[int]:
    encoded = text.encode("ascii", "replace")[:MAX_NAME]
    return [*encoded, *(0 for _ in range(MAX_NAME - len(encoded)))]


def _text(codes: Sequence[int]) -> str:
    # It is printed here and was written elsewhere: printable ASCII alone.
    return "".join(chr(code) for code in codes if 0x20 < code < 0x7F)
