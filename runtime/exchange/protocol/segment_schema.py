"""Memory layout of a segment's items (transitions, or gradients), shared by workers, exchange and stores.

A segment is an arena of bytes in columns: the first field of all items, then the second, and so on. Their offsets
follow from a Layout and the number of items, so an arena contains neither names nor shapes, and storing a segment
is one copy per column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Columns = tuple[NDArray[Any], ...]
"""One array for each field, in the order of the layout."""


WIRE_TYPES: Final = ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
"""Types that an arena may contain: boolean, unsigned, signed, float, and their bytes. No objects, so no pickle."""


@dataclass(frozen=True, slots=True)
class SegmentField:
    """One field of an item."""

    name: str
    dtype: np.dtype[Any]
    shape_tail: tuple[int, ...] = ()
    """Shape of one value; those of N items have (N, *shape_tail)."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.dtype.itemsize * math.prod(self.shape_tail)


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields of an item in the order of their columns."""

    fields: tuple[SegmentField, ...]

    @property
    def text(self) -> str:
        """Text by which both ends compare layouts: ``obs:f4[33] action:f4[2] reward:f4``, little-endian types.

        Raises ValueError for a type that is not a plain number.
        """
        descriptions = []
        for field in self.fields:
            code = field.dtype.newbyteorder("<").str[1:]
            # Arenas are used in place, without byte swapping: on a big-endian machine every field is refused here.
            if code not in WIRE_TYPES or not field.dtype.isnative:
                carried = ", ".join(WIRE_TYPES)
                raise ValueError(f"{field.name} has type {field.dtype}; the exchange carries {carried}")
            shape = ",".join(map(str, field.shape_tail))
            descriptions.append(f"{field.name}:{code}[{shape}]" if shape else f"{field.name}:{code}")
        return " ".join(descriptions)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self.fields)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item over all fields."""
        return sum(field.item_bytes for field in self.fields)

    def columns(self, arena: memoryview | NDArray[np.uint8], count: int) -> Columns:
        """Return views of the columns of `count` items in `arena`. Raises ValueError for any other size."""
        expected = count * self.item_bytes
        if arena.nbytes != expected:
            raise ValueError(f"a segment of {count} transitions has {expected} bytes, not {arena.nbytes}")
        views = []
        start = 0
        for field in self.fields:
            stop = start + count * field.item_bytes
            views.append(np.frombuffer(arena[start:stop], dtype=field.dtype).reshape(count, *field.shape_tail))
            start = stop
        return tuple(views)


def is_finite(values: Columns) -> bool:
    """Return true if every number in the columns is finite. One NaN in a batch would spread to all weights."""
    return all(bool(np.isfinite(column).all()) for column in values if column.dtype.kind == "f")
