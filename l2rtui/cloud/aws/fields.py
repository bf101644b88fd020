"""Reader of a file's mappings: each field is read once with its type, and unread fields are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Fields:
    """Reader of a mapping that removes each field it returns; remaining fields are refused at the end.

    Attributes:
        where: Path of the mapping in the file, for errors. left: Fields that were not read yet.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where or 'the file'} is not a mapping of fields")  # noqa: TRY004  (a mistake in a file)
        self.where = where
        self.left: dict[str, Any] = {str(key): value for key, value in data.items()}

    def at(self, name: str) -> str:
        """Return the field's full name."""
        return f"{self.where}.{name}".lstrip(".")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text; without a default it is required."""
        value = self.left.pop(name, default)
        if value is None:
            raise ValueError(f"{self.at(name)} is missing")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is no text")  # noqa: TRY004
        return str(value)

    def count(self, name: str, default: int | None) -> int | None:
        """Return a non-negative integer."""
        value = self.left.pop(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ValueError(f"{self.at(name)} is {value!r}: write a whole number")
        return value

    def switch(self, name: str) -> bool:
        """Return a boolean; False if it is missing."""
        value = self.left.pop(name, False)
        if not isinstance(value, bool):
            raise ValueError(f"{self.at(name)} is {value!r}: write true or false")  # noqa: TRY004
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list; empty if it is missing."""
        value = self.left.pop(name, None) or []
        if not isinstance(value, list):
            raise ValueError(f"{self.at(name)} is no list")  # noqa: TRY004
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        texts = self.items(name)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{self.at(name)} contains a value that is not text")
        return texts

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return a mapping of texts as pairs."""
        inner = Fields(self.left.pop(name, None) or {}, self.at(name))
        return tuple((key, inner.text(key)) for key in list(inner.left))

    def inner(self, name: str) -> Fields:
        """Return the reader of an inner mapping; empty if it is missing."""
        return Fields(self.left.pop(name, None) or {}, self.at(name))

    def done(self) -> None:
        """Refuse fields that were not read."""
        if self.left:
            raise ValueError(f"{self.at(next(iter(self.left)))} is not supported")
