"""Base class of batches that a learner splits among its ranks."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class TensorBatch:
    """Base of frozen dataclasses with slots whose fields are tensors, or None if a batch does not have that
    column.
    """

    __slots__: tuple[str, ...] = ()
    axis: ClassVar[int] = 0
    """Dimension along which a batch is split."""

    def to(self, device: str) -> Self:
        """Copy to another device."""
        return self.replaced([part.to(device) for part in self.tensors])

    @property
    def tensors(self) -> list[Any]:
        """The columns that this batch has."""
        return [part for part in self.parts if part is not None]

    def replaced(self, tensors: list[Any]) -> Self:
        """Return a batch with other tensors for the columns of this one."""
        rest = iter(tensors)
        return type(self)(*(None if part is None else next(rest) for part in self.parts))

    def shares(self, count: int) -> list[Self]:
        """Return ``count`` consecutive equal parts."""
        chunks = [[part] * count if part is None else part.chunk(count, dim=self.axis) for part in self.parts]
        return [type(self)(*parts) for parts in zip(*chunks, strict=True)]

    def columns(self) -> dict[str, Any]:
        """Return the tensors by name, without missing columns."""
        return {name: part for name, part in zip(self.__slots__, self.parts, strict=True) if part is not None}

    @property
    def parts(self) -> tuple[Any, ...]:
        """All columns in order, None for missing ones."""
        return tuple(getattr(self, name) for name in self.__slots__)
