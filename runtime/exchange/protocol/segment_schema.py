"""Memory layout of a segment's items (transitions, or gradients), shared by workers, exchange and stores.

A segment is an arena of bytes in columns: the first field of all items, then the second, and so on, then the rows
of the tail if the layout has one. Their offsets follow from a Layout and the numbers of items and tail rows, so an
arena contains neither names nor shapes, and storing a segment is one copy per column.

A tail is for values that do not exist once per item, such as an observation with which no item begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.exchange.protocol.messages import TAIL_LIMIT

Columns = tuple[NDArray[Any], ...]
"""One array for each field, in the order of the layout."""


WIRE_TYPES: Final = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
"""Types that an arena may contain: boolean, unsigned, signed, float, with their sizes. No objects, so no pickle."""


@dataclass(frozen=True, slots=True)
class SegmentField:
    """One field of an item."""

    name: str
    dtype: np.dtype[Any]
    shape_tail: tuple[int, ...] = ()
    """Shape of one value; N items have the shape (N, *shape_tail)."""
    strides: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Bytes from one item to the next, then along each dimension of ``shape_tail``: C order, without padding."""

    def __post_init__(self) -> None:
        """Compute the strides once: they are needed for each column of each message."""
        sizes = [
            self.dtype.itemsize * math.prod(self.shape_tail[axis:]) for axis in range(len(self.shape_tail) + 1)
        ]
        object.__setattr__(self, "strides", tuple(sizes))

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.strides[0]


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields of an item in the order of their columns, and the field of the tail if segments have one."""

    fields: tuple[SegmentField, ...]
    tail: SegmentField | None = None
    item_bytes: int = field(init=False, compare=False)
    """Size of one item over all fields."""
    tail_bytes: int = field(init=False, compare=False)
    """Size of one tail row; 0 without a tail."""
    _all: tuple[SegmentField, ...] = field(init=False, repr=False, compare=False)
    """Fields in the order of their columns, the tail last."""

    def __post_init__(self) -> None:
        """Compute the sizes once: they are needed several times for each message."""
        object.__setattr__(self, "item_bytes", sum(item.item_bytes for item in self.fields))
        object.__setattr__(self, "tail_bytes", self.tail.item_bytes if self.tail else 0)
        object.__setattr__(self, "_all", (*self.fields, self.tail) if self.tail else self.fields)

    @property
    def text(self) -> str:
        """Text for comparing the layouts of both ends: ``obs:f4[33] action:f4[2] reward:f4``, little-endian types.

        A tail is last and has a plus sign: ``+obs:f4[33]``. Raises ValueError for a type that is not a plain
        number.
        """
        descriptions = []
        for item in self._all:
            code = item.dtype.newbyteorder("<").str[1:]
            # Arenas are used in place, without byte swapping: on a big-endian machine every field is refused here.
            if code not in WIRE_TYPES or not item.dtype.isnative:
                carried = ", ".join(WIRE_TYPES)
                raise ValueError(f"{item.name} has type {item.dtype}; the exchange carries {carried}")
            shape = ",".join(map(str, item.shape_tail))
            mark = "+" if item is self.tail else ""
            descriptions.append(f"{mark}{item.name}:{code}" + (f"[{shape}]" if shape else ""))
        return " ".join(descriptions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(item.name for item in self.fields)

    def segment_bytes(self, count: int, tail: int = 0) -> int:
        """Return the size of a segment of `count` items and `tail` rows after them."""
        return count * self.item_bytes + tail * self.tail_bytes

    def most_bytes(self, count: int) -> int:
        """Return the maximum size of a segment of `count` items."""
        return self.segment_bytes(count, TAIL_LIMIT * count)

    def columns(self, arena: memoryview | NDArray[np.uint8], count: int, tail: int = 0) -> Columns:
        """Return views of the columns of `count` items in `arena`, and of the tail after them if there is one.

        Raises ValueError for any other size.
        """
        expected = self.segment_bytes(count, tail)
        if arena.nbytes != expected:
            raise ValueError(f"a segment of {count} transitions has {expected} bytes, not {arena.nbytes}")
        views = []
        start = 0
        for item in self._all:
            rows = tail if item is self.tail else count
            views.append(np.ndarray((rows, *item.shape_tail), item.dtype, arena, start))
            start += rows * item.item_bytes
        return tuple(views)


def is_finite(values: Columns) -> bool:
    """Return true if every number in the columns is finite. One NaN in a batch would spread to all weights."""
    return all(bool(np.isfinite(column).all()) for column in values if column.dtype.kind == "f")
