"""Pinned memory of the host that copies read or write while the host continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tests.fakes.cuda import accesses
from tests.fakes.cuda.library import clocks

GARBAGE: Final = 90
"""Number in memory that a copy has not reached yet."""


@dataclass(slots=True)
class _OnItsWay:
    """Copy between the device and pinned memory that the host may not touch until it is complete."""

    stream: int
    number: int
    pinned: Tensor
    values: Tensor
    is_arriving: bool
    place: str


_copies: list[_OnItsWay] = []


def leave(stream: int, number: int, pinned: Tensor) -> None:
    """Record that the device reads pinned memory, which the host must not change until then."""
    with accesses.lock:
        _copies.append(_OnItsWay(stream, number, pinned, pinned.clone(), False, accesses.place_of_caller()))


def arrive(stream: int, number: int, pinned: Tensor, values: Tensor) -> None:
    """Record that the device writes pinned memory: until the host waits for it, its contents are undefined."""
    with accesses.lock:
        pinned.fill_(GARBAGE)
        _copies.append(_OnItsWay(stream, number, pinned, values.clone(), True, accesses.place_of_caller()))


def settle() -> None:
    """End the copies that the host has waited for."""
    with accesses.lock:
        over: list[_OnItsWay] = []
        waiting: list[_OnItsWay] = []
        for copy in _copies:
            (over if clocks.host_is_after(copy.stream, copy.number) else waiting).append(copy)
        _copies[:] = waiting
        for copy in over:
            if copy.is_arriving:
                copy.pinned.copy_(copy.values)
            elif not _equal(copy.pinned, copy.values):
                accesses.report(
                    f"the host writes to pinned memory that stream {copy.stream} may still read ({copy.place})"
                )


def bring(stream: int, pinned: Tensor) -> None:
    """Let a launch read pinned memory that earlier launches have written."""
    with accesses.lock:
        for copy in [copy for copy in _copies if copy.is_arriving and _overlap(copy.pinned, pinned)]:
            if not clocks.is_after(stream, copy.stream, copy.number):
                accesses.report(
                    f"stream {stream} reads pinned memory that stream {copy.stream} writes ({copy.place})"
                )
            copy.pinned.copy_(copy.values)


def _equal(first: Tensor, second: Tensor) -> bool:
    """Compare bytes, so that NaN equals itself."""
    return torch.equal(*(tensor.contiguous().view(-1).view(torch.uint8) for tensor in (first, second)))


def _overlap(first: Tensor, second: Tensor) -> bool:
    start, other = first.data_ptr(), second.data_ptr()
    return start < other + second.nbytes and other < start + first.nbytes
