"""Distributes the newest state of a job to all processes after each new round.

All ranks compare the step of their states, and a rank with the newest state broadcasts it (as in torchelastic's
ImageNet example). The loss of a node therefore costs no progress while another node has its state, whatever its
rank was. Only numbers and plain tensors are sent, never a pickle, which would run code when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.base.errors import FailedError
from runtime.rendezvous.plan import MAX_NAME


@dataclass(frozen=True, slots=True)
class StateOrigin:
    """Origin of the newest state.

    Attributes:
        step: Step of the state; 0 if no rank has any.
        rank: Lowest rank that has it. node: name of that rank's node.
    """

    step: int
    rank: int
    node: str


def take_newest(step: int, node: str, tensors: Sequence[Tensor]) -> StateOrigin:
    """Overwrite `tensors` on all ranks with those of the rank with the highest step, and return that rank.

    A collective operation of the default process group, which has a backend for CPU tensors. Raises FailedError if
    ranks train different models.
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
        # Also if all have the same step: machines round differently, and weights must not drift apart.
        dist.broadcast(tensor, newest)
    return StateOrigin(rows[newest][0], newest, _text(rows[newest][2:]))


def gather_texts(text: str) -> list[str]:
    """Return each rank's short text, by rank."""
    return [_text(row) for row in gather_rows(_codes(text))]


def gather_rows(row: Sequence[int]) -> list[list[int]]:
    """Return each rank's row of integers, by rank; all rows have the same length."""
    own = torch.tensor(row, dtype=torch.int64)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    return [[int(value) for value in received] for received in rows]


def _codes(text: str) -> list[int]:
    encoded = text.encode("ascii", "replace")[:MAX_NAME]
    return [*encoded, *(0 for _ in range(MAX_NAME - len(encoded)))]


def _text(codes: Sequence[int]) -> str:
    # Text from another machine that is printed here: printable ASCII only.
    return "".join(chr(code) for code in codes if 0x20 < code < 0x7F)
