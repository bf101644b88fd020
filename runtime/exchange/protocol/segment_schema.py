"""How the items of a segment lie in memory: the one description that workers, exchange and stores share.

A segment is an arena of bytes, laid out column by column: first the first field of all items, then the second. The
arrangement is a pure function of a Layout and the number of items, so an arena carries neither names nor shapes,
and taking one in is one copy per column.
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
"""Types that an arena may hold: kind (boolean, unsigned, signed, float) and bytes. Nothing that is an object."""


@dataclass(frozen=True, slots=True)
class Field:
    """One part of an item."""

    name: str
    dtype: np.dtype[Any]
    shape_tail: tuple[int, ...] = ()
    """Shape of one item; N of them have (N, *shape_tail)."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return self.dtype.itemsize * math.prod(self.shape_tail)


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of an item in the order in which their columns lie."""

    fields: tuple[Field, ...]

    @property
    def text(self) -> str:
        """The layout as both ends of the exchange compare it: ``obs:f4[33] action:f4[2] reward:f4``.

        Little-endian kinds and bytes as NumPy writes them. ValueError for a type that is not plain numbers.
        """
        words = []
        for field in self.fields:
            code = field.dtype.newbyteorder("<").str[1:]
            if code not in WIRE_TYPES or not field.dtype.isnative:
                raise ValueError(
                    f"{field.name} has type {field.dtype}; the exchange carries {', '.join(WIRE_TYPES)}"
                )
            shape = ",".join(map(str, field.shape_tail))
            words.append(f"{field.name}:{code}[{shape}]" if shape else f"{field.name}:{code}")
        return " ".join(words)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return tuple(field.name for field in self.fields)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item over all fields."""
        return sum(field.item_bytes for field in self.fields)

    def columns(self, arena: memoryview | NDArray[np.uint8], count: int) -> Columns:
        """Return views of the columns of `count` items in `arena`. ValueError if it has not exactly their size."""
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
    """Say whether every number in the columns is finite: one that is not spoils the networks and never leaves."""
    return all(bool(np.isfinite(each).all()) for each in values if each.dtype.kind == "f")
