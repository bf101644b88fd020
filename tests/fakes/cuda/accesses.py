"""Reads and writes of device memory, and whether they wait for each other.

A race detector by vector clocks, like ThreadSanitizer (Serebryany and Iskhodzhanov 2009). Kernels run immediately,
in the order of their launches. Each access to memory must be ordered after the earlier ones by streams, events or
the host, not by luck.
"""

from __future__ import annotations

import ctypes
import os
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.fakes.cuda.library import clocks

MANY = 32
"""Number of accesses of a block after which those already ordered before every launch, by the host, are dropped."""
NOT_CALLERS = ("/tests/fakes/cuda/", "/torch/")


class RaceError(AssertionError):
    """Two accesses to memory of which neither waits for the other."""


@dataclass(slots=True)
class Access:
    """Bytes ``first`` to ``last`` of a block, by a launch of a stream."""

    stream: int
    number: int
    first: int
    last: int
    name: str
    place: str
    rows: NDArray[np.int64] | None = None
    """First bytes of its rows, in order, if it does not cover all bytes in between."""
    row_bytes: int = 0

    def meets(self, other: Access) -> bool:
        if not (self.first < other.last and other.first < self.last):
            return False
        if self.rows is not None and other.rows is not None and self.row_bytes == other.row_bytes:
            return bool(np.isin(self.rows, other.rows, assume_unique=True).any())
        if self.rows is None:
            return other.rows is None or other.meets(self)
        return bool(((self.rows < other.last) & (self.rows + self.row_bytes > other.first)).any())


@dataclass(slots=True)
class Block:
    """Accesses to a block of memory that later ones must come after, and the stream that it was allocated on."""

    home: int
    writes: list[Access] = field(default_factory=list)
    reads: list[Access] = field(default_factory=list)
    recorded: set[int] = field(default_factory=set)


blocks: dict[int, Block] = {}
RACES = "SIMULATED_CUDA_RACES"
"""Variable with the path of a file that collects the errors of all processes, since a thread may swallow one."""
lock = threading.RLock()
_serials = (ctypes.c_int64 * 256)()


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes of its block that a tensor reaches."""
    if tensor.numel() == 0:
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return first * tensor.element_size(), last * tensor.element_size()


def note(
    stream: int,
    name: str,
    reads: list[Tensor],
    writes: list[Tensor],
    rows: dict[int, NDArray[np.int64]] | None = None,
) -> int:
    """Check and record a launch's accesses; return its number on the stream.

    ``rows`` gives the rows of tensors, by their `id`, if only those are read or written.
    """
    chosen = rows or {}
    with lock:
        drop_freed()
        number = clocks.launch(stream)
        place = place_of_caller()
        for tensors, is_write in ((reads, False), (writes, True)):
            for tensor in tensors:
                access = _access(stream, number, tensor, name, place, chosen.get(id(tensor)))
                _note(tensor, access, is_write=is_write)
        return number


def _access(
    stream: int, number: int, tensor: Tensor, name: str, place: str, rows: NDArray[np.int64] | None
) -> Access:
    first, last = extent(tensor)
    if rows is None or not tensor.is_contiguous():
        return Access(stream, number, first, last, name, place)
    size = tensor.nbytes // len(tensor)
    return Access(stream, number, first, last, name, place, first + np.unique(rows) * size, size)


def block_of(tensor: Tensor) -> Block:
    """Return the recorded accesses of a tensor's memory."""
    serial, home = torch.ops.simulated.block(tensor)
    return blocks.get(serial) or blocks.setdefault(serial, Block(home))


def _note(tensor: Tensor, access: Access, *, is_write: bool) -> None:
    block = block_of(tensor)
    if len(block.reads) + len(block.writes) > MANY:
        for accesses in (block.reads, block.writes):
            accesses[:] = [old for old in accesses if not clocks.host_is_after(old.stream, old.number)]
    _check(block.writes, access, "reads" if not is_write else "overwrites", "writes")
    if is_write:
        _check(block.reads, access, "overwrites", "reads")
        block.writes = [old for old in block.writes if not _is_covered(old, access)] + [access]
        block.reads = [old for old in block.reads if not _is_covered(old, access)]
    else:
        block.reads = [old for old in block.reads if not _is_covered(old, access)] + [access]


def _is_covered(old: Access, new: Access) -> bool:
    """Return True if everything ordered after the new access is ordered after the old one, and overlaps it too."""
    return (
        new.rows is None
        and new.first <= old.first
        and old.last <= new.last
        and (old.stream == new.stream or bool(clocks.is_after(new.stream, old.stream, old.number)))
    )


def _check(earlier: list[Access], access: Access, verb: str, earlier_verb: str) -> None:
    for old in earlier:
        if (
            old.stream != access.stream
            and old.meets(access)
            and not clocks.is_after(access.stream, old.stream, old.number)
        ):
            report(
                f"{access.name} on stream {access.stream} {verb} what {old.name} on stream {old.stream} "
                f"{earlier_verb}, and does not wait for it ({old.place}; {access.place})"
            )


def drop_freed() -> None:
    """Forget freed blocks; report blocks that a stream may still use and whose owner has not waited for it."""
    while count := clocks.take_freed(_serials, len(_serials)):
        for serial in _serials[:count]:
            block = blocks.pop(serial, None)
            if block is None:
                continue
            for old in block.reads + block.writes:
                if old.stream not in {block.home, *block.recorded} and not (
                    clocks.is_after(block.home, old.stream, old.number)
                    or clocks.host_is_after(old.stream, old.number)
                ):
                    report(
                        f"memory of stream {block.home} is freed while {old.name} on stream {old.stream} may use "
                        f"it ({old.place})"
                    )


def record_stream(tensor: Tensor, stream: int) -> None:
    """Record that a stream uses a tensor until the point that it has reached when the tensor is freed."""
    with lock:
        block_of(tensor).recorded.add(stream)


def report(sentence: str) -> None:
    """Record a race and raise it."""
    if RACES in os.environ:
        with Path(os.environ[RACES]).open("a", encoding="utf-8") as file:
            file.write(f"{sentence}\n")
    raise RaceError(sentence)


def place_of_caller() -> str:
    """Return the line of the project that has launched an operation."""
    for frame, line in traceback.walk_stack(None):
        name = frame.f_code.co_filename
        if not any(part in name for part in NOT_CALLERS):
            return f"{'/'.join(name.split('/')[-2:])}:{line}"
    return "autograd"
