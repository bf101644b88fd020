"""Memory for segments before they are sent: slots that follow one another, so that many go in one piece.

A bundle of segments is one frame on the wire. Segments whose arenas lie side by side are sent from where they lie;
others have to be brought together first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from runtime.framing import Buffer

SLAB_BYTES: Final = 4 * 1024 * 1024
"""Taken from the system at once. A slab goes back when the last of its segments is neither kept nor on its way."""


class Arenas:
    """Hands out arenas of one size, side by side as long as the slab lasts."""

    def __init__(self, arena_bytes: int) -> None:
        self._size = arena_bytes
        self._count = max(1, SLAB_BYTES // max(1, arena_bytes))
        self._slab: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._next = self._count

    def take(self) -> NDArray[np.uint8]:
        """Return an arena that nobody else has; what is in it is left from before."""
        if self._next == self._count:
            self._slab, self._next = np.empty(self._count * self._size, dtype=np.uint8), 0
        start = self._next * self._size
        self._next += 1
        return self._slab[start : start + self._size]


def gather(arenas: Sequence[Buffer]) -> Buffer:
    """Return the arenas as one piece: the memory in which they lie if they are neighbours, else a copy."""
    if len(arenas) == 1:
        return arenas[0]
    views = [memoryview(each) for each in arenas]
    first = views[0].obj
    slab = first.base if isinstance(first, np.ndarray) else None
    if isinstance(slab, np.ndarray):
        whole: NDArray[np.uint8] = slab
        start = at = _address(first)
        for view in views:
            if getattr(view.obj, "base", None) is not slab or _address(view.obj) != at:
                break
            at += view.nbytes
        else:
            offset = start - _address(whole)
            return whole[offset : offset + at - start].data
    return b"".join(views)


def _address(array: object) -> int:
    """Where an array begins; `ndarray.ctypes` says the same ten times slower."""
    return int(array.__array_interface__["data"][0])  # type: ignore[attr-defined]
