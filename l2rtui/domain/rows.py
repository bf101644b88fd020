"""Dataclass decorator for values of which a large cluster has tens of thousands.

Python fills a frozen dataclass field by field through ``object.__setattr__``, which takes six times as long as for
a mutable one: a fifth of the time to the first rows of ten thousand pods. These classes are frozen for the type
checker only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as row
else:
    from dataclasses import dataclass

    def row(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        """Make a dataclass with the equality and hash of a frozen one; it must not be mutated."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["row"]
